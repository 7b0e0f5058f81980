"""What `train` does before workers start: how long training is, and signals meanwhile."""

import os
import signal
import subprocess
import time
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from mjfleet.cli.train import train
from mjfleet.errors import UserError
from mjfleet.runs.run_json import read_record
from mjfleet.utils.wait_until import wait_until

from ..conftest import PATIENCE, TESTS, Output, Run, Start, copy_task
from .workers import TRAIN, write_noisy

TRAINED = str(TESTS / "data/cartpole-balance-9159368")  # 3 iterations of 256 steps.
SMALL = ("--env.num-envs", "8", "--agent.num-steps-per-env", "32", "--gpu-ids", "None")


@pytest.mark.parametrize(
    ("flags", "iterations"),
    [
        ((*SMALL, "--total-steps", "512"), 2),
        ((*SMALL, "--total-steps", "513"), 3),
        (("--resume", TRAINED, "--total-steps", "2_000"), 8),
        (("--resume", TRAINED, "--total-steps", "2000", "--cpu-workers", "2"), 6),
    ],
)
def test_training_is_as_long_as_the_steps_of_all_workers_say(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    flags: tuple[str, ...],
    iterations: int,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert train(["cartpole-balance", *flags, "--dry-run"]) == 0
    (line,) = [x for x in capsys.readouterr().out.splitlines() if x.startswith("iterations:")]
    assert line.split()[1] == str(iterations)
    assert not list(tmp_path.iterdir())


def test_a_length_in_iterations_replaces_a_files_length_in_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("steps.yaml").write_text("total_steps: 1000")
    both = ("--config", "steps.yaml", "--agent.max-iterations", "7")
    assert train(["cartpole-balance", *SMALL, *both, "--dry-run"]) == 0
    assert " 7\n" in capsys.readouterr().out
    with pytest.raises(UserError, match="give one"):
        train(["cartpole-balance", *SMALL, *both, "--total-steps", "9", "--dry-run"])


def test_runs_that_start_in_one_second_share_no_log(
    output: Output, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here every second of the next minute is taken by another run."""
    monkeypatch.chdir(tmp_path)
    now = datetime.now()
    taken = [
        Path("logs", (now + timedelta(seconds=second)).isoformat(timespec="seconds"))
        for second in range(60)
    ]
    for folder in taken:
        folder.mkdir(parents=True)
    one = ("--gpu-ids", "None", "--max-restarts", "1", "--run-dir", "run")
    for iterations in (1, 2):
        length = ("--agent.max-iterations", str(iterations))
        command = ("train", "cartpole-balance", *SMALL[:4], *one, *length)
        output(*command, TORCHRUNX_LOG_DIR="logs")
        made = sorted(set(Path("logs").iterdir()) - {*taken})
        assert len(made) == iterations
        assert "building" in (made[-1] / "localhost[0].log").read_text()
    assert not any(any(folder.iterdir()) for folder in taken)
    assert read_record(Path("run"))["iterations"] == 2


@pytest.mark.parametrize("seeds", [(), ("--seeds", "1")])
def test_a_signal_while_git_runs_leaves_nothing(
    tmp_path: Path, start: Start, seeds: tuple[str, ...]
) -> None:
    """Here git takes as long as on a slow network disk."""
    programs = tmp_path / "bin"
    programs.mkdir()
    slow = programs / "git"
    # Its parent has to be out of the call that starts it: a signal there leaves it behind.
    slow.write_text('#!/bin/sh\nsleep 1\necho $$ > "$0.pid"\nexec sleep 600\n')
    slow.chmod(0o755)
    environ = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}"}
    process = start("train", "cartpole-balance", *SMALL, *seeds, environ=environ)
    assert wait_until(Path(f"{slow}.pid").exists, PATIENCE)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(PATIENCE)
    assert process.returncode == 128 + signal.SIGTERM
    assert not errors
    assert [path.name for path in tmp_path.iterdir()] == ["bin"]
    assert not Path("/proc", Path(f"{slow}.pid").read_text().strip()).exists()


@pytest.mark.parametrize(("fault", "code"), [("", 0), ("\nraise OSError('odd')", 2)])
def test_a_thread_that_a_task_has_left_does_not_keep_the_command(
    tmp_path: Path, run: Run, fault: str, code: int
) -> None:
    task = copy_task(tmp_path / "tasks", "threads")
    with (task / "env.py").open("a") as file:
        left = "threading.Thread(target=time.sleep, args=(600,), name='left').start()"
        file.write(f"\nimport threading, time\n{left}{fault}\n")
    brief = "import mjfleet.cli.run_command as module; module.THREAD_SECONDS = 0.1"
    flags = (*SMALL, "--agent.max-iterations", "1")
    result = run("train", "threads-balance", *flags, late=brief)
    assert result.returncode == code
    assert result.stderr.endswith("threads still run after 0.1 s, and end now: left\n")


def test_a_signal_while_nobody_reads_what_is_printed_first_is_recorded(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while os.write(writer, bytes(4096)):
            pass
    os.set_blocking(writer, True)
    command = [*TRAIN, "cartpole-balance", *SMALL, "--run-dir", "run"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=writer) as process:
        os.close(writer)
        entered = tmp_path / "run/attempts/current"
        assert wait_until(lambda: entered.exists() or process.poll() is not None, PATIENCE)
        time.sleep(0.5)  # The attempt is entered; the first line is about to be printed.
        process.send_signal(signal.SIGTERM)
        while os.read(reader, 65536):
            pass
    os.close(reader)
    assert process.returncode == 128 + signal.SIGTERM
    assert read_record(tmp_path / "run")["status"] == "stopped"


def test_a_run_that_has_lost_its_record_ends_as_it_would(run: Run, tmp_path: Path) -> None:
    write_noisy(tmp_path, step="os.remove('d/run.json'); 1 / 0")
    flags = ("--agent.num-steps-per-env", "8", "--agent.save-interval", "1", "--run-dir", "d")
    result = run("train", "noisy", *flags)
    assert result.returncode == 1
    assert "ZeroDivisionError" in result.stderr
    assert "KeyError" not in result.stderr
    assert "resume with" not in result.stdout
