"""Training from the command line: what a run leaves behind, and that it can be repeated."""

import json
import math
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from mjfleet.cli.run_command import run_command
from mjfleet.cli.train import train

from ..conftest import Run, Start, WarmCommand, only_run, rows, write_task

SMALL = (
    "--env.num-envs", "16", "--env.episode-seconds", "1", "--agent.num-steps-per-env", "8",
    "--agent.max-iterations", "5", "--agent.save-interval", "2",
)  # fmt: skip


@pytest.mark.parametrize("engine", ["native", "warp"])
def test_a_run_leaves_a_directory_that_explains_it(run: Run, tmp_path: Path, engine: str) -> None:
    result = run(
        "train", "cartpole-balance", *SMALL, "--engine", engine, "--agent.run-name", "first",
        "--eval-interval", "3", "--eval-envs", "5",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    run_dir = only_run(tmp_path)
    assert run_dir.name.endswith("_first")
    lines = result.stdout.splitlines()
    shown = f"run directory: {run_dir.relative_to(tmp_path)}"
    assert [lines[0], lines[-1]] == [shown, shown]
    assert f"building 16 environments: {engine} engine on cpu" in lines[2]
    assert [line.split()[0] for line in lines[3:-1]] == [f"iteration={i}/5" for i in range(1, 6)]

    record = json.loads((run_dir / "run.json").read_text())
    assert record["status"] == "finished"
    assert record["iterations"] == 5
    assert record["task"] == "cartpole-balance"
    assert record["argv"][:2] == ["train", "cartpole-balance"]
    assert record["plan"]["engine"] == engine
    assert record["started"] <= record["ended"]
    assert {"torch", "mujoco", "mujoco-warp", "rsl-rl-lib"} <= set(record["versions"])
    assert record["seed"] == 1
    assert all(len(state["commit"]) == 40 for state in record["git"].values())

    config = yaml.safe_load((run_dir / "config.yaml").read_text())
    assert config["env"]["num_envs"] == 16
    assert config["agent"]["algorithm"]["clip_param"] == 0.2

    table = rows(run_dir)
    assert [row["iteration"] for row in table] == ["1", "2", "3", "4", "5"]
    assert table[-1]["total_steps"] == str(5 * 8 * 16)
    for column in (
        "steps_per_second", "mean_return", "mean_episode_length", "reward/balance", "loss/value",
        "loss/surrogate", "loss/entropy", "learning_rate", "action_std", "collect_seconds",
        "learn_seconds",
    ):  # fmt: skip
        assert column in table[0]
    # Episodes of 20 steps: the first whole ones end within 40 steps, in the last iterations.
    assert table[0]["mean_return"] == ""
    assert float(table[-1]["mean_episode_length"]) == 20
    assert 0 < float(table[-1]["mean_return"]) < 20
    assert [row["eval/length"] for row in table] == ["", "", "20.0", "", "20.0"]
    assert [line.count(" eval=") for line in lines[3:-1]] == [0, 0, 1, 0, 1]

    names = sorted(path.name for path in (run_dir / "checkpoints").iterdir())
    assert names == ["best.pt", "final_model.pt", "model_2.pt", "model_4.pt", "model_5.pt"]
    final, newest = (run_dir / "checkpoints" / name for name in ("final_model.pt", "model_5.pt"))
    assert final.samefile(newest)
    assert list(run_dir.glob("events.out.tfevents.*"))
    assert [path.name for path in tmp_path.iterdir()] == ["logs"]


def test_the_same_seed_gives_the_same_weights_bit_for_bit(run: Run, tmp_path: Path) -> None:
    weights = []
    for name, seed in (("a", "3"), ("b", "3"), ("c", "4")):
        result = run(
            "train", "cartpole-swingup", *SMALL, "--agent.experiment-name", name,
            "--agent.seed", seed, "--agent.logger", "none",
        )  # fmt: skip
        assert result.returncode == 0, result.stderr
        checkpoint = only_run(tmp_path, name) / "checkpoints" / "model_5.pt"
        weights.append(torch.load(checkpoint, weights_only=True)["actor_state_dict"])
    first, second, other = weights
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)


