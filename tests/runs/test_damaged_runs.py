"""A run directory in which something else lies in the place of a file."""

import io
import json
import os
import shutil
import socket
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from mjfleet.cli.dispatcher import mjfleet
from mjfleet.cli.run_command import run_command

from ..conftest import TESTS

TASK = "cartpole-balance"
RUN = TESTS / "data" / "cartpole-balance-9159368"
FAILURE = {
    "rank": 0, "host": "h", "device": "cpu", "seed": 1, "iteration": 2, "phase": "collect",
    "time": 1.0, "kind": "E", "message": "m", "traceback": "t", "mistake": False,
    "is_secondary": False, "log": ["l"],
}  # fmt: skip


def make_run(root: Path, name: str = "2026-01-01_00-00-00") -> Path:
    """Return a copy of a run, with files that not every run has."""
    run_dir = Path(shutil.copytree(RUN, root / "logs" / TASK / name))
    for file in ("failures/rank0.json", "failures/attempt_1/rank0.json"):
        (run_dir / file).parent.mkdir(parents=True, exist_ok=True)
        (run_dir / file).write_text(json.dumps(FAILURE))
    (run_dir / "videos").mkdir()
    (run_dir / "videos/iteration_3.mp4").write_bytes(b"a video")
    return run_dir


def everything(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Return kind and content of all that a folder holds."""
    found = {}
    for path in sorted(folder.rglob("*")):
        kind = path.lstat().st_mode
        content = os.readlink(path).encode() if path.is_symlink() else b""
        if path.is_file() and not path.is_symlink():
            content = path.read_bytes()
        found[str(path.relative_to(folder))] = kind, content
    return found


def retype(path: Path, kind: str, outside: Path) -> None:
    """Put something else in the place of a file or folder."""
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as listening, chdir(path.parent):
            listening.bind(path.name)
    else:
        path.symlink_to({"link": outside, "zero": Path("/dev/zero")}[kind])


def call(*words: str) -> tuple[int, str]:
    """Run a command in this process; return its exit code and all that it prints."""
    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(out):
        try:
            code = run_command(mjfleet, words)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 2
    return code, out.getvalue()


@pytest.mark.parametrize(
    ("file", "kind", "message"),
    [
        ("run.json", "pipe", "run.json: it is not a regular file"),
        ("config.yaml", "link", "config.yaml: it is not a regular file"),
        ("metrics.csv", "zero", "metrics.csv in it is a symbolic link"),
        ("checkpoints", "link", "checkpoints in it is a symbolic link"),
        ("videos", "socket", "videos in it is not a regular file"),
    ],
)
def test_what_is_no_file_of_a_run_is_named_and_nothing_written_elsewhere(
    tmp_path: Path, file: str, kind: str, message: str
) -> None:
    run_dir, outside = make_run(tmp_path), tmp_path / "outside"
    if file == "checkpoints":
        (run_dir / file).rename(outside)
    else:
        outside.mkdir()
        (outside / ".x.tmp").write_bytes(b"precious")
    if not (run_dir / file).exists():
        (run_dir / file).touch()
    retype(run_dir / file, kind, outside)
    before = everything(tmp_path)
    with chdir(tmp_path):
        code, said = call("train", TASK, "--resume", str(run_dir), "--agent.max-iterations", "9")
    assert (code, message in said) == (2, True), said
    assert everything(tmp_path) == before


def test_a_link_between_attempts_is_not_followed(tmp_path: Path) -> None:
    run_dir, outside = make_run(tmp_path), tmp_path / "outside"
    (run_dir / "failures/attempt_1").rename(outside)
    (outside / "rank0.json").write_text(json.dumps(FAILURE | {"message": "elsewhere"}))
    (run_dir / "failures/attempt_1").symlink_to(outside)
    assert call("report", str(run_dir), "--output", str(tmp_path / "page.html"))[0] == 0
    assert "elsewhere" not in (tmp_path / "page.html").read_text()
