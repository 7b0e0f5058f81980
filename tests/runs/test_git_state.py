"""What a run keeps of the git repositories that its code comes from."""

import subprocess
from pathlib import Path

from mjfleet.runs.git_state import DIFF_CHARACTERS, git_state

AUTHOR = ("-c", "user.name=a", "-c", "user.email=a@example.com")


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", *AUTHOR, *arguments], cwd=folder, check=True, capture_output=True)


def test_changed_code_is_kept_and_nothing_else_and_no_program_runs(tmp_path: Path) -> None:
    task = tmp_path / "tasks/walker"
    task.mkdir(parents=True)
    names = ("env.py", "id_rsa", ".env", "config.py")
    for name in names:
        (task / name).write_text("first\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "begin")
    assert git_state([task])[str(tmp_path)].keys() == {"commit", "dirty"}
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    program.chmod(0o755)
    git(tmp_path, "config", "core.fsmonitor", str(program))
    git(tmp_path, "config", "diff.external", str(program))
    for name in names:
        (task / name).write_bytes(b"second \xe9\n")
    (task / "env.py").write_text("x" * 2 * DIFF_CHARACTERS)
    (state,) = git_state([task, tmp_path]).values()
    assert state["dirty"]
    assert len(state["diff"]) == DIFF_CHARACTERS
    assert "+second" in state["diff"]
    assert all(name not in state["diff"] for name in ("id_rsa", ".env"))
    assert not (tmp_path / "ran").exists()
    assert git_state([Path("/proc")]) == {}
