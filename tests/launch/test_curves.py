"""The picture that the end of a run leaves, and what may happen while it is drawn."""

import json
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from matplotlib import image

from mjfleet.launch.planned_run import draw_curves

from ..conftest import Run, only_run
from .workers import started, wait_for_iteration

SHORT = ("--env.num-envs", "16", "--env.episode-seconds", "1", "--agent.num-steps-per-env", "8")
ROWS = "iteration,total_steps,global_steps_per_second,mean_reward\n" + "10,50,5,1.5\n" * 2


def hang(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have drawing hang, in processes that are started from now on."""
    (folder / "fake").mkdir()
    hanging = f"open('{folder}/drawing', 'w').close(); __import__('time').sleep(600)"
    (folder / "fake/matplotlib.py").write_text(hanging)
    monkeypatch.setenv("PYTHONPATH", str(folder / "fake"))


def test_a_run_leaves_its_curves_and_does_well_without(run: Run, tmp_path: Path) -> None:
    ten = run("train", "cartpole-balance", *SHORT, "--agent.max-iterations", "10")
    folder = only_run(tmp_path)
    assert (ten.returncode, ten.stderr) == (0, "")
    shown = folder.relative_to(tmp_path)
    end = [f"wrote {shown}/plots/curves.png", f"run directory: {shown}"]
    assert ten.stdout.splitlines()[-2:] == end
    assert image.imread(folder / "plots/curves.png").std() > 0.05

    shutil.rmtree(folder / "plots")
    (folder / "plots").touch()
    more = ("--resume", "latest", "--agent.max-iterations", "11")
    eleven = run("train", "cartpole-balance", *more)
    assert eleven.returncode == 0
    assert eleven.stderr.startswith("the run's curves were not drawn (`mjfleet plot`")
    assert json.loads((folder / "run.json").read_text())["status"] == "finished"
    assert eleven.stdout.splitlines()[-1] == f"run directory: {shown}"


@pytest.mark.slow
def test_a_signal_does_not_wait_for_curves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one ends training, the second one the drawing, which hangs."""
    hang(tmp_path, monkeypatch)
    with started(tmp_path, *SHORT, "--agent.max-iterations", "100000") as process:
        wait_for_iteration(process, 10)
        process.send_signal(signal.SIGINT)
        wait_for_file(tmp_path / "drawing", process)
        # It has ended already, for whoever asks.
        assert json.loads((only_run(tmp_path) / "run.json").read_text())["status"] == "stopped"
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate()
    assert (process.returncode, errors) == (130, "")
    assert "resume with: " in rest


def wait_for_file(path: Path, process: "subprocess.Popen[str]") -> None:
    while not path.exists():
        assert process.poll() is None
        time.sleep(0.05)


@pytest.mark.slow
def test_drawing_that_takes_too_long_is_given_up(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    slowness: float,
) -> None:
    (tmp_path / "metrics.csv").write_text(ROWS)
    (tmp_path / "config.yaml").write_text("agent: {seed: 5}\n")
    hang(tmp_path, monkeypatch)
    draw_curves(tmp_path, patience=5 * slowness)
    assert (tmp_path / "drawing").exists()
    assert f"longer than {5 * slowness:g} s" in caplog.text
    assert not list(tmp_path.glob("plots/*"))
