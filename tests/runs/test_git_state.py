"""What a run keeps of the git repositories that its code comes from."""

import subprocess
from pathlib import Path

from mjfleet.runs.git_state import DIFF_CHARACTERS, git_state

AUTHOR = ("-c", "user.name=a", "-c", "user.email=a@example.com")


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", *AUTHOR, *arguments], cwd=folder, check=True, capture_output=True)


def test_a_dirty_tree_is_kept_without_secrets_and_without_running_programs(tmp_path: Path) -> None:
    task = tmp_path / "tasks/walker"
    task.mkdir(parents=True)
    names = ("env.py", "id_rsa", ".env", "latin.txt", "config.py")
    for name in names:
        (task / name).write_text("first\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "begin")
    assert git_state([task], with_diff=True)[str(tmp_path)].keys() == {"commit", "dirty"}
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    program.chmod(0o755)
    git(tmp_path, "config", "core.fsmonitor", str(program))
    git(tmp_path, "config", "diff.external", str(program))
    for name in names:
        (task / name).write_bytes(b"second \xe9\n")
    (task / "config.py").write_text("WANDB_API_KEY = 'abcdef'\nkeys = 3\nspeed = 2.5\n")
    (task / "env.py").write_text("x" * 2 * DIFF_CHARACTERS)
    (state,) = git_state([task, tmp_path], with_diff=True).values()
    diff = state["diff"]
    assert state["dirty"]
    assert "+speed = 2.5" in diff
    assert "WANDB_API_KEY = <left out>" in diff
    assert all(name not in diff for name in ("abcdef", "id_rsa", ".env"))
    assert DIFF_CHARACTERS < len(diff) < DIFF_CHARACTERS + 100
    assert not (tmp_path / "ran").exists()
    assert git_state([Path("/proc")], with_diff=True) == {}
