"""Numbers that are not finite: found, dumped, explained and replayed, or reset and counted."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
import torch

from mjfleet.config import from_dict
from mjfleet.loggers.logger import Row
from mjfleet.rl.divergence import DivergedError
from mjfleet.rl.runner import Runner
from mjfleet.sim import make_simulation

from ..conftest import Run, only_run, rows
from ..env.test_env import BUNDLED, ENGINES, no_host_synchronisation
from ..launch.workers import write_noisy
from ..parts.test_contacts import build as build_balls
from ..parts.test_contacts import step as step_balls
from ..runs.test_damaged_runs import call

FOUND = BUNDLED["cartpole-balance"]
CartpoleEnv: Any = FOUND.load(FOUND.task.env_class)
STEPS = 8
AGENT = from_dict(
    FOUND.task.agent,
    {"num_steps_per_env": STEPS, "max_iterations": 4, "init_at_random_ep_len": False},
)


class SpoiltEnv(CartpoleEnv):
    """A cart-pole in which something goes wrong in world 3 at step 13, the first being 0."""

    spoil = ""
    world, at = 3, 13
    forever = False

    def setup(self) -> None:
        self.count = -1
        self.cache("count", "spoil", "at", "world", "forever")

    @property
    def where(self) -> torch.Tensor:
        return torch.arange(self.num_envs) == self.world

    def due(self, what: str) -> bool:
        now = self.count >= self.at if self.forever else self.count == self.at
        return self.spoil == what and now

    def apply(self, action: torch.Tensor) -> None:
        super().apply(action)
        self.count += 1
        if self.due("ctrl"):
            self.sim.ctrl.masked_fill_(self.where.unsqueeze(1), torch.inf)
        if self.due("physics"):
            # Finite, and more than a step of float32 or MuJoCo's checks can take.
            self.sim.qvel[:, 1] = torch.where(self.where, 1e37, self.sim.qvel[:, 1])

    def observe(self) -> dict[str, torch.Tensor]:
        groups = super().observe()
        if self.due("observation"):
            spoilt = groups["critic"].clone()
            spoilt[:, 2].masked_fill_(self.where, torch.nan)
            groups["critic"] = spoilt
        return groups

    def rewards(self) -> dict[str, torch.Tensor]:
        terms = super().rewards()
        if self.due("qvel"):
            self.sim.qvel[:, 1].masked_fill_(self.where, torch.nan)
        if self.due("reward"):
            return {name: term.masked_fill(self.where, torch.nan) for name, term in terms.items()}
        return terms


class BlindEnv(SpoiltEnv):
    """Neither observes nor rewards what has gone wrong in its state."""

    def observe(self) -> dict[str, torch.Tensor]:
        return {name: group.nan_to_num(0, 0, 0) for name, group in super().observe().items()}

    def rewards(self) -> dict[str, torch.Tensor]:
        return {name: term.nan_to_num(0, 0, 0) for name, term in super().rewards().items()}


def make_runner(
    kind: Any, engine: Any, dump: Path | None = None, num_envs: int = 8, **settings: Any
) -> Runner:
    cfg = replace(FOUND.task.env, num_envs=num_envs)
    env = kind(cfg, make_simulation(engine, kind.make_model(cfg), num_envs), seed=1)
    for name, value in settings.items():
        setattr(env, name, value)
    torch.manual_seed(1)
    return Runner(env, AGENT, "cpu", 1, FOUND.load, dump_to=dump)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a run has a dump."""
    return tmp_path / "failures" / "nan_rank0.npz"


def train(runner: Runner) -> list[Row]:
    """Train; return the rows."""
    rows: list[Row] = []
    runner.train(rows.append, lambda: None)
    return rows


def diverge(runner: Runner) -> str:
    with pytest.raises(DivergedError) as error:
        train(runner)
    return str(error.value)


def inspect(path: Path) -> str:
    code, shown = call("inspect", str(path))
    assert code == 0, shown
    return shown


def read_dump(path: Path) -> dict[str, Any]:
    with np.load(path, allow_pickle=False) as dump:
        return dict(dump)


