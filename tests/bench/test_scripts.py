"""The scripts in benchmarks/, tiny; mjlab's driver with a stand-in: mjlab is too large for CI."""

import importlib
import json
import math
import runpy
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace as Space
from typing import Any

import pytest
import torch

from mjfleet.bench.result import Spread
from mjfleet.config import AgentConfig, EnvConfig, TrainConfig, to_dict
from mjfleet.launch.devices import Devices

from ..conftest import Run
from ..env.test_env import BUNDLED
from .tiny import BENCHMARKS, measured, run_script


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scripts, as modules."""
    monkeypatch.syspath_prepend(BENCHMARKS)


@dataclass
class Network:
    """A network's settings, as mjlab has them."""

    hidden_dims: tuple[int, ...] = ()
    class_name: str = "MLPModel"
    distribution_cfg: dict[str, Any] | None = None


@dataclass
class Algorithm:
    """PPO's settings; mjlab has more."""

    gamma: float = 0.5


class MjlabRunner:
    """A runner that logs two steps of each of two iterations."""

    def __init__(self) -> None:
        self.logger = Space(process_env_step=lambda *_: None, log=lambda **_: None)

    def learn(self) -> None:
        for it in range(2):
            for reward in (1.0, 2.0):
                self.logger.process_env_step(torch.tensor([reward + it]), None, None)
            self.logger.log(it=it, collect_time=0.25, learn_time=0.5)


def test_the_driver_gives_our_settings_and_tells_each_iteration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mujoco = Space(timestep=0.02, integrator="euler")
    env = Space(
        decimation=1, episode_length_s=1.0, scale_rewards_by_dt=True, sim=Space(mujoco=mujoco),
        scene=Space(num_envs=1), rewards={"smooth_reward": Space(func=mjlabs_reward)},
    )  # fmt: skip
    agent = Space(actor=Network(), critic=Network(), algorithm=Algorithm())
    registered: dict[str, Any] = {}
    mjlab = Space(
        load_env_cfg={"Mjlab-Cartpole-Balance": env}.get, load_rl_cfg=lambda task: agent,
        load_runner_cls=lambda task: None, MjlabOnPolicyRunner=MjlabRunner,
        register_mjlab_task=lambda name, env, **more: registered.update(more, name=name, env=env),
        main=lambda: registered["runner_cls"]().learn(),
    )  # fmt: skip
    for name in ("tasks", "tasks.registry", "scripts.train", "rl"):
        monkeypatch.setitem(sys.modules, f"mjlab.{name}", mjlab)
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setenv("MUJOCO_GL", "disabled")
    config = TrainConfig(
        env=EnvConfig(num_envs=7, decimation=5, episode_seconds=50.0),
        agent=AgentConfig(max_iterations=2),
    )
    worker = {"config": to_dict(config), "devices": ["cpu"], "run_dir": "logs"}
    task = {"name": "Mjlab-Cartpole-Balance", "timestep": 0.01, "integrator": "implicitfast"}
    written: list[dict[str, Any]] = []
    importlib.import_module("peer_driver").train_mjlab(worker, task, written.append)
    assert sys.argv[1:] == [registered["name"], "--log-root", "logs", "--gpu-ids", "None"]
    assert (registered["env"], registered["rl_cfg"]) == (env, agent)
    assert (env.scene.num_envs, env.decimation, env.episode_length_s) == (7, 5, 50.0)
    assert (mujoco.timestep, mujoco.integrator) == (0.01, "implicitfast")
    assert not env.scale_rewards_by_dt
    assert (agent.algorithm.gamma, agent.max_iterations) == (0.99, 2)
    assert agent.actor.hidden_dims == [256, 128, 64]
    assert "init_std" in agent.actor.distribution_cfg
    control = Space(action=torch.tensor([[0.0], [0.5], [-1.0]]))
    earned = env.rewards["smooth_reward"].func(Space(action_manager=control), None, None)
    torch.testing.assert_close(earned, torch.tensor([1.0, 0.95, 0.8]))
    first, *iterations = written
    assert any("algorithm.desired_kl" in setting for setting in first["lacks"])
    assert iterations == [
        {"iteration": n, "collect_seconds": 0.25, "learn_seconds": 0.5, "mean_reward": n + 0.5}
        for n in (1, 2)
    ]


def test_nothing_but_what_the_driver_writes_reaches_its_output() -> None:
    code = "import peer_driver as d; write = d.take_output(); print('chatter'); write({'a': 1})"
    shown = subprocess.check_output([sys.executable, "-c", code], cwd=BENCHMARKS, text=True)
    assert shown == '{"a": 1}\n'