def test_a_run_can_be_repeated_from_its_config_file(run: Run, tmp_path: Path) -> None:
    assert run("train", "cartpole-balance", *SMALL, "--agent.seed", "7").returncode == 0
    first = only_run(tmp_path)
    again = run(
        "train", "cartpole-balance", "--config", str(first / "config.yaml"), "--log-root", "more"
    )
    assert again.returncode == 0, again.stderr
    (second,) = (tmp_path / "more" / "cartpole-balance").iterdir()
    for column in ("mean_reward", "loss/value", "learning_rate"):
        assert [row[column] for row in rows(first)] == [row[column] for row in rows(second)]


def test_a_checkpoint_loads_into_rsl_rls_own_runner(run: Run, tmp_path: Path) -> None:
    from rsl_rl.runners import OnPolicyRunner

    from mjfleet.registry import discover
    from mjfleet.rl.build_algorithm import rsl_rl_config

    from ..env.test_env import build_task

    assert run("train", "cartpole-balance", *SMALL).returncode == 0
    path = only_run(tmp_path) / "checkpoints" / "model_4.pt"
    env = build_task("cartpole-balance", "native", "cpu")
    found = discover({}).find("cartpole-balance")
    stock = OnPolicyRunner(env, rsl_rl_config(found.task.agent, found.load), device="cpu")
    stock.load(str(path))
    assert stock.current_learning_iteration == 4
    saved = torch.load(path, weights_only=True)["actor_state_dict"]
    assert all(torch.equal(saved[k], v) for k, v in stock.alg.actor.state_dict().items())


SPOILT_CONFIG = """
from mjfleet.config import EnvConfig, Task
TASKS = {"spoilt": Task(summary="Spoilt.", env=EnvConfig(num_envs=8, decimation=2),
                        env_class="env:SpoiltEnv", num_actions=ACTIONS)}
"""
SPOILT_ENV = """
import torch
from mjfleet.env import Env

class SpoiltEnv(Env):
    model_file = "model.xml"

    def setup(self):
        self.steps = self.add_state("steps", shared=True)

    def reset_worlds(self, mask):
        pass

    def apply(self, action):
        self.sim.ctrl[:] = action
        self.steps += 1
        if self.steps == RAISE_AT:
            raise RuntimeError("the gripper broke")

    def observe(self):
        state = self.sim.qpos.clone()
        return {"actor": state, "critic": state}

    def rewards(self):
        return {"nothing": torch.zeros(self.num_envs)}
"""


def write_spoilt(folder: Path, raise_at: int = -1, actions: int = 2) -> Path:
    """Write a task that fails at a given step; returns the file of its environment."""
    model = (Path(__file__).parents[1] / "models/arm.xml").read_text()
    env = SPOILT_ENV.replace("RAISE_AT", str(raise_at))
    config = SPOILT_CONFIG.replace("ACTIONS", str(actions))
    write_task(folder / "tasks", "spoilt", config, env, model)
    return folder / "tasks/spoilt/env.py"


@pytest.fixture
def spoilt(run: Run, tmp_path: Path) -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """Train a task that fails at a given step."""

    def train_it(**spoilt: int) -> Any:
        write_spoilt(tmp_path, **spoilt)
        return run("train", "spoilt")

    return train_it


def test_an_exception_fails_the_run_with_its_traceback(spoilt: Any, tmp_path: Path) -> None:
    result = spoilt(raise_at=30)
    assert result.returncode == 1
    assert "RuntimeError: the gripper broke" in result.stderr
    run_dir = only_run(tmp_path, "spoilt")
    assert result.stdout.splitlines()[-1] == f"run directory: {run_dir.relative_to(tmp_path)}"
    record = json.loads((run_dir / "run.json").read_text())
    assert (record["status"], record["iterations"]) == ("failed", 1)
    assert record["ended"]


def test_declared_sizes_are_checked_when_the_environment_is_built(
    spoilt: Any, tmp_path: Path
) -> None:
    result = spoilt(actions=5)
    assert result.returncode == 2
    assert "declares num_actions=5, but the environment has 2" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["tasks"]


MIRROR = """

def mirror(env, obs, actions):
    if obs is not None:
        obs = torch.cat((obs, obs.apply(torch.neg)))
    return obs, None if actions is None else torch.cat((actions, -actions))
"""