@pytest.mark.parametrize(
    ("kind", "spoil", "engine", "what"),
    [
        # Spoilt in step 13, which is step 5 of the second rollout; seen before step 6.
        (SpoiltEnv, "observation", "warp", ("observation/critic[2] is nan in step 6", "`observe`")),
        (SpoiltEnv, "reward", "native", ("term/balance is nan in step 5", "`rewards` made it")),
        (BlindEnv, "ctrl", "native", ("start/ctrl[0] (actuator slide) is inf in step 5", "task")),
        (BlindEnv, "qvel", "warp", ("start/qvel[1] (joint hinge) is nan in step 6", "the task")),
        (BlindEnv, "physics", "warp", ("(joint ", "in step 5", "|qvel| up to ")),
    ],
)
def test_inspect_names_what_went_bad_first(
    kind: Any, spoil: str, engine: str, what: tuple[str, ...], path: Path
) -> None:
    message = diverge(make_runner(kind, engine, path, spoil=spoil))
    assert "iteration 2: " in message
    assert "is not finite in 1 of 8 worlds (3)" in message
    assert f"mjfleet inspect {path}" in message
    text = inspect(path)
    assert "iteration 2: 1 of 8 worlds" in text
    assert "world 3: " in text
    for piece in what:
        assert piece.lower() in text.lower()
    assert "|qvel| up to 0." not in text  # MuJoCo would have reset the world.


def test_a_number_spoilt_after_the_last_step_is_found(path: Path) -> None:
    message = diverge(make_runner(BlindEnv, "native", path, spoil="qvel", at=STEPS - 1))
    assert message.startswith("iteration 1: start/qvel[1] (joint hinge) is not finite")
    assert "qvel[1] (joint hinge) is nan in step 8" in inspect(path)


@pytest.mark.parametrize("engine", ["native", "warp"])
def test_a_dump_replays_in_plain_mujoco(path: Path, engine: str) -> None:

    class PushedEnv(SpoiltEnv):
        def apply(self, action: torch.Tensor) -> None:
            super().apply(action)
            if self.count >= 11:
                self.sim.xfrc_applied[:, 1, 0] = 5.0

    diverge(make_runner(PushedEnv, engine, path, spoil="observation"))
    dump = read_dump(path)
    assert dump["worlds"].tolist() == [3]
    assert dump["start/xfrc_applied"][:, 0, 1, 0].tolist() == [0] * 3 + [5] * 6
    model = CartpoleEnv.make_model(FOUND.task.env)
    data = mujoco.MjData(model)
    data.qpos, data.qvel = dump["start/qpos"][0, 0], dump["start/qvel"][0, 0]
    for step in range(STEPS):
        data.ctrl = np.clip(dump["action"][step, 0], -1, 1)
        data.xfrc_applied = dump["start/xfrc_applied"][step, 0]
        mujoco.mj_step(model, data, nstep=dump["decimation"].item())
        accuracy = 1e-12 if engine == "native" else 1e-4
        assert np.allclose(data.qpos, dump["end/qpos"][step, 0], atol=accuracy)
        assert np.allclose(data.qvel, dump["end/qvel"][step, 0], atol=10 * accuracy)
    assert dump["observation/actor"].shape == (STEPS + 1, 1, 5)
    assert np.isfinite(dump["observation/actor"]).all()
    assert dump["term/balance"].shape == dump["reward"].shape == (STEPS, 1)


def test_a_world_that_goes_bad_as_its_episode_ends_is_found(path: Path) -> None:
    runner = make_runner(BlindEnv, "warp", path, spoil="physics", at=4)
    runner.env.episode_length_buf[3] = runner.env.max_episode_length - 5
    # Which of the two overflows is a matter of rounding.
    assert re.search(
        r"q(pos|vel)\[.\] \(joint .*\) is not finite in 1 of 8 worlds \(3\)", diverge(runner)
    )
    arrays = read_dump(path)
    assert arrays["done"][:, 0].tolist() == [False] * 4 + [True] + [False] * 3
    assert not all(np.isfinite(arrays[f"end/{name}"][4, 0]).all() for name in ("qpos", "qvel"))
    assert np.isfinite(arrays["start/qpos"]).all()
    assert arrays["start/time"][5, 0] == 0


def test_of_many_worlds_those_that_went_bad_first_are_dumped(path: Path) -> None:

    class All(SpoiltEnv):
        def rewards(self) -> dict[str, torch.Tensor]:
            terms = super().rewards()
            return {n: t + torch.nan if self.count == 15 else t for n, t in terms.items()}

    runner = make_runner(All, "native", path, num_envs=20, world=17, spoil="observation")
    assert "critic[2] is not finite in 20 of 20 worlds (0, 1, 2, 3, 4, ...)" in diverge(runner)
    assert read_dump(path)["worlds"].tolist() == [17, *range(15)]
    text = inspect(path)
    assert text.index("world 17: ") < text.index("world 0: ")


def test_a_dump_that_cannot_be_written_hides_nothing(tmp_path: Path) -> None:
    (tmp_path / "failures").write_text("a file where the folder should be")
    path = tmp_path / "failures" / "nan_rank0.npz"
    message = diverge(make_runner(SpoiltEnv, "native", path, spoil="reward"))
    assert "term/balance is not finite in 1 of 8 worlds (3); no dump" in message


