"""Input mistakes on every command: one message, exit code 2, nothing created."""

import errno
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from mjfleet.cli.run_command import run_command
from mjfleet.errors import Stopped, WorkerError

from ..conftest import TESTS, Refusal, Run

RUN_DIR = str(TESTS / "data/cartpole-balance-9159368")
LONG = "x" * 300

NUMBERS = [
    ("train", ["--env.num-envs", "1000000000000"], "at most 2147483647"),
    ("train", ["--env.episode-seconds", "1e300"], "at most 1000000000"),
    ("train", ["--agent.actor.hidden-dims", "64", "1000000000000"], "layer sizes"),
    ("train", ["--hang-timeout", "nan"], "between 0 and 1000000000"),
    ("train", ["--cpu-workers", "1000000"], "between 1 and 1024"),
    ("play", ["--actions", "zero", "--seed", "1000000000000"], "between 0"),
    ("play", ["--actions", "zero", "--cpu-threads", "-1"], "at least 1"),
]


def test_absurd_numbers_are_refused(refusal: Refusal) -> None:
    for command, flags, words in NUMBERS:
        message = refusal(command, "cartpole-balance", *flags)
        assert flags[-2] in message or flags[0] in message
        assert words in message
    message = refusal("mjfleet", "bench", "scaling", "T", "--workers", "9" * 20)
    assert "--workers" in message


TRAIN = ["train", "cartpole-balance", "--dry-run"]
NAMES = [
    *([*TRAIN, flag] for flag in ("--resume", "--tasks-dir", "--config")),
    ["train", "cartpole-balance", "--log-root"],  # A dry run would make no folder.
    ["train"],
    ["play", "cartpole-balance", "--resume"],
    ["play", "cartpole-balance", "--actions", "zero", "--video"],
    ["mjfleet", "runs", "--log-root"],
    ["mjfleet", "tasks", "--tasks-dir"],
    ["mjfleet", "new-task"],
    ["mjfleet", "sweep"],
    ["mjfleet", "new-task", "robot", "--tasks-dir"],
    ["mjfleet", "check-task"],
    ["mjfleet", "plot"],
    ["mjfleet", "compare"],
    ["mjfleet", "report", RUN_DIR, "--output"],
    ["mjfleet", "export"],
    ["mjfleet", "inspect"],
    ["mjfleet"],
]


def test_names_that_cannot_be_are_refused(refusal: Refusal) -> None:
    for words in NAMES:
        refusal(*words, LONG)
    for words in (["train"], ["mjfleet"], [*TRAIN, "--resume"], ["mjfleet", "plot"]):
        for name in ("\x1b[31mx", os.fsdecode(b"\xff")):
            assert "\x1b" not in refusal(*words, name)


