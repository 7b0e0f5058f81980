"""Training from the command line: what a run leaves behind, and that it can be repeated."""

import json
import math
import signal
import time
from pathlib import Path

import pytest
import torch
import yaml

from mjfleet.cli.run_command import run_command
from mjfleet.cli.train import train
from mjfleet.runs.run_json import read_record

from ..conftest import SMALL, Run, Start, only_run, rows
from ..launch.workers import NOISY_CONFIG, noisy_env, wait_for_iteration, write_noisy

FIVE = (*SMALL, "--agent.max-iterations", "5", "--agent.save-interval", "2")


@pytest.mark.parametrize("engine", ["native", "warp"])
def test_a_run_leaves_a_directory_that_explains_it(run: Run, tmp_path: Path, engine: str) -> None:
    result = run(
        "train", "cartpole-balance", *FIVE, "--engine", engine, "--agent.run-name", "first",
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
            "train", "cartpole-swingup", *FIVE, "--agent.experiment-name", name,
            "--agent.seed", seed, "--agent.logger", "none",
        )  # fmt: skip
        assert result.returncode == 0, result.stderr
        checkpoint = only_run(tmp_path, name) / "checkpoints" / "model_5.pt"
        weights.append(torch.load(checkpoint, weights_only=True)["actor_state_dict"])
    first, second, other = weights
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)


def test_a_run_can_be_repeated_from_its_config_file(run: Run, tmp_path: Path) -> None:
    assert run("train", "cartpole-balance", *FIVE, "--agent.seed", "7").returncode == 0
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
    from mjfleet.rl.networks import rsl_rl_config

    from ..env.test_env import build_task

    assert run("train", "cartpole-balance", *FIVE).returncode == 0
    path = only_run(tmp_path) / "checkpoints" / "model_4.pt"
    env = build_task("cartpole-balance", "native", "cpu")
    found = discover({}).find("cartpole-balance")
    stock = OnPolicyRunner(env, rsl_rl_config(found.task.agent, found.load), device="cpu")
    stock.load(str(path))
    assert stock.current_learning_iteration == 4
    saved = torch.load(path, weights_only=True)["actor_state_dict"]
    assert all(torch.equal(saved[k], v) for k, v in stock.alg.actor.state_dict().items())


def test_an_exception_fails_the_run_with_its_traceback(run: Run, tmp_path: Path) -> None:
    write_noisy(tmp_path, step="raise RuntimeError('the gripper broke')")
    result = run("train", "noisy")
    assert result.returncode == 1
    assert "RuntimeError: the gripper broke" in result.stderr
    run_dir = only_run(tmp_path, "noisy")
    assert result.stdout.splitlines()[-1] == f"run directory: {run_dir.relative_to(tmp_path)}"
    record = json.loads((run_dir / "run.json").read_text())
    assert (record["status"], record["iterations"]) == ("failed", 1)
    assert record["ended"]


MIRROR = """

def mirror(env, obs, actions):
    if obs is not None:
        obs = torch.cat((obs, obs.apply(torch.neg)))
    return obs, None if actions is None else torch.cat((actions, -actions))
"""


