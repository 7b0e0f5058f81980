"""A worker in a process that somebody else has started: a shell, or torchrun for many of them."""

import faulthandler
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from mjfleet.errors import Stopped, UserError
from mjfleet.utils.parent_death import die_with_parent
from mjfleet.worker.failure_record import (
    ECHO_SECONDS,
    FailedError,
    Failure,
    innermost,
    only_waits,
    read_failures,
)
from mjfleet.worker.heartbeat import Heartbeat
from mjfleet.worker.stop_signals import StopRequest
from mjfleet.worker.under_torchrun import is_from_torchrun, note_run, tell_cause
from mjfleet.worker.worker_args import Outcome, Rank, WorkerArgs
from mjfleet.worker.worker_main import run

LOOK_SECONDS = 1.0
TELL_SECONDS = 5.0
ASLEEP_SECONDS = 5.0
"""Whoever looks again only after that long has not been running."""


def run_here(
    job: WorkerArgs, rank: Rank, stop: StopRequest, on_hang: Callable[[FailedError], object]
) -> Outcome:
    """Train in this process.

    Args:
        job: what to train.
        rank: this worker's place.
        stop: asks it to stop.
        on_hang: called from another thread when this one hangs; the process ends afterwards.

    Raises:
        UserError: a mistake of the user's, found before training began.
        FailedError: anything else went wrong.
    """
    if is_from_torchrun():
        die_with_parent()
    heartbeat = Heartbeat()
    heartbeat.start(os.getpid())
    if sys.__stderr__:
        faulthandler.enable(sys.__stderr__)  # A crash shows its Python stack.
    # Other ranks than 0 come to know it from rank 0.
    run_dirs = [Path(job.run_dir)] if rank.rank == 0 else []

    def found_run_dir(run_dir: Path) -> None:
        run_dirs.append(run_dir)
        note_run(run_dir)

    def recorded(failure: Failure) -> FailedError:
        return FailedError(failure, failure.write(run_dirs[-1]) if run_dirs else None)

    try:
        with _watched(job, rank, heartbeat, lambda failure: on_hang(recorded(failure))):
            return run(job, rank, stop, heartbeat, found_run_dir)
    except BaseException as error:
        if isinstance(error, ImportError):
            stop.check()  # A library that is imported anew after a signal may refuse.
        # A worker that has lost another is told by torchrun to stop as well.
        cause = error.__context__ if isinstance(error, Stopped) else error
        failure = Failure.of(cause, job, rank, heartbeat) if cause else None
        if failure is None or (isinstance(error, Stopped) and not failure.echo):
            raise
        if isinstance(error, UserError) and not heartbeat.has_begun:
            raise
        with stop.deferred(say=lambda text: None):
            failed = recorded(failure)
            if not failure.echo:
                tell_cause(failure)
            elif rank.rank == 0:
                failed = _cause_of(failed, run_dirs[0])
        raise failed from error


def _cause_of(failed: FailedError, run_dir: Path) -> FailedError:
    """What another rank has written that this rank's failure is only the echo of, if any."""
    deadline = time.monotonic() + ECHO_SECONDS
    while time.monotonic() < deadline:
        first = read_failures(run_dir)[:1]
        if first and not first[0].echo:
            return FailedError(first[0], run_dir / "failures" / f"rank{first[0].rank}.json")
        time.sleep(0.1)
    return failed


@contextmanager
def _watched(
    job: WorkerArgs, rank: Rank, heartbeat: Heartbeat, on_hang: Callable[[Failure], object]
) -> Iterator[None]:
    """End the process when it has not moved for the hang time-out."""
    limit = job.config["hang_timeout"]
    over = threading.Event()

    def watch() -> None:
        since = looked = time.monotonic()
        while not over.wait(LOOK_SECONDS):
            before, looked = looked, time.monotonic()
            if looked - before > ASLEEP_SECONDS:
                since = looked  # All of this process was suspended, by Ctrl-Z for instance.
            # A rank that waits for another one has the time-out of collectives.
            if (
                heartbeat.hangs(limit, since)
                and not heartbeat.is_excused
                and not only_waits(stacks := _stacks())
            ):
                # Nobody may be reading what is printed.
                threading.Timer(TELL_SECONDS, os._exit, (1,)).start()
                message = f"no step for {limit:g} s (--hang-timeout){innermost(stacks)}"
                on_hang(Failure.seen("Hang", message, job, rank, heartbeat, stacks=stacks))
                sys.stderr.flush()
                os._exit(1)

    if limit > 0:
        threading.Thread(target=watch, name="hang", daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _stacks() -> str:
    """Where every thread of this process is."""
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read()