def test_how_a_command_ends_is_its_exit_code(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def raises(error: BaseException) -> int:
        def command(_: Sequence[str]) -> int:
            raise error

        return run_command(command, [])

    missing = tmp_path / "gone"
    assert run_command(lambda _: len(missing.read_text()), []) == 2
    assert capfd.readouterr().err == f"error: {missing}: No such file or directory.\n"
    ends = {WorkerError("lost"): 1, Stopped(15): 143, KeyboardInterrupt(): 130}
    assert [raises(error) for error in ends] == [*ends.values()]
    assert capfd.readouterr().err == "lost\n"
    for fault in (OSError(errno.ENOSPC, "full", "file"), OSError(errno.ENOENT, "no file")):
        with pytest.raises(OSError, match=r"full|no file"):
            raises(fault)


def test_an_empty_name_of_a_folder_is_refused(refusal: Refusal) -> None:
    for words in (
        [*TRAIN, "--log-root"],
        [*TRAIN, "--tasks-dir"],
        ["mjfleet", "runs", "--log-root"],
        ["mjfleet", "plot", RUN_DIR, "--log-root"],
    ):
        assert f"{words[-1]} is ''" in refusal(*words, "")


def test_an_empty_name_of_a_file_a_run_or_a_host_is_refused(refusal: Refusal) -> None:
    clip = ["mjfleet", "clip", "show", "walk.csv", "--robot", "g1-tracking"]
    for words in (
        *(["play", "cartpole-balance", flag] for flag in ("--resume", "--output", "--video")),
        *(["play", "cartpole-balance", "--actions", "zero", flag] for flag in ("--clip", "--host")),
        *(["mjfleet", "export", RUN_DIR, flag] for flag in ("--output", "--clip")),
        *([*clip, flag] for flag in ("--video", "--plot")),
    ):
        assert f"{words[-1]} is ''; it must be the name of" in refusal(*words, "")
    assert "it must be the name of" in refusal("mjfleet", "export", "")


@pytest.mark.parametrize(
    ("command", "flag", "suffix"),
    [
        (["plot", RUN_DIR], "--output", ".png"),
        (["export", RUN_DIR, "--format", "torchscript"], "--output", ".pt"),
        (["play", "cartpole-balance", "--actions", "zero"], "--video", ".mp4"),
    ],
)
def test_a_file_to_write_needs_its_suffix_and_an_existing_folder(
    refusal: Refusal, tmp_path: Path, command: list[str], flag: str, suffix: str
) -> None:
    (tmp_path / f"folder{suffix}").mkdir()
    words = command if command[0] == "play" else ["mjfleet", *command]
    for name in (".", "/", "file.txt"):
        assert f"must end in {suffix}" in refusal(*words, flag, name)
    assert "Is a directory" in refusal(*words, flag, f"folder{suffix}")
    assert "missing: No such" in refusal(*words, flag, f"missing/file{suffix}")


NO_ROOM = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))
sys.dont_write_bytecode = True  # What fits of a module's would be kept.
"""


@pytest.mark.parametrize(
    ("words", "file"),
    [
        ("clip convert task:clips/walk.npz --robot g1-tracking --output walk.npz", "walk.npz"),
        (f"plot {RUN_DIR} --output a.png", "a.png"),
    ],
)
def test_a_file_for_which_there_is_no_room_is_one_message(
    tmp_path: Path, run: Run, words: str, file: str
) -> None:
    done = run("mjfleet", *words.split(), late=NO_ROOM)
    assert done.returncode == 2, done.stderr
    assert done.stderr.splitlines()[-1] == f"error: {file}: File too large."
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_scheduler_that_says_half_of_it_is_refused(
    refusal: Refusal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
    assert "SLURM_NODEID" in refusal(*TRAIN)


ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def in_child(
    cwd: Path, *arguments: str, closed: Sequence[int] = (), environ: Mapping[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run `train` in a process of its own, in which some descriptors are closed."""
    close = "".join(f"{number}>&- " if number else "<&- " for number in closed)
    command = [sys.executable, "-m", "mjfleet.cli.train", *arguments]
    return subprocess.run(
        ["sh", "-c", f'exec "$@" {close}', "sh", *command], check=False, capture_output=True,
        cwd=cwd, env={**os.environ, **(environ or {})}, encoding="utf-8", errors="surrogateescape",
    )  # fmt: skip


def test_any_locale_will_do(tmp_path: Path) -> None:
    folder = tmp_path / "ü"
    (folder / "tasks/wheel").mkdir(parents=True)
    config = (
        "from mjfleet.config import EnvConfig, Task\n"
        "TASKS = {'wheel': Task(summary='Räder', env=EnvConfig(), env_class='env:Wheel')}\n"
    )
    (folder / "tasks/wheel/config.py").write_text(config, encoding="utf-8")
    (folder / "my.yaml").write_text("# ü\nagent: {max_iterations: 7}\n", encoding="utf-8")
    shown = in_child(folder, "wheel", "--dry-run", "--config", "my.yaml", environ=ASCII)
    assert shown.returncode == 0, shown.stderr
    assert "iterations:              7" in shown.stdout
    assert "R\\xe4der" in in_child(folder, "--help", environ=ASCII).stdout


def test_any_standard_stream_may_be_closed(tmp_path: Path) -> None:
    for closed in ((0,), (0, 1, 2)):
        result = in_child(tmp_path, "cartpole-balance", "--dry-run", closed=closed)
        assert (result.returncode, result.stderr) == (0, "")
        assert bool(result.stdout) == (1 not in closed)
    assert not list(tmp_path.iterdir())
