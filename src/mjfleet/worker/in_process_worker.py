"""Trains in the current process: one that a shell, torchrun or a scheduler has started."""

import faulthandler
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from mjfleet.errors import Stopped, UserError
from mjfleet.utils.parent_death import die_with_parent
from mjfleet.utils.same_folder import same_folder
from mjfleet.utils.wait_until import wait_until
from mjfleet.worker.failure_record import (
    SECONDARY_SECONDS,
    FailedError,
    Failure,
    hang_message,
    only_waits,
    read_failures,
)
from mjfleet.worker.heartbeat import HangDetector, Heartbeat
from mjfleet.worker.rank_environment import Rank
from mjfleet.worker.stop_signals import StopRequest
from mjfleet.worker.under_torchrun import is_from_torchrun, note_run, tell_cause
from mjfleet.worker.worker_args import Outcome, WorkerArgs
from mjfleet.worker.worker_main import train_worker

LOOK_SECONDS = 1.0
PRINT_SECONDS = 5.0  # How long printing why it hangs may take: its terminal may have no reader.


@same_folder()
def train_in_process(
    args: WorkerArgs, rank: Rank, stop: StopRequest, on_hang: Callable[[FailedError], object]
) -> Outcome:
    """Train in this process.

    If this worker hangs, `on_hang` is called from another thread, and the process ends afterwards.

    Raises:
        UserError: a mistake of the user's, found before training began.
        FailedError: anything else went wrong.
        Stopped: a signal arrived.
    """
    if is_from_torchrun():
        die_with_parent()
    heartbeat = Heartbeat()
    heartbeat.start()
    if sys.__stderr__:
        faulthandler.enable(sys.__stderr__)  # A crash shows its Python stack.
    run_dirs = [Path(args.run_dir)] if rank.rank == 0 else []  # Others learn it from rank 0.

    def on_run_dir(run_dir: Path) -> None:
        run_dirs.append(run_dir)
        note_run(run_dir)

    def recorded(failure: Failure) -> FailedError:
        if run_dirs:
            failure.write(run_dirs[-1])
        return FailedError(failure, run_dirs[-1] if run_dirs else None)

    try:
        with _ended_when_it_hangs(args, rank, heartbeat, lambda hang: on_hang(recorded(hang))):
            return train_worker(args, rank, stop, heartbeat, on_run_dir)
    except BaseException as error:
        if isinstance(error, (ImportError, UserError)):
            stop.check()  # An import that a signal has interrupted can fail when it is repeated.
        # torchrun stops a worker that has lost another one, while it handles that.
        cause = error.__context__ if isinstance(error, Stopped) else error
        with stop.deferred(say=lambda text: None):
            failure = Failure.of(cause, args, rank, heartbeat) if cause else None
            if failure is None or (isinstance(error, Stopped) and not failure.is_secondary):
                raise
            if isinstance(error, UserError) and not heartbeat.has_begun:
                raise
            failed = recorded(failure)
            if not failure.is_secondary:
                tell_cause(failure)
            elif rank.rank == 0:
                failed = _cause_of(failed, run_dirs[0])
        raise failed from error


def _cause_of(failed: FailedError, run_dir: Path) -> FailedError:
    """Return the failure of another rank from which this one follows, once it is recorded."""

    def causes() -> list[Failure]:
        return [failure for failure in read_failures(run_dir) if not failure.is_secondary]

    wait_until(causes, SECONDARY_SECONDS)
    return FailedError(causes()[0], run_dir) if causes() else failed


@contextmanager
def _ended_when_it_hangs(
    args: WorkerArgs, rank: Rank, heartbeat: Heartbeat, on_hang: Callable[[Failure], object]
) -> Iterator[None]:
    """End the process when the heartbeat is silent for the hang time-out."""
    limit: float = args.config["hang_timeout"]
    detector, over = HangDetector([heartbeat], limit), threading.Event()

    def watch() -> None:
        while not over.wait(LOOK_SECONDS):
            # A rank that waits for another one is subject to the time-out of collectives.
            if detector.hangs() and not only_waits(stacks := _stacks()):
                threading.Timer(PRINT_SECONDS, os._exit, (1,)).start()
                seen = Failure.seen("Hang", hang_message(limit, stacks), args, rank, heartbeat)
                on_hang(replace(seen, traceback=stacks))
                sys.stderr.flush()
                os._exit(1)

    threading.Thread(target=watch, name="hang", daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _stacks() -> str:
    """Return the Python stacks of all threads of this process."""
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read()
