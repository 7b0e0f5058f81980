"""Tasks as gymnasium's vector environments: its checker, ends of episodes, and an algorithm."""

import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode
from torch.utils._python_dispatch import TorchDispatchMode

from mjfleet.errors import UserError
from mjfleet.gym import make, make_vector

from .conftest import REPOSITORY, copy_task


@pytest.mark.filterwarnings("ignore:.*Box observation space")
@pytest.mark.parametrize("task", ["cartpole-swingup", "hopper-v5", "go1-velocity-flat"])
def test_gymnasiums_checker_accepts_each_kind_of_task(task: str) -> None:
    check_env(make(task, num_threads=1), skip_render_check=True)


def test_an_end_renders_once_more_and_other_steps_once(monkeypatch: pytest.MonkeyPatch) -> None:
    envs = make_vector("cartpole-balance-depth", num_envs=2, env={"episode_seconds": 0.1})
    views, render = list[Any](), envs.env.sim._images
    count = lambda view: views.append(view) or render(view)  # noqa: E731
    monkeypatch.setitem(vars(envs.env.sim), "_images", count)
    envs.reset(seed=1)
    renderings = list[int]()
    for _ in range(4):
        views.clear()
        *_, infos = envs.step(envs.action_space.sample())
        assert ("final_obs" in infos) == (len(views) == 2)
        renderings.append(len(views))
    assert renderings == [1, 2, 1, 2]


def test_an_end_returns_the_first_observation_and_the_final_one() -> None:
    calm = {"random": {"noise": 0.0}}  # Resets draw numbers before the noise of observations.
    fields = {**calm, "episode_seconds": 0.1}, calm
    short, long = (make_vector("go1-velocity-flat", num_envs=8, env=env) for env in fields)
    assert short.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    first = [envs.reset(seed=7)[0] for envs in (short, long)]
    assert np.array_equal(first[0], first[1])
    assert first[0].dtype == np.float32
    assert first[0] in short.observation_space
    for step in range(1, 6):
        actions = short.action_space.sample()
        now, rewards, terminations, truncations, infos = short.step(actions)
        later, same_rewards, *_ = long.step(actions)
        assert np.array_equal(rewards, same_rewards)
        assert not terminations.any()
        if step < 5:
            assert not truncations.any()
            assert not infos
            continue
        assert truncations.all()
        assert infos["_final_obs"].all()
        assert np.array_equal(np.stack(infos["final_obs"]), later)
        assert not np.array_equal(now, later)
    for envs in (short, long):
        envs.close()
        envs.close()


def test_an_end_that_is_truncated_is_no_termination(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = copy_task(tmp_path / "tasks", "pole") / "env.py"
    method = (
        "    def truncated(self):\n        return self.episode_length_buf == 1 + self.env_ids\n"
    )
    path.write_text(path.read_text().replace("    def observe", f"{method}\n    def observe"))
    monkeypatch.chdir(tmp_path)
    envs = make_vector("pole-balance", num_envs=3)
    envs.reset(seed=1)
    for step in range(3):
        _, _, terminations, truncations, infos = envs.step(envs.action_space.sample())
        assert truncations[step]
        assert infos["_final_obs"].tolist() == truncations.tolist()
        assert not terminations.any()
    envs.close()


def test_observing_ends_leaves_memories_and_noise_as_they_are() -> None:
    seen: list[list[Any]] = [[], []]
    failures = 0
    for kept in seen:
        envs = make_vector("go1-velocity-flat", num_envs=8)
        if kept is seen[1]:
            envs.env.before_reset = None  # Nobody observes the ends.
        kept.append(envs.reset(seed=3)[0])
        envs.action_space.seed(3)
        for _ in range(60):
            result = envs.step(5 * envs.action_space.sample())
            assert not result[3].any()
            kept.append(result[0])
            failures += result[2].sum()
    assert 0 < failures < 8 * 60
    assert all(map(np.array_equal, *seen))


class CopiedBytes(TorchDispatchMode):
    """Counts the bytes of copies."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ in ("_to_copy", "clone", "copy_"):
            self.count += result.nbytes
        return result


def test_an_end_copies_no_constants() -> None:
    envs = make_vector("go1-velocity-rough", num_envs=2, env={"episode_seconds": 0.04})
    envs.reset(seed=1)
    assert envs.env.ground.planes.nbytes > 1_000_000  # pyright: ignore[reportAttributeAccessIssue]
    with CopiedBytes() as copied:
        for _ in range(3):
            envs.step(envs.action_space.sample())
        infos = envs.step(envs.action_space.sample())[4]
    assert infos["_final_obs"].all()
    assert copied.count < 500_000


def test_mistakes_are_named() -> None:
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("cartpole-balance", {"env": {"weight": 1}}, "weight"),
        ("cartpole-balance", {"observations": "camera"}, "observes: actor, critic"),
        ("cartpole-balance", {"device": "gpu"}, "device is 'gpu'"),
        ("cartpole-balance", {"engine": "mjx"}, "`engine` is 'mjx'"),
        ("cartpole-balance", {"num_threads": 0}, "--cpu-threads is 0"),
    ]
    for task, settings, message in cases:
        with pytest.raises(UserError, match=message):
            make_vector(task, **settings)
    with pytest.raises(UserError, match="`make_vector` several"):
        make("cartpole-balance", num_envs=2)
    envs = make_vector("cartpole-balance", num_envs=2)
    with pytest.raises(UserError, match="call reset"):
        envs.step(envs.action_space.sample())
    for seed in (-1, 0.5, [1, 2]):
        with pytest.raises((TypeError, gymnasium.error.Error), match=r"integer|greater"):
            envs.reset(seed=seed)  # pyright: ignore[reportArgumentType]
    first, again = (envs.reset(seed=seed)[0] for seed in (3, cast(int, np.int64(3))))
    assert np.array_equal(first, again)
    with pytest.raises(UserError, match="reset_mask"):
        envs.reset(options={"reset_mask": np.ones(2, bool)})
    with pytest.raises(UserError, match=r"\(3, 1\)"):
        envs.step(np.zeros((3, 1)))
    envs.close()
    with pytest.raises(UserError, match="after close"):
        envs.reset()


@pytest.mark.slow
def test_the_example_learns(tmp_path: Path) -> None:
    example = str(REPOSITORY / "examples/gymnasium_ppo.py")
    settings = ["inverted-pendulum-v5", "--num-envs", "16", "--steps", "12288"]
    done = subprocess.run(
        [sys.executable, example, *settings],
        check=True, cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    returns = [float(line.partition("return=")[2]) for line in done.stdout.splitlines()]
    assert returns[-1] > 2 * returns[0]
    assert not list(tmp_path.iterdir())
