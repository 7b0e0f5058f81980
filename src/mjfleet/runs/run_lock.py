"""The lock of a run directory, by which one process at a time trains in it.

On a file system without locks, the process that trains touches the lock's file instead, and what
run.json says of that process decides.
"""

import fcntl
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from weakref import finalize

from mjfleet.errors import UserError
from mjfleet.runs.run_json import read_record
from mjfleet.utils.console import print_line

LOCK_FILE = ".lock"
BRIEF_SECONDS = 3.0
"""How long to wait for a lock: the processes of a run that has just ended may still hold it."""
REQUEUE_SECONDS = 60.0
"""The same where a scheduler may have started a job again before its last processes have ended."""
TOUCH_SECONDS = 15.0
SILENT_SECONDS = 60.0  # A process that has not touched the file for so long has ended.


class RunLock:
    """The right to train in a run directory or a group's folder, until it is closed."""

    def __init__(self, path: Path, file: int, has_lock: bool) -> None:
        self._closed, self._release = threading.Event(), finalize(self, os.close, file)
        if not has_lock:
            _touch(path)
            arguments = path, self._closed
            threading.Thread(target=_touch_until, args=arguments, daemon=True).start()

    def close(self) -> None:
        """Release the lock."""
        self._closed.set()
        self._release()


def lock_run(
    run_dir: Path, patience: float = BRIEF_SECONDS, clock: Callable[[], float] = time.monotonic
) -> RunLock:
    """Lock a run directory or a group's folder; wait `patience` seconds for another process.

    UserError if it still trains there, has removed the directory, or the lock's file cannot be
    written.
    """
    path = run_dir / LOCK_FILE
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}.") from None
    deadline, is_announced = clock() + patience, False
    try:
        while not (has_lock := _try_lock(file, fcntl.LOCK_EX)) and (
            has_lock is False or _is_trained(run_dir)
        ):
            trainer = "another process"  # It may have locked a new run, but not recorded it yet.
            with suppress(OSError, ValueError):
                if record := read_record(run_dir):
                    trainer = f"process {record.get('pid')} on {record.get('host')}"
            if clock() > deadline:
                raise UserError(f"{run_dir} is being trained by {trainer}. Stop it first.")
            if patience > BRIEF_SECONDS and not is_announced:
                print_line(f"waiting up to {patience:g} s for {trainer}, which trains in {run_dir}")
                is_announced = True
            time.sleep(0.1)
        if not path.exists() or not os.path.samestat(os.fstat(file), path.stat()):
            raise UserError(f"{run_dir} has been removed meanwhile.")
    except BaseException:
        os.close(file)
        raise
    return RunLock(path, file, bool(has_lock))


def lock_again(run_dir: Path, patience: float = BRIEF_SECONDS) -> RunLock | None:
    """Lock a run as `lock_run` does; return None, and make no file, if it was never locked."""
    return lock_run(run_dir, patience) if os.path.lexists(run_dir / LOCK_FILE) else None


def is_locked(run_dir: Path) -> bool:
    """Return whether a process trains in a run directory or has the members of a group trained."""
    try:
        file = os.open(run_dir / LOCK_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        is_free = _try_lock(file, fcntl.LOCK_SH)
        return _is_trained(run_dir) if is_free is None else not is_free
    finally:
        os.close(file)


def _touch(path: Path) -> None:
    with suppress(OSError):  # The directory is gone, or its disk is.
        os.utime(path, follow_symlinks=False)


def _touch_until(path: Path, is_closed: threading.Event) -> None:
    while not is_closed.wait(TOUCH_SECONDS):
        _touch(path)


def _try_lock(file: int, kind: int) -> bool | None:
    """Return whether flock(2) locks a file now; None: the file system has no locks."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _is_trained(run_dir: Path) -> bool:
    """Return whether a process trains there, by run.json and by when the file was touched last."""
    try:
        record = read_record(run_dir)
        touched = (run_dir / LOCK_FILE).stat().st_mtime
    except (OSError, ValueError):
        return False
    if record.get("status") != "running" or time.time() - touched > SILENT_SECONDS:
        return False
    pid = record.get("pid")
    if record.get("host") == os.uname().nodename and isinstance(pid, int):
        return Path("/proc", str(pid)).exists()
    return True
