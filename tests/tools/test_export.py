"""`mjfleet export`: files that do what the checkpoint does, and what a user may get wrong."""

import importlib.util
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

from mjfleet.env import Env
from mjfleet.registry import discover
from mjfleet.rl.checkpoint_files import pack_checkpoint, read_checkpoint
from mjfleet.runs.checkpoint_archive import about
from mjfleet.sim import make_simulation

from ..cli.test_cli import POISON
from ..conftest import REPOSITORY, Run, only_run
from ..test_docs import BLOCK
from .test_play import column

FEW = ("--env.num-envs", "64", "--env.episode-seconds", "2.5", "--agent.max-iterations", "5")
ELSEWHERE = "import sys\nsys.modules['mjfleet'] = sys.modules['torch'] = None\n"
"""Makes a process one of a robot, on which neither is installed."""

NO_RUNTIME = "import sys\nsys.modules['onnxruntime'] = None\n"
RUN_POLICY = REPOSITORY / "examples/run_policy.py"

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.load:FutureWarning")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Short runs by one process: three cart-poles, two exported to both formats, and a Go1."""
    folder = tmp_path_factory.mktemp("runs")
    pole = ["train", "cartpole-balance", *FEW]
    one = ["--env.num-envs", "8", "--agent.max-iterations", "1"]
    recurrent = [f"--agent.{who}.class-name=RNNModel" for who in ("actor", "critic")]
    recurrent += ["--agent.actor.rnn-hidden-dim", "16", "--agent.actor.rnn-num-layers", "2"]
    commands = [
        [*pole, "--agent.experiment-name", "plain", "--agent.save-interval", "3"],
        [*pole, "--agent.experiment-name", "normalised", "--agent.actor.obs-normalization"],
        ["train", "cartpole-balance", *one, *recurrent, "--agent.experiment-name", "recurrent"],
        ["train", "go1-velocity-flat", *one, "--agent.experiment-name", "go1"],
    ]
    script = (
        "import glob\n"
        "from mjfleet.cli.dispatcher import mjfleet\n"
        f"for command in {commands}:\n"
        "    assert mjfleet(command) == 0\n"
        "for run in glob.glob('logs/[nr]*/*'):\n"
        "    assert mjfleet(['export', run]) == 0\n"
        "    assert mjfleet(['export', run, '--format', 'torchscript']) == 0\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        check=False, cwd=folder, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stderr
    return {name: only_run(folder, name) for name in ("plain", "normalised", "recurrent", "go1")}


def build(name: str, **own: Any) -> Env[Any]:
    """A task's environment with other numbers."""
    found = discover({}).tasks[name]
    cfg = replace(found.task.env, **own)
    env_class = found.load(found.task.env_class)
    sim = make_simulation("native", env_class.make_model(cfg), own["num_envs"], num_threads=1)
    return env_class(cfg, sim, 1)


def expected(checkpoint: Path, rows: torch.Tensor) -> torch.Tensor:
    """What the checkpoint's actor answers, by hand."""
    state = torch.load(checkpoint, weights_only=True)["actor_state_dict"]
    if "obs_normalizer._mean" in state:
        rows = (rows - state["obs_normalizer._mean"]) / (state["obs_normalizer._std"] + 0.01)
    layers = sorted({int(name.split(".")[1]) for name in state if name.startswith("mlp.")})
    for i in layers:
        rows = rows @ state[f"mlp.{i}.weight"].T + state[f"mlp.{i}.bias"]
        rows = torch.nn.functional.elu(rows) if i != layers[-1] else rows
    return rows


def elsewhere(folder: Path, script: str) -> str:
    """Run a script in a folder without mjfleet and torch; return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE + script],
        check=False, cwd=folder, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def load_example() -> Any:
    """examples/run_policy.py as a module."""
    spec = importlib.util.spec_from_file_location("run_policy", RUN_POLICY)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_files_do_what_the_checkpoint_does(runs: dict[str, Path], run: Run) -> None:
    written = runs["normalised"] / "exported"
    files = ["policy.json", "policy.mjb", "policy.onnx", "policy.pt"]
    assert sorted(p.name for p in written.iterdir()) == files
    rows = torch.randn(1000, 5, generator=torch.Generator().manual_seed(7))
    wanted = expected(runs["normalised"] / "checkpoints/model_5.pt", rows)
    np.save(written / "rows.npy", rows.numpy())
    elsewhere(
        written,
        "import numpy, onnxruntime\n"
        "policy = onnxruntime.InferenceSession('policy.onnx')\n"
        "rows = numpy.load('rows.npy')\n"
        "numpy.save('actions.npy', policy.run(['actions'], {'observations': rows})[0])\n"
        "assert policy.run(None, {'observations': rows[:1]})[0].shape == (1, 1)\n",
    )
    onnx = torch.as_tensor(np.load(written / "actions.npy"))
    extra: dict[str, Any] = {"policy.json": ""}
    script = torch.jit.load(written / "policy.pt", _extra_files=extra)(rows).detach()
    assert wanted.std() > 0.01
    assert torch.allclose(onnx, wanted, atol=1e-5, rtol=0)
    assert torch.allclose(script, wanted, atol=1e-5, rtol=0)

    beside = (written / "policy.json").read_text()
    policy = onnxruntime.InferenceSession(written / "policy.onnx")
    assert policy.get_modelmeta().custom_metadata_map == {"policy.json": beside}
    assert extra["policy.json"] in (beside, beside.encode())
    known = json.loads(beside)
    assert (known["task"], known["iteration"]) == ("cartpole-balance", 5)
    assert (known["control_rate"], known["timestep"], known["decimation"]) == (20.0, 0.01, 5)
    (group,) = known["observations"]
    assert (group["name"], group["size"], len(group["parts"])) == ("actor", 5, 5)
    assert (known["joint_names"], known["default_pose"]) == (["slider"], None)
    assert b"site-packages" not in (written / "policy.onnx").read_bytes()

    played = run("play", "cartpole-balance", "--resume", str(runs["normalised"]))
    env, total = build("cartpole-balance", num_envs=64, episode_seconds=2.5), 0.0
    for _ in range(50):
        rows = env.get_observations()["actor"].numpy()
        actions = policy.run(None, {"observations": rows})[0]
        total += env.step(torch.as_tensor(actions))[1].mean().item()
    assert column(played.stdout, "return")[0] == pytest.approx(total, rel=1e-3)


def test_the_guides_controller_moves_a_robot_as_the_simulation_does(
    runs: dict[str, Path], run: Run, tmp_path: Path
) -> None:
    """The code of docs/deploy.md, fed with what a robot's sensors measure."""
    checkpoint = runs["go1"] / "checkpoints/model_1.pt"
    (tmp_path / "go1").mkdir()
    result = run("mjfleet", "export", str(checkpoint), "--output", "go1/walk.onnx")
    assert result.returncode == 0, result.stderr

    cfg: Any = discover({}).tasks["go1-velocity-flat"].task.env
    calm = replace(cfg.random, noise=0.0, delay=(0, 0), push_speed=0.0)
    env: Any = build("go1-velocity-flat", num_envs=1, random=calm)
    model = env.sim.model
    known = json.loads((tmp_path / "go1/walk.json").read_text())
    driven = [model.joint(model.actuator(i).trnid[0]).name for i in range(model.nu)]
    assert known["joint_names"] == driven
    (group,) = known["observations"]
    assert env.get_observations()["actor"].shape[1] == known["observation_size"] == group["size"]
    assert sum(part["size"] for part in group["parts"]) == group["size"]

    measured: dict[str, list[Any]] = {
        name: [] for name in ("gyro", "up", "angles", "speeds", "command", "targets")
    }
    for _ in range(20):
        now = (env.gyro, env.up, env.joints, env.speeds, env.command)
        for name, value in zip(measured, now, strict=False):
            measured[name].append(value[0].numpy().copy())
        rows = env.get_observations()["actor"]
        dones = env.step(expected(checkpoint, rows))[2]
        assert not dones.any()
        measured["targets"].append(env.sim.ctrl[0].numpy().copy())
    arrays: Any = {name: np.stack(values) for name, values in measured.items()}
    np.savez(tmp_path / "go1/robot.npz", **arrays)
    blocks = BLOCK.findall((REPOSITORY / "docs/deploy.md").read_text())
    (code,) = [text for language, text in blocks if "class Controller" in text]
    elsewhere(
        tmp_path / "go1",
        f"{code}\n"
        "robot = np.load('robot.npz')\n"
        "controller = Controller('walk.onnx')\n"
        "for *sensors, targets in zip(*(robot[name] for name in robot.files)):\n"
        "    np.testing.assert_allclose(controller.targets(*sensors), targets, atol=1e-5)\n",
    )


def test_a_policy_alone_is_played_as_it_was_when_it_was_made(
    runs: dict[str, Path], run: Run, tmp_path: Path
) -> None:
    made = run("mjfleet", "export", str(runs["plain"]), "--format", "pretrained",
               "--output", "a.pt")  # fmt: skip
    assert made.returncode == 0, made.stderr
    played = run("play", "cartpole-balance", "--resume", "a.pt")
    for name in ("return", "length"):
        assert column(made.stdout, name) == column(played.stdout, name)
    known = about(tmp_path / "a.pt")
    assert (known["task"], known["iteration"]) == ("cartpole-balance", 5)
    exported = run("mjfleet", "export", "a.pt")
    assert exported.returncode == 0, exported.stderr
    assert json.loads((tmp_path / "exported/policy.json").read_text())["iteration"] == 5
    result = run("mjfleet", "export", "a.pt", "--format", "pretrained", "--output", "c.pt")
    assert (result.returncode, "a.pt has that format already" in result.stderr) == (2, True)
    result = run("train", "cartpole-balance", "--resume", "a.pt")
    assert (result.returncode, "is a policy alone" in result.stderr) == (2, True)
    result = run("train", "cartpole-swingup", "--resume", "a.pt")
    assert result.returncode == 2
    assert "is a checkpoint of the task cartpole-balance, not of cartpole-swingup" in result.stderr
    few = ("--env.num-envs", "8", "--agent.max-iterations", "1")
    for task in ("cartpole-balance", "cartpole-swingup"):
        result = run("train", task, "--init-from", "a.pt", *few)
        assert (result.returncode, "actor: taken" in result.stdout) == (0, True)

    # A file decides what is learned, by classes of its task alone.
    known["config"] = {"env": {"swing_up": True}, "agent": {"actor": {"class_name": "theirs:Net"}}}
    whole = read_checkpoint(tmp_path / "a.pt")
    (tmp_path / "b.pt").write_bytes(pack_checkpoint(whole, known))
    result = run("play", "cartpole-balance", "--resume", "b.pt")
    assert (result.returncode, "b.pt does not decide agent.actor.class_name" in result.stderr) == (
        2, True
    )  # fmt: skip


def test_a_recurrent_policy_remembers(runs: dict[str, Path]) -> None:
    written = runs["recurrent"] / "exported"
    policy = onnxruntime.InferenceSession(written / "policy.onnx")
    script = torch.jit.load(written / "policy.pt")
    rows = torch.randn(20, 1, 5, generator=torch.Generator().manual_seed(7))
    memory = {name: np.zeros((2, 1, 16), np.float32) for name in ("h_in", "c_in")}
    first = script(rows[0]).item()
    script.reset()
    for row in rows:
        outputs: Any = policy.run(None, {"observations": row.numpy()} | memory)
        actions, *after = outputs
        assert actions.item() == pytest.approx(script(row).item(), abs=1e-5)
        memory = dict(zip(memory, after, strict=True))
    assert script(rows[0]).item() != pytest.approx(first, abs=1e-5)

    robot = load_example().Robot(written / "policy.onnx")
    for _ in range(2):
        robot.reset()
        script.reset()
        for _ in range(20):
            row = torch.as_tensor(robot.step()[None]).float()
            assert robot.action == pytest.approx(script(row).item(), abs=1e-5)


def test_mistakes_are_answered(runs: dict[str, Path], run: Run, tmp_path: Path) -> None:
    shutil.copytree(runs["normalised"], tmp_path / "run")
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    known = json.loads((tmp_path / "run/exported/policy.json").read_text())
    (tmp_path / "other/policy.json").write_text(json.dumps(known | {"task": "arm"}))
    good = tmp_path / "run/checkpoints/model_5.pt"
    (tmp_path / "run/checkpoints/model_4.pt").write_bytes(good.read_bytes()[:-1000])
    # A policy that diverged.
    state = torch.load(good, weights_only=True)
    state["actor_state_dict"]["mlp.0.bias"][0] = float("nan")
    torch.save(state, tmp_path / "run/checkpoints/model_3.pt")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    script = ("--format", "torchscript", "--output")
    for arguments, prelude, code, message in (
        ([], POISON, 2, "RUN"),
        (["nowhere"], POISON, 2, "nowhere does not exist"),
        (["empty"], POISON, 2, "empty is neither"),
        (["run/checkpoints/model_4.pt"], POISON, 2, "is damaged or no checkpoint"),
        (["run", "--output", "policy.pt"], POISON, 2, "must end in .onnx"),
        (["run", "--output", "other/policy.onnx"], POISON, 2, "not of an export of cartpole-bal"),
        (["run", "--output", "run/run.onnx"], POISON, 2, "run.json is not of an export"),
        (
            ["run", *script, "run/checkpoints/model_5.pt"],
            POISON,
            2,
            "model_5.pt is not of an export",
        ),
        (["run", *script, "run/run.json/policy.pt"], POISON, 2, "run.json: Not a directory"),
        (["run"], NO_RUNTIME + POISON, 2, "--extra export"),
        (["run/checkpoints/model_3.pt", *script, "a.pt"], "", 1, "nothing was written"),
    ):
        result = run("mjfleet", "export", *arguments, prelude=prelude)
        assert (result.returncode, "Traceback" in result.stderr) == (code, False)
        assert message in result.stderr + result.stdout
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