def test_symmetry_is_a_function_of_the_task_folder(run: Run, tmp_path: Path) -> None:
    model = (Path(__file__).parents[1] / "models/arm.xml").read_text()
    env = SPOILT_ENV.replace("RAISE_AT", "-1") + MIRROR
    write_task(tmp_path / "tasks", "spoilt", SPOILT_CONFIG.replace("ACTIONS", "2"), env, model)
    (tmp_path / "mirror.yaml").write_text(
        "agent: {algorithm: {symmetry_cfg: {data_augmentation_func: 'env:mirror'}}}"
    )
    result = run(
        "train", "spoilt", "--config", "mirror.yaml", "--agent.max-iterations", "2",
        "--agent.algorithm.symmetry-cfg.use-data-augmentation",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert all(float(row["loss/symmetry"]) > 0 for row in rows(only_run(tmp_path, "spoilt")))
    mirror = tmp_path / "mirror.yaml"
    mirror.write_text(mirror.read_text().replace("env:mirror", "env:SpoiltEnv"))
    result = run("train", "spoilt", "--config", "mirror.yaml")
    assert result.returncode == 2
    assert "env:SpoiltEnv: it must be a function" in result.stderr


CROWDED = """
<mujoco>
  <worldbody>
    <geom type="plane" size="2 2 0.1"/>
    <body pos="0 0 0.1"><joint name="lift" type="slide" axis="0 0 1"/>
      <geom type="box" size="0.1 0.1 0.11"/></body>
  </worldbody>
  <actuator><motor joint="lift"/><motor joint="lift"/></actuator>
</mujoco>
"""


def test_lost_contacts_are_reported_and_then_have_room(run: Run, tmp_path: Path) -> None:
    config = SPOILT_CONFIG.replace("ACTIONS", "2")
    env = SPOILT_ENV.replace("RAISE_AT", "-1")
    write_task(tmp_path / "tasks", "spoilt", config, env, CROWDED)
    result = run(
        "train", "spoilt", "--engine", "warp", "--env.nconmax", "1", "--agent.max-iterations", "3"
    )
    assert result.returncode == 0, result.stderr
    first, *later = rows(only_run(tmp_path, "spoilt"))
    assert int(first["sim_warnings"]) >= 8
    assert float(first["contacts"]) > int(first["nconmax"]) == 1
    assert [int(row["sim_warnings"]) for row in later] == [0, 0]
    assert all(float(row["contacts"]) <= int(row["nconmax"]) for row in later)
    told = [line for line in result.stdout.splitlines() if "--env.nconmax was 1" in line]
    assert told
    assert f"{math.ceil(float(first['contacts']))} would have sufficed" in told[0]


def test_a_run_that_has_trained_is_kept_whatever_the_task_raises(run: Run, tmp_path: Path) -> None:
    model = (Path(__file__).parents[1] / "models/arm.xml").read_text()
    raised = "from mjfleet.errors import UserError; raise UserError('late')"
    env = SPOILT_ENV.replace('raise RuntimeError("the gripper broke")', raised)
    env = env.replace("RAISE_AT", "30")
    write_task(tmp_path / "tasks", "spoilt", SPOILT_CONFIG.replace("ACTIONS", "2"), env, model)
    result = run("train", "spoilt", "--agent.save-interval", "1")
    assert result.returncode == 1
    checkpoints = only_run(tmp_path, "spoilt") / "checkpoints"
    assert [path.name for path in checkpoints.iterdir()] == ["model_1.pt"]


FAULTS = {
    "not a subclass of Env": {"env.py": "class SpoiltEnv: pass"},
    "has no `SpoiltEnv`": {"env.py": "import torch"},
    "lacks apply, rewards": {
        "env.py": SPOILT_ENV.replace("apply", "aply").replace("rewards", "reward")
    },
    "model.xml: ": {"model.xml": "<mujoco><worldbody></mujoco>"},
    "no actuator": {"model.xml": "<mujoco><worldbody/></mujoco>"},
    "qvel is not finite where episodes begin": {
        "env.py": SPOILT_ENV.replace("        pass", "        self.sim.qvel[:] = torch.nan")
    },
}


@pytest.mark.parametrize("message", FAULTS)
def test_a_fault_in_a_task_folder_is_one_message_and_leaves_nothing(
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arm = (Path(__file__).parents[1] / "models/arm.xml").read_text()
    env = SPOILT_ENV.replace("RAISE_AT", "-1")
    config = SPOILT_CONFIG.replace("ACTIONS", "None")
    folder = write_task(tmp_path / "tasks", "spoilt", config, env, arm)
    for name, text in FAULTS[message].items():
        (folder / name).write_text(text.replace("RAISE_AT", "-1"))
    monkeypatch.chdir(tmp_path)
    assert run_command(train, ["spoilt", "--gpu-ids", "None"]) == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["tasks"]


def test_a_config_file_knows_where_its_task_was_found(
    spoilt: Any, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert spoilt(raise_at=1).returncode == 1
    (tmp_path / "tasks").rename(tmp_path / "robots")
    small = ("--tasks-dir", "robots", "--agent.max-iterations", "1", "--log-root", "first")
    run("train", "spoilt", *small)
    ((run_dir,),) = [list(e.iterdir()) for e in (tmp_path / "first").iterdir()]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    config = str(run_dir / "config.yaml")
    assert run_command(train, ["spoilt", "--config", config, "--dry-run"]) == 0


def wait_for_iteration(process: WarmCommand, number: int) -> None:
    while not process.stdout.readline().startswith(f"iteration={number}/"):
        assert process.poll() is None, "training ended too early"


@pytest.mark.parametrize(
    ("number", "code", "times"),
    [
        (signal.SIGINT, 130, 2),
        (signal.SIGTERM, 143, 1),
        (signal.SIGUSR1, 143, 1),  # As a scheduler announces the end of a job.
    ],
)
def test_a_signal_finishes_the_iteration_and_saves_it(
    start: Start, tmp_path: Path, number: signal.Signals, code: int, times: int
) -> None:
    process = start("train", "cartpole-balance", "--env.num-envs", "64")
    wait_for_iteration(process, 2)
    for _ in range(times):  # `uv run` may pass on a signal that the whole group has received.
        process.send_signal(number)
        time.sleep(0.01)
    rest, errors = process.communicate()
    assert process.returncode == code, errors
    assert errors == ""
    assert rest.count(f"{number.name}: stopping after this iteration") == 1
    run_dir = only_run(tmp_path)
    record = json.loads((run_dir / "run.json").read_text())
    assert record["status"] == "stopped"
    done = record["iterations"]
    assert len(rows(run_dir)) == done
    assert (run_dir / "checkpoints" / f"model_{done}.pt").exists()
    command = f"train cartpole-balance --resume {run_dir.relative_to(tmp_path)}"
    assert rest.splitlines()[-1].endswith(command)


def test_a_second_signal_stops_at_once(start: Start, tmp_path: Path) -> None:
    env = write_spoilt(tmp_path, raise_at=30)  # In the second iteration.
    slow = 'print("asleep", flush=True); __import__("time").sleep(600)'
    env.write_text(env.read_text().replace('raise RuntimeError("the gripper broke")', slow))
    process = start("train", "spoilt", "--gpu-ids", "None")
    for text in ("asleep", "SIGINT: stopping after"):
        while text not in process.stdout.readline():
            assert process.poll() is None
        time.sleep(0.6)  # Sooner, the second would be the same signal.
        process.send_signal(signal.SIGINT)
    rest, _ = process.communicate()
    assert process.returncode == 130
    assert "SIGINT: stopping at once" in rest
    record = json.loads((only_run(tmp_path, "spoilt") / "run.json").read_text())
    assert (record["status"], record["iterations"]) == ("stopped", 1)


def test_training_outlives_whoever_reads_its_output(start: Start, tmp_path: Path) -> None:
    process = start("train", "cartpole-balance", *SMALL)
    process.stdout.readline()
    process.stdout.close()
    assert process.wait() == 0
    assert process.stderr.read() == ""
    process.stderr.close()
    assert json.loads((only_run(tmp_path) / "run.json").read_text())["status"] == "finished"


@pytest.mark.slow
def test_cartpole_balance_is_learned(run: Run, tmp_path: Path) -> None:
    result = run("train", "cartpole-balance", "--gpu-ids", "None", "--engine", "native")
    assert result.returncode == 0, result.stderr
    last = rows(only_run(tmp_path))[-1]
    assert float(last["mean_episode_length"]) == 1000
    assert float(last["mean_return"]) >= 900
