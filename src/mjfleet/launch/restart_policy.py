"""Starting a run again after a fault: when, and how. Runs in the launching process."""

import os
import signal
import sys
import time
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Any, NoReturn

from mjfleet.errors import Stopped
from mjfleet.runs.checkpoint_names import checkpoints_in
from mjfleet.runs.run_json import read_record, write_record
from mjfleet.utils.console import print_line
from mjfleet.worker.stop_signals import CONTROLLED, StopRequest

VARIABLE = "MJFLEET_RESTART"
"""The run that a process, started anew in the place of one that failed, goes on with."""
FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 60.0
"""Each pause is twice as long as the one before."""


def start_again(run_dir: Path, max_restarts: int) -> int:
    """Become the next attempt, after a pause; or say why not, and return the exit code."""
    reason = why_not(run_dir, max_restarts)
    if reason is not None:
        print_line(f"not started again: {reason}")
        return 1
    pause = pause_seconds(run_dir)
    print_line(f"starting again in {pause:g} s")
    try:
        with StopRequest().installed():
            time.sleep(pause)
    except Stopped as stopped:
        write_record(run_dir, status="stopped")
        return 128 + stopped.signal_number
    return _become_next(run_dir)


def why_not(run_dir: Path, max_restarts: int) -> str | None:
    """Why a run that has failed is not started again; None: it is to be.

    A fault that comes back in the same iteration would come back for ever. But a worker that was
    killed before the first one, in two attempts, was only unlucky twice.
    """
    attempts = read_record(run_dir)["attempts"]
    last = attempts[-1]
    if last.get("is_asked_to_stop"):
        return "it was asked to stop"
    restarts = len(_restarts(attempts))
    if restarts >= max_restarts:
        return f"it was started again {restarts} times, all of --max-restarts"
    if last["is_restart"]:
        before = attempts[-2]
        same = all(before.get(what) == last.get(what) for what in ("kind", "iteration"))
        unlucky = last.get("kind") in ("Killed", "Agent", "Lost") and not last.get("iteration")
        if same and not unlucky:
            return "the same fault has come back in the same iteration"
    return None


def pause_seconds(run_dir: Path) -> float:
    """How long to wait before the next start: twice as long after each that came to nothing."""
    found = checkpoints_in(run_dir / "checkpoints")
    newest = found[-1].name if found else None
    restarts = _restarts(read_record(run_dir)["attempts"])
    futile = [attempt for attempt in restarts if attempt["checkpoint"] == newest]
    return min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** len(futile))


def _restarts(attempts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The attempts that began by themselves since somebody last started the run."""
    return list(takewhile(lambda attempt: attempt["is_restart"], reversed(attempts)))


def _become_next(run_dir: Path) -> NoReturn:
    """Be a new process of the same command, number and terminal, that goes on with the run.

    Nothing of what failed is left in it: no thread that waits, no port, no half-closed library.
    Signals that arrive meanwhile wait until it handles them.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    signal.pthread_sigmask(signal.SIG_BLOCK, CONTROLLED)
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass  # torchrunx's log server.
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor > sys.stderr.fileno():
            with suppress(OSError):  # That of the listing itself.
                os.set_inheritable(descriptor, False)
    environ = os.environ | {VARIABLE: str(run_dir)}
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environ)
