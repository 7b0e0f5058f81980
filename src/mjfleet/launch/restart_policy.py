"""Whether and when a run starts again after a fault (--max-restarts). Runs in the launcher."""

import time
from itertools import takewhile
from pathlib import Path
from typing import Any

from mjfleet.errors import Stopped
from mjfleet.runs.checkpoints import checkpoints_in
from mjfleet.runs.run_json import read_record, record_file, write_record
from mjfleet.utils.console import print_line
from mjfleet.utils.wait_until import wait_until
from mjfleet.worker.stop_signals import StopRequest

FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 60.0


def wait_for_restart(run_dir: Path, max_restarts: int) -> int | None:
    """Wait until a failed run is to start again; return the exit code if it is not, else None.

    That its file system does not answer may be the fault: it has a minute for it.
    """
    try:
        with StopRequest().installed():
            wait_until(lambda: _answers(run_dir), LONGEST_PAUSE_SECONDS)
            if reason := why_not(run_dir, max_restarts):
                print_line(f"not started again: {reason}")
                return 1
            pause = pause_seconds(run_dir)
            print_line(f"starting again in {pause:g} s")
            time.sleep(pause)
    except Stopped as stopped:
        *_, last = read_record(run_dir).get("attempts") or [{"is_undone": True}]
        if not last.get("is_undone"):  # It has changed something, and is still there.
            write_record(run_dir, status="stopped")
        return 128 + stopped.signal_number
    return None


def why_not(run_dir: Path, max_restarts: int) -> str | None:
    """Return why a run that has failed does not start again; None: it does.

    A fault that comes back in the same iteration would come back forever. But a worker that was
    killed before the first iteration, in two attempts, was only unlucky twice. So was a command
    that lacked memory or a file, where it had begun well before.
    """
    try:
        *before, last = attempts = read_record(run_dir)["attempts"]
    except (OSError, ValueError, LookupError):
        return "its run directory is gone, or its run.json"
    if last.get("is_asked_to_stop"):
        return "it was asked to stop"
    restarts = len(_restarts(attempts))
    if restarts >= max_restarts:
        return f"it was started again {restarts} times, all of --max-restarts"
    kind, iteration = last.get("kind"), last.get("iteration")
    is_unlucky = kind in ("Killed", "Agent", "Lost", "UserError") and not iteration
    if last.get("is_restart") and not is_unlucky:
        earlier = before[-1]
        if (earlier.get("kind"), earlier.get("iteration")) == (kind, iteration):
            return "the same fault has come back in the same iteration"
    return None


def pause_seconds(run_dir: Path) -> float:
    """Return how long to wait before the next start: twice as long after each without progress."""
    found = checkpoints_in(run_dir / "checkpoints")
    newest = found[-1].name if found else None
    restarts = _restarts(read_record(run_dir)["attempts"])
    futile = [attempt for attempt in restarts if attempt.get("checkpoint") == newest]
    return min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** len(futile))


def _answers(run_dir: Path) -> bool:
    """Return whether the file system of a run directory answers, if only that nothing is there."""
    try:
        record_file(run_dir).read_bytes()
    except OSError as error:
        return isinstance(error, FileNotFoundError | NotADirectoryError)
    return True


def _restarts(attempts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the attempts that began by themselves since somebody last started the run."""
    return list(takewhile(lambda attempt: attempt.get("is_restart"), reversed(attempts)))
