"""A folder for temporary files, which is gone whatever happens to the process that made it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mjfleet.errors import UserError
from mjfleet.utils.vanishing_folder import vanishing_folder
from mjfleet.utils.wait_until import wait_until

from ..conftest import PATIENCE

HOLDING = """
import os, time
from mjfleet.utils.vanishing_folder import vanishing_folder
with vanishing_folder() as folder:
    (folder / "file").touch()
    print(folder, flush=True)
    if os.fork() == 0:
        os.setsid()
        input()
        os._exit(0)
    time.sleep(60)
"""


def test_it_is_gone_after_the_block() -> None:
    with vanishing_folder() as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "inside").mkdir()
    assert not folder.exists()


def test_it_is_gone_once_a_killed_process_and_its_forks_are() -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", HOLDING], stdin=pipe, stdout=pipe) as holder:
        assert holder.stdin
        assert holder.stdout
        folder = Path(holder.stdout.readline().decode().rstrip("\n"))
        holder.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)
        assert (folder / "file").exists()
        holder.stdin.close()
        assert wait_until(lambda: not folder.exists(), PATIENCE)


def test_a_folder_that_cannot_be_made_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/missing")
    with pytest.raises(UserError, match="/missing"), vanishing_folder():
        pass


def test_a_missing_mktemp_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="no command `mktemp`"), vanishing_folder():
        pass