def mjlabs_reward(env: Any, cart_cfg: Any, hinge_cfg: Any) -> torch.Tensor:
    return (4 + 1 - 0.9 * env.action_manager.action.squeeze(-1) ** 2) / 5


@pytest.mark.parametrize(
    ("script", "flags", "words"),
    [
        ("peer.py", ["mjlab", "hopper-v5"], "no counterpart of hopper-v5"),
        ("peer.py", ["mjlab"], "--mjlab FOLDER"),
        ("gpu.py", ["--gpu-ids", "None", "--num-envs", "0"], "--num-envs"),
        ("gpu.py", [], "--gpu-ids 0: "),
        ("learning.py", ["--until", "x = 1"], "task/velocity_error <"),
        ("cameras.py", ["ant-v5", "--camera", "eye", "--gpu-ids", "None"], "no camera 'eye'"),
        ("reference.py", ["--output", "."], "reference.json is no"),
        ("reference.py", ["--agent.algorithm.num-mini-batches", "2"], "num-mini-batches: "),
    ],
)
def test_a_mistake_is_told_and_leaves_nothing(
    script: str, flags: list[str], words: str, here: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(sys, "argv", [script, *flags])
    for name in ("CUDA_VISIBLE_DEVICES", "PATH"):
        monkeypatch.setenv(name, "")
    content = '{"samples": [{"task": "cartpole-balance"}]}'
    Path("reference.json").write_text(content)
    with pytest.raises(SystemExit, match="2"):
        runpy.run_path(str(BENCHMARKS / script), run_name="__main__")
    assert words in capsys.readouterr().err
    assert [path.read_text() for path in here.iterdir()] == [content]


@pytest.mark.slow
def test_a_metric_that_does_not_exist_is_named_before_training(tmp_path: Path) -> None:
    result = run_script(
        tmp_path, "learning.py", "--gpu-ids", "None", "--num-envs", "16", "--peer", "none",
        "--iterations", "1000000", "--until", "mean_reward > 2", "task/speed < 1",
    )  # fmt: skip
    assert result.returncode == 2
    assert all(name in result.stderr for name in ("task/speed", "mean_reward", "loss/value"))
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_stock_rsl_rl_trains_the_same_in_turn(run: Run, tmp_path: Path) -> None:
    data = measured(run, tmp_path, "peer.py", "rsl_rl", "--num-envs", "16")
    (sample,) = data["samples"]
    for who in ("mjfleet", "rsl_rl"):
        found = sample[who]
        assert len(found["iterations"]) == 3
        seconds = [iteration["seconds"] for iteration in found["iterations"]]
        assert seconds == sorted(seconds)
        assert found["first_iteration_seconds"] == seconds[0] > 0
        elapsed = seconds[2] - seconds[0]
        assert found["steps_per_second"] == pytest.approx(2 * 16 * 32 / elapsed)
        assert found["peak_memory"] > 2**27
    worlds, ours, theirs, ratio = data["tables"][0]["rows"][0]
    assert worlds == "16"
    assert ratio["median"] == pytest.approx(ours["median"] / theirs["median"])
    worlds, ours, theirs, ratio = data["tables"][1]["rows"][0]
    assert ratio["median"] == pytest.approx(theirs["median"] / ours["median"])


@pytest.mark.slow
def test_all_sections_for_a_gpu_run_on_a_cpu(tmp_path: Path) -> None:
    flags = ("--gpu-ids", "None", "--num-envs", "64", "--seconds", "1000")
    result = run_script(tmp_path, "gpu.py", *flags)
    assert result.returncode == 0, result.stderr
    folder = tmp_path / "logs/bench"
    data = json.loads((folder / "gpu-cartpole-balance-warp-cpu.json").read_text())
    assert (folder / "gpu-cartpole-balance-warp-cpu.md").read_text() in result.stdout
    found = {sample["section"]: sample for sample in data["samples"]}
    assert [*found] == ["trains", "speed", "captured", "profile", "same", "peer"]
    assert {sample["status"] for sample in found.values()} == {"ok"}
    rows = {section: sample["rows"] for section, sample in found.items()}
    (trained,) = rows["trains"]
    assert trained["warnings"] is None
    (speeds,) = rows["speed"]
    assert speeds["environments"] == 64
    assert speeds["engine"] > speeds["end to end"] > 0
    updates, physics = rows["captured"][:2], rows["captured"][2:]
    assert {row["ms"] for row in updates} == {"needs CUDA"}
    assert all(row["ms"] > 0 for row in physics)
    *longest, iteration = rows["profile"]
    assert len(longest) == 10
    times = [row["ms"] for row in longest]
    assert times == sorted(times, reverse=True)
    assert iteration["idle"] == "needs CUDA"
    for row in rows["same"]:
        assert row["same seed"] == row["continued"] == 0.0
    assert "--mjlab" in rows["peer"][0][""]


@pytest.mark.slow
def test_a_section_that_fails_or_takes_too_long_does_not_end_the_others(tmp_path: Path) -> None:
    (tmp_path / "mjlab/bin").mkdir(parents=True)
    (tmp_path / "mjlab/bin/python").symlink_to("/bin/false")
    flags = ("--gpu-ids", "None", "--num-envs", "4", "--mjlab", "mjlab", "--iterations", "1")
    run_script(tmp_path, "gpu.py", *flags, "--sections", "peer", "captured", "--output", "failed")
    failed, whole = samples_of(tmp_path / "failed")
    assert failed["status"] == "ended with 1"
    assert "exit code 1" in failed["rows"][0]["failed"]
    assert whole["status"] == "ok"
    flags = (*flags, "--seconds", "0.01", "--sections", "trains", "same", "--output", "late")
    run_script(tmp_path, "gpu.py", *flags)
    assert {sample["status"] for sample in samples_of(tmp_path / "late")} == {"stopped after 0 s"}


def samples_of(folder: Path) -> list[dict[str, Any]]:
    (file,) = folder.glob("*.json")
    return json.loads(file.read_text())["samples"]


@pytest.mark.slow
def test_another_library_learns_in_turn(run: Run, tmp_path: Path) -> None:
    flags = ("--peer", "rl_games", "--num-envs", "16", "--iterations", "10")
    data = measured(run, tmp_path, "learning.py", further=flags)
    assert [sample["who"] for sample in data["samples"]] == ["mjfleet", "rl_games"]
    ours, theirs = ([row["loss/value"] for row in s["iterations"]] for s in data["samples"])
    assert len(ours) == len(theirs) == 10
    assert ours != theirs
    assert "rl_games" in data["versions"]
    (plot,) = data["plots"]
    assert (tmp_path / "logs/bench" / plot).is_file()


@pytest.mark.slow
def test_sac_learns_from_as_many_samples(run: Run, tmp_path: Path) -> None:
    flags = ("--peer", "sac", "--num-envs", "16", "--iterations", "10")
    data = measured(run, tmp_path, "learning.py", further=flags)
    ours, theirs = (sample["iterations"] for sample in data["samples"])
    assert [len(ours), len(theirs)] == [10, math.ceil(10 * 16 * 32 / (96 * 3))]
    assert "loss/temperature" in theirs[-1]
    assert "loss/temperature" not in ours[-1]


def test_sac_has_a_gpus_numbers_on_a_gpu() -> None:
    learning, found = importlib.import_module("learning"), BUNDLED["cartpole-balance"]
    for gpus, envs, steps in (((), 96, 3), ((0,), 1024, 8)):
        setup = Space(found=found, devices=Devices(indices=gpus))
        config = learning.with_sac(setup, found.defaults())
        assert (config.env.num_envs, config.agent.num_steps_per_env) == (envs, steps)


@pytest.mark.slow
def test_a_camera_renders_all_kinds_in_all_sizes(run: Run, tmp_path: Path) -> None:
    data = measured(
        run,
        tmp_path,
        "cameras.py",
        "cartpole-balance-depth",
        "--num-envs",
        "4",
        "--sizes",
        "9",
        "10",
    )
    views = [f"4 x {size} x {size}, " for size in (9, 10)]
    kinds = "depth", "rgb", "segmentation", "depth and rgb"
    wanted = [view + kind for view in views for kind in kinds for _ in range(2)]
    assert [sample["view"] for sample in data["samples"]] == wanted
    assert all(0 < sample["seconds"] < sample["step_seconds"] * 1e3 for sample in data["samples"])
    assert [row[0] for row in data["tables"][0]["rows"]] == wanted[::2]


@pytest.mark.slow
def test_learning_says_when_all_conditions_held(run: Run, tmp_path: Path) -> None:
    both = ("--until", "mean_reward > 0.0", "learning_rate<1")
    data = measured(
        run, tmp_path, "learning.py", "--num-envs", "16", "--peer", "none", *both,
        further=("--iterations", "12", "--seed", "7", "--repeats", "2"),
    )  # fmt: skip
    first, second = (sample["iterations"] for sample in data["samples"])
    assert len(first) == len(second) == 12
    assert first[0]["mean_reward"] != second[0]["mean_reward"]
    (table,) = data["tables"]
    ((who, _, _, count, samples, seconds),) = table["rows"]
    assert (who, count) == ("mjfleet", "2 of 2")
    assert samples["low"] == samples["high"] == 10 * 16 * 32 / 1e6
    assert seconds["low"] == min(rows[9]["seconds"] for rows in (first, second))
    assert seconds["high"] == max(rows[9]["seconds"] for rows in (first, second))
    (plot,) = data["plots"]
    assert (tmp_path / "logs/bench" / plot).is_file()


@pytest.mark.slow
def test_reference_runs_are_added_to_those_of_other_tasks(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "logs/bench"
    folder.mkdir(parents=True)
    other = {
        "task": "another", "seed": 3, "steps": 2.0, "minutes": 1.0, "return": 5.0,
        "policy": {"return": 6.0, "task/error": 0.25}, "threads": 2, "commit": "abc",
        "curve": [[1, 2], [4, 5]],
    }  # fmt: skip
    steps = 36 * 128 * 32 / 1e6
    same = {**other, "task": "cartpole-balance", "steps": steps}
    longer = {**same, "steps": 2.0}
    samples = [other, longer, same, {**same, "seed": 7}]
    (folder / "reference.json").write_text(json.dumps({"samples": samples}))
    data = measured(
        run, tmp_path, "reference.py",
        further=("--iterations", "36", "--seed", "7", "--episodes", "4"),
    )  # fmt: skip
    assert data["samples"][:2] == [other, same]
    (sample,) = data["samples"][2:]
    assert (sample["task"], sample["seed"]) == ("cartpole-balance", 7)
    curve, returns = sample["curve"]
    assert curve[-1] == sample["steps"] == steps
    assert min(returns) < sample["return"] < max(returns)
    (table,) = data["tables"]
    first, second = table["rows"]
    assert first == ["another", *first[1:5], "error 0.250", "1", "2", "abc"]
    assert second[0] == "cartpole-balance"
    assert second[4]["low"] == min(6.0, sample["policy"]["return"]) > 0
    assert second[6] == "2"
    assert (folder / "reference.png").is_file()


def learned(*rewards: float) -> list[dict[str, Any]]:
    """A run with an iteration every two seconds."""
    return [
        {"seconds": 2.0 * n, "samples": 0.001 * n, "mean_reward": reward}
        for n, reward in enumerate(rewards, 1)
    ]


def test_a_run_is_good_once_it_stays_so() -> None:
    learning = importlib.import_module("learning")
    early, late, never = learned(1, 1, 1), learned(1, 0.5, 1), learned(1, 1, 0.5)
    one = Spread(0.001, 0.001, 0.001), Spread(2.0, 2.0, 2.0)
    for runs, *good in (
        ([early, late], "2 of 2", Spread(0.002, 0.001, 0.003), Spread(4.0, 2.0, 6.0)),
        ([early, never], "1 of 2", *one),
        ([never], "0 of 1", None, None),
    ):
        assert learning.table_of({"best": [early], "others": runs}, []).rows[1][-3:] == good


def test_a_condition_holds_for_the_mean_of_ten_iterations_and_all_at_once() -> None:
    learning = importlib.import_module("learning")

    def when(conditions: list[str], **metrics: list[float]) -> int | None:
        rows = [dict(zip(metrics, row, strict=True)) for row in zip(*metrics.values(), strict=True)]
        return learning.reached([learning.condition(text) for text in conditions], rows)

    below = ["error < 0.5"]
    assert when(below, error=[1.0] * 10 + [0.0] + [1.0] * 9) is None
    # Six of ten below, from iteration 15 on.
    assert when(below, error=[1.0] * 10 + [0.0] * 10) == 15
    assert when(below, error=[0.5] * 20) is None
    assert when(below, error=[0.0] * 10) == 9
    assert when(below, error=[math.nan] * 2 + [0.0] * 12) == 11

    both = ["up>-1e-1", " down <+2. "]
    apart = {"up": [0.0] * 10 + [-1.0] * 20, "down": [5.0] * 20 + [0.0] * 10}
    assert when(both, **apart) is None
    assert when(both, up=[0.0] * 30, down=[5.0] * 15 + [0.0] * 15) == 21