def test_symmetry_is_a_function_of_the_task_folder(run: Run, tmp_path: Path) -> None:
    with (write_noisy(tmp_path) / "env.py").open("a") as file:
        file.write(MIRROR)
    (tmp_path / "mirror.yaml").write_text(
        "agent: {algorithm: {symmetry_cfg: {data_augmentation_func: 'env:mirror'}}}"
    )
    result = run(
        "train", "noisy", "--config", "mirror.yaml", "--agent.max-iterations", "2",
        "--agent.algorithm.symmetry-cfg.use-data-augmentation",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert all(float(row["loss/symmetry"]) > 0 for row in rows(only_run(tmp_path, "noisy")))
    mirror = tmp_path / "mirror.yaml"
    mirror.write_text(mirror.read_text().replace("env:mirror", "env:NoisyEnv"))
    result = run("train", "noisy", "--config", "mirror.yaml")
    assert result.returncode == 2
    assert "env:NoisyEnv: it must be a function" in result.stderr


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
    write_noisy(tmp_path, model=CROWDED)
    result = run(
        "train", "noisy", "--engine", "warp", "--env.nconmax", "1", "--agent.max-iterations", "3"
    )
    assert result.returncode == 0, result.stderr
    first, *later = rows(only_run(tmp_path, "noisy"))
    assert int(first["sim_warnings"]) >= 8
    assert float(first["contacts"]) > int(first["nconmax"]) == 1
    assert [int(row["sim_warnings"]) for row in later] == [0, 0]
    assert all(float(row["contacts"]) <= int(row["nconmax"]) for row in later)
    told = [line for line in result.stdout.splitlines() if "--env.nconmax was 1" in line]
    assert told
    assert f"{math.ceil(float(first['contacts']))} would have sufficed" in told[0]


def test_episodes_that_end_at_once_are_told_of_in_one_line(run: Run, tmp_path: Path) -> None:
    folder = write_noisy(tmp_path)
    inverted = "\n    def terminated(self):\n        return self.sim.qvel[:, 0].abs() < 1e3\n"
    (folder / "env.py").write_text(noisy_env() + inverted)
    result = run("train", "noisy", "--agent.max-iterations", "4")
    assert result.returncode == 0, result.stderr
    (line,) = (line for line in result.stdout.splitlines() if "terminated()" in line)
    assert line.startswith(
        "warning: terminated() or truncated(): episodes end after 1 of 2500 steps"
    )
    assert "the wrong way round?" in line


SPOILT_RESET = "mask):\n        self.sim.qvel[:] = torch.nan"
FAULTS = {
    "not a subclass of Env": ("env.py", "class NoisyEnv: pass"),
    "has no `NoisyEnv`": ("env.py", "import torch"),
    "lacks apply, rewards": (
        "env.py",
        noisy_env().replace("apply", "aply").replace("rewards", "reward"),
    ),
    "model.xml: ": ("model.xml", "<mujoco><worldbody></mujoco>"),
    "declares num_actions=5, but the environment has 2": (
        "config.py",
        NOISY_CONFIG.replace('NoisyEnv"', 'NoisyEnv", num_actions=5'),
    ),
    "no actuator": ("model.xml", "<mujoco><worldbody/></mujoco>"),
    "qvel is not finite where episodes begin": (
        "env.py",
        noisy_env().replace("mask):\n        pass", SPOILT_RESET),
    ),
}


@pytest.mark.parametrize("message", FAULTS)
def test_a_fault_in_a_task_folder_is_one_message_and_leaves_nothing(
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file, text = FAULTS[message]
    (write_noisy(tmp_path) / file).write_text(text)
    monkeypatch.chdir(tmp_path)
    assert run_command(train, ["noisy", "--gpu-ids", "None"]) == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["tasks"]


def test_a_config_file_knows_where_its_task_was_found(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_noisy(tmp_path)
    (tmp_path / "tasks").rename(tmp_path / "robots")
    small = ("--tasks-dir", "robots", "--agent.max-iterations", "1", "--log-root", "first")
    run("train", "noisy", *small)
    ((run_dir,),) = [list(e.iterdir()) for e in (tmp_path / "first").iterdir()]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    config = str(run_dir / "config.yaml")
    assert run_command(train, ["noisy", "--config", config, "--dry-run"]) == 0


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


INTERRUPTED = """try: os.kill(os.getpid(), signal.SIGTERM)
        except BaseException: pass  # As some libraries do.
        raise RecursionError("of a module that is half imported")"""


def test_a_library_that_fails_because_of_a_signal_is_a_stop(run: Run, tmp_path: Path) -> None:
    write_noisy(tmp_path, setup=INTERRUPTED)
    result = run("train", "noisy")
    assert (result.returncode, result.stderr) == (143, "")
    assert read_record(only_run(tmp_path, "noisy"))["status"] == "stopped"


def test_a_second_signal_stops_at_once(start: Start, tmp_path: Path) -> None:
    slow = 'print("asleep", flush=True); __import__("time").sleep(600)'
    write_noisy(tmp_path, step=slow)  # In the second iteration.
    process = start("train", "noisy", "--gpu-ids", "None")
    for text in ("asleep", "SIGINT: stopping after"):
        while text not in process.stdout.readline():
            assert process.poll() is None
        time.sleep(0.6)  # Sooner, the second would be the same signal.
        process.send_signal(signal.SIGINT)
    rest, _ = process.communicate()
    assert process.returncode == 130
    assert "SIGINT: stopping at once" in rest
    record = json.loads((only_run(tmp_path, "noisy") / "run.json").read_text())
    assert (record["status"], record["iterations"]) == ("stopped", 1)


def test_training_outlives_whoever_reads_its_output(start: Start, tmp_path: Path) -> None:
    process = start("train", "cartpole-balance", *FIVE)
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


def test_a_run_that_has_trained_is_kept_whatever_the_task_raises(run: Run, tmp_path: Path) -> None:
    write_noisy(tmp_path, step="from mjfleet.errors import UserError; raise UserError('late')")
    result = run("train", "noisy", "--agent.save-interval", "1")
    assert result.returncode == 1
    checkpoints = only_run(tmp_path, "noisy") / "checkpoints"
    assert [path.name for path in checkpoints.iterdir()] == ["model_1.pt"]
