"""`mjfleet export`: files that do what the checkpoint does, and what a user may get wrong."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

import mjfleet
from mjfleet.rl.checkpoints.files import pack_checkpoint, read_checkpoint
from mjfleet.runs.checkpoints import about

from ..conftest import POISON, REPOSITORY, Output, Run, only_run, run_warm
from ..env.test_env import build_own
from .test_play import column

ELSEWHERE = "import sys\nsys.modules['mjfleet'] = sys.modules['torch'] = None\n"
"""Makes a process one of a robot, on which neither is installed."""

NO_RUNTIME = "import sys\nsys.modules['onnxruntime'] = None\n"
RUN_POLICY = REPOSITORY / "examples/run_policy.py"

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.load:FutureWarning")


@pytest.fixture(scope="module")
def runs(
    tmp_path_factory: pytest.TempPathFactory, warm: "subprocess.Popen[str]"
) -> dict[str, Path]:
    """Two cart-poles, exported to both formats: one with a normaliser, one with a memory."""
    folder = tmp_path_factory.mktemp("runs")
    few = ["--num-envs", "8", "--max-iterations", "1", "--env.episode-seconds", "2.5"]
    recurrent = [f"--agent.{who}.class-name=RNNModel" for who in ("actor", "critic")]
    recurrent += ["--agent.actor.rnn-hidden-dim", "16", "--agent.actor.rnn-num-layers", "2"]
    found = {}
    for name, network in (
        ("normalised", ["--agent.actor.obs-normalization"]),
        ("recurrent", recurrent),
    ):
        place = ["--agent.experiment-name", name]
        for module, *arguments in (
            ("train", "cartpole-balance", *few, *network, *place),
            ("mjfleet", "export", f"{name}/latest"),
            ("mjfleet", "export", f"{name}/latest", "--format", "torchscript"),
        ):
            done = run_warm(warm, module, arguments, dict(os.environ), folder)
            assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
        found[name] = only_run(folder, name)
    return found


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


def test_a_policy_with_a_memory_acts_in_fewer_environments_than_there_are_minibatches(
    runs: dict[str, Path], output: Output
) -> None:
    one = ("--env.num-envs", "1", "--episodes", "1")
    output("play", "cartpole-balance", "--resume", str(runs["recurrent"]), *one)
    policy = mjfleet.Run(runs["recurrent"]).policy()
    assert policy({"actor": torch.zeros(1, 5)}).shape == (1, 1)


def test_files_do_what_the_checkpoint_does(runs: dict[str, Path], output: Output) -> None:
    written = runs["normalised"] / "exported"
    files = ["policy.json", "policy.mjb", "policy.onnx", "policy.pt"]
    assert sorted(p.name for p in written.iterdir()) == files
    rows = torch.randn(1000, 5, generator=torch.Generator().manual_seed(7))
    wanted = expected(runs["normalised"] / "checkpoints/model_1.pt", rows)
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
    assert (known["task"], known["iteration"]) == ("cartpole-balance", 1)
    assert (known["control_rate"], known["timestep"], known["decimation"]) == (20.0, 0.01, 5)
    (group,) = known["observations"]
    assert (group["name"], group["size"], len(group["parts"])) == ("actor", 5, 5)
    assert (known["joint_names"], known["default_pose"]) == (["slider"], None)
    assert b"site-packages" not in (written / "policy.onnx").read_bytes()

    played = output("play", "cartpole-balance", "--resume", str(runs["normalised"]))
    env, total = build_own("cartpole-balance", 8, episode_seconds=2.5), 0.0
    for _ in range(50):
        rows = env.get_observations()["actor"].numpy()
        actions = policy.run(None, {"observations": rows})[0]
        total += env.step(torch.as_tensor(actions))[1].mean().item()
    assert column(played, "return")[0] == pytest.approx(total, rel=1e-3)


def test_a_policy_alone_is_played_as_it_was_when_it_was_made(
    runs: dict[str, Path], run: Run, output: Output, tmp_path: Path
) -> None:
    alone = ("--format", "pretrained", "--output", "a.pt")
    made = output("mjfleet", "export", str(runs["normalised"]), *alone)
    played = output("play", "cartpole-balance", "--resume", "a.pt")
    for name in ("return", "length"):
        assert column(made, name) == column(played, name)
    known = about(tmp_path / "a.pt")
    assert (known["task"], known["iteration"]) == ("cartpole-balance", 1)
    output("mjfleet", "export", "a.pt", "--format", "torchscript")
    assert json.loads((tmp_path / "exported/policy.json").read_text())["iteration"] == 1
    network = "--agent.actor.obs-normalization"
    result = run("train", "cartpole-balance", "--resume", "a.pt", network)
    assert (result.returncode, "is a policy alone" in result.stderr) == (2, True)
    few = ("--env.num-envs", "8", "--agent.max-iterations", "1")
    begun = output("train", "cartpole-swingup", "--init-from", "a.pt", network, *few)
    assert "actor: taken" in begun

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
    good = tmp_path / "run/checkpoints/model_1.pt"
    (tmp_path / "run/checkpoints/model_2.pt").write_bytes(good.read_bytes()[:-1000])
    # A policy that diverged.
    state = torch.load(good, weights_only=True)
    state["actor_state_dict"]["mlp.0.bias"][0] = float("nan")
    torch.save(state, tmp_path / "run/checkpoints/model_3.pt")
    torch.save(state, tmp_path / "other/model_3.pt")  # As rsl_rl's own, it names no task.
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    script = ("--format", "torchscript", "--output")
    for arguments, prelude, code, message in (
        ([], POISON, 2, "RUN"),
        (["nowhere"], POISON, 2, "nowhere does not exist"),
        (["empty"], POISON, 2, "empty is no run directory"),
        (["run/checkpoints/model_2.pt"], POISON, 2, "is damaged or no checkpoint"),
        (["run/metrics.csv"], POISON, 2, "is damaged or no checkpoint"),
        (["other/model_3.pt"], POISON, 2, "begin a run from it by `train <task> --resume`"),
        (["run", "--output", "other/policy.onnx"], POISON, 2, "not of an export of cartpole-bal"),
        (["run", "--output", "run/run.onnx"], POISON, 2, "run.json is not of an export"),
        (["run", *script, str(good)], POISON, 2, "model_1.pt is not of an export"),
        (["run", *script, "run/run.json/policy.pt"], POISON, 2, "run.json: Not a directory"),
        (["run"], NO_RUNTIME + POISON, 2, "--extra export"),
        (["run/checkpoints/model_3.pt", *script, "a.pt"], "", 1, "nothing was written"),
    ):
        result = run("mjfleet", "export", *arguments, prelude=prelude)
        assert (result.returncode, "Traceback" in result.stderr) == (code, False)
        assert message in result.stderr + result.stdout
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