@pytest.mark.parametrize("content", [b"no archive", b"PK\x03\x04 cut off", None])
def test_what_is_no_dump_is_one_message(content: bytes | None, path: Path) -> None:
    path.parent.mkdir()
    if content is None:
        np.savez(path, model=np.zeros(3))
    else:
        path.write_bytes(content)
    code, shown = call("inspect", str(path))
    assert code == 2
    assert shown.startswith(f"error: {path}")
    assert len(shown.splitlines()) == 1
    assert "pickle" not in shown  # NumPy would advise to allow it.


@pytest.mark.parametrize(
    ("engine", "spoil"),
    [("native", "observation"), ("native", "physics"), ("warp", "qvel"), ("warp", "physics")],
)
def test_reset_continues_without_the_world_and_counts_it(engine: str, spoil: str) -> None:
    runner = make_runner(SpoiltEnv, engine, spoil=spoil, on_nan="reset")
    warnings: list[list[str]] = []
    rows: list[Row] = []

    def note(row: Row) -> None:
        rows.append(row)
        warnings.append(runner.warnings)

    runner.train(note, lambda: None)
    # MuJoCo's own engine resets a world that goes unstable by itself, and counts that.
    unstable = spoil == "physics" and engine == "native"
    assert [row["sim_warnings"] for row in rows] == [0, int(unstable), 0, 0]
    assert [row["nan_resets"] for row in rows] == [0, int(not unstable), 0, 0]
    (text,) = warnings.pop(1)
    assert text.startswith("BADQVEL in 1 worlds; a number" if unstable else "NAN 1 times; a state")
    assert warnings == [[]] * 3
    assert torch.cat([runner.env.sim.qpos, runner.env.sim.qvel], dim=1).isfinite().all()


@pytest.mark.parametrize(("engine", "device"), ENGINES)
def test_a_reset_world_has_failed_without_waiting_for_the_device(
    engine: Any, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = make_runner(SpoiltEnv, engine, at=2, spoil="qvel", on_nan="reset").env
    actions = torch.zeros(8, 1)
    env.step(actions)
    env.step(actions)
    env.episode_length_buf[3] = env.max_episode_length - 1
    with torch.inference_mode(), no_host_synchronisation(monkeypatch):
        observations, reward, dones, extras = env.step(actions)
    assert dones.tolist() == [False] * 3 + [True] + [False] * 4
    assert not extras["time_outs"].any(), "a value of nonsense must not be added to the reward"
    assert reward[3] == 0
    assert observations["actor"].isfinite().all()


class SteadyEnv(SpoiltEnv):
    """Each step is worth 1, and so are the metrics, unless something goes wrong."""

    def setup(self) -> None:
        super().setup()
        self.max_episode_length = 5

    def rewards(self) -> dict[str, torch.Tensor]:
        super().rewards()  # May spoil a speed.
        half = torch.full((self.num_envs,), 0.5)
        if self.due("reward") or self.due("overflow"):  # Each is finite, but not their sum.
            half = half.masked_fill(self.where, torch.nan if self.due("reward") else 3e38)
        return {"half": half, "other half": half}

    def metrics(self) -> dict[str, Any]:
        one = (self.sim.qvel[:, 1] * 0 + 1).float()  # NaN where the speed is not finite.
        return {"plain": one, "pair": (3 * one, 3 * one)}


@pytest.mark.parametrize("spoil", ["observation", "reward", "overflow", "qvel", "ctrl"])
def test_a_step_that_resets_its_world_counts_in_no_mean(spoil: str) -> None:
    runner = make_runner(SteadyEnv, "native", spoil=spoil, on_nan="reset")
    rows = train(runner)
    assert [row["nan_resets"] for row in rows] == [0, 1, 0, 0]
    for row in rows:
        assert (row["mean_return"], row["mean_episode_length"]) == (5.0, 5.0)
        assert (row["mean_reward"], row["task/plain"], row["task/pair"]) == (1.0, 1.0, 1.0)


def test_a_world_that_is_never_seen_well_is_reset_again_and_again() -> None:
    env = make_runner(SpoiltEnv, "native", at=0, spoil="observation", on_nan="reset").env
    env.forever = True  # pyright: ignore[reportAttributeAccessIssue]
    for step in range(3):
        observations, reward, dones, _ = env.step(torch.zeros(8, 1))
        assert observations["critic"][3].tolist() == [0.0] * 5
        assert dones.tolist() == [False] * 3 + [step > 0] + [False] * 4
        assert (reward[3] == 0) == (step > 0)
    assert [env.take_statistics()["nan_resets"][0] for _ in range(2)] == [2, 0]


class HugeEnv(CartpoleEnv):
    """Observes a number that is finite, and whose square is not."""

    factor = 1e30

    def observe(self) -> dict[str, torch.Tensor]:
        scale = torch.ones(5).index_fill(0, torch.tensor(2), self.factor)
        return {name: group * scale for name, group in super().observe().items()}


@pytest.mark.parametrize("on_nan", ["stop", "reset"])
def test_a_policy_that_is_not_finite_ends_the_run_and_is_to_learn_more_slowly(on_nan: str) -> None:
    runner = make_runner(SpoiltEnv, "native", on_nan=on_nan)
    with torch.no_grad():
        next(runner.alg.actor.mlp.parameters()).fill_(torch.nan)
    with pytest.raises(DivergedError, match=r"action\[0\] is not finite in 8 of 8 worlds") as error:
        train(runner)
    assert error.value.flags.endswith("learning-rate 0.0001")


@pytest.mark.parametrize(
    ("kind", "column", "flags"),
    [(BlindEnv, r"qvel\[1\] \(joint", "--on-nan reset"), (HugeEnv, r"loss is .*critic\[2\]", "")],
)
def test_a_run_that_diverges_names_the_column_the_rate_and_a_change(
    kind: Any, column: str, flags: str
) -> None:
    with pytest.raises(DivergedError, match=rf"{column}.*; the learning rate is 0\.0") as error:
        train(make_runner(kind, "native", spoil="qvel"))
    assert error.value.flags == flags


@pytest.mark.parametrize(("engine", "field"), [("native", "qpos"), ("warp", "qvel")])
def test_nothing_of_a_nan_outlives_a_reset_or_reaches_another_world(
    engine: Any, field: str
) -> None:
    spoilt, clean = build_balls(engine, 3), build_balls(engine, 3)
    spoilt.on_nan = "reset"
    step_balls(spoilt, 5)
    spoilt.sim.qvel[0] = spoilt.sim.qvel[2] = 0.1
    getattr(spoilt.sim, field)[1] = torch.nan
    step_balls(spoilt)
    everywhere = torch.ones(3, dtype=torch.bool)
    spoilt.sim.reset(everywhere)
    spoilt.sim.forward(everywhere)
    for _ in range(20):
        step_balls(spoilt)
        step_balls(clean)
        assert torch.equal(spoilt.sim.qpos, clean.sim.qpos)


def write_spoilt(folder: Path, when: str) -> None:
    """Write the task `noisy`, in whose 30th step world 5 earns no number if something is true."""
    env = write_noisy(folder) / "env.py"
    spoilt = f"torch.where((torch.arange(8) == 5) & (self.steps == 30) & ({when}), torch.nan, 0.0)"
    env.write_text(env.read_text().replace("torch.zeros(self.num_envs)", spoilt))


@pytest.mark.slow
def test_only_the_rank_that_is_in_trouble_leaves_a_dump(run: Run, tmp_path: Path) -> None:
    write_spoilt(tmp_path, "RANK == 1")
    result = run("train", "noisy", "--cpu-workers", "2")
    assert result.returncode == 1
    assert "on rank 1 term/nothing is not finite in 1 of 8 worlds (5)" in result.stderr
    dumps = list((only_run(tmp_path, "noisy") / "failures").glob("nan*"))
    assert [dump.name for dump in dumps] == ["nan_rank1.npz"]
    assert f"mjfleet inspect {dumps[0]}" in result.stderr
    assert read_dump(dumps[0])["worlds"].tolist() == [5]
    shown = run("mjfleet", "inspect", "latest")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "term/nothing is nan" in shown.stdout


def test_the_command_that_continues_does_not_fail_again(run: Run, tmp_path: Path) -> None:
    write_spoilt(tmp_path, "True")
    few = ("--gpu-ids", "None", "--agent.max-iterations", "3", "--agent.save-interval", "1")
    ended = run("train", "noisy", *few)
    assert (ended.returncode, "the learning rate is " in ended.stderr) == (1, True)
    last = ended.stdout.splitlines()[-1]
    assert last.startswith("it would fail again as it was; resume with: ")
    result = run("train", "noisy", *last.partition(" noisy ")[2].split())
    assert (result.returncode, "warning: NAN 1 times" in result.stdout) == (0, True), result.stdout
    assert [row["nan_resets"] for row in rows(only_run(tmp_path, "noisy"))] == ["0", "1", "0"]
