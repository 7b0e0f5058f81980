"""Trains in the current process: one that a shell, torchrun or a scheduler has started."""

import faulthandler
import os
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from mjfleet.utils.parent_death import die_with_parent
from mjfleet.utils.same_folder import same_folder
from mjfleet.worker.failure_record import Failure, hang_message, only_waits
from mjfleet.worker.heartbeat import HangDetector, Heartbeat
from mjfleet.worker.rank_environment import Rank
from mjfleet.worker.stop_signals import StopRequest
from mjfleet.worker.worker_args import Outcome, WorkerArgs
from mjfleet.worker.worker_main import run_worker

HEARTBEAT_POLL_SECONDS = 1.0
PRINT_SECONDS = 5.0  # How long printing why it hangs may take: its terminal may have no reader.


@same_folder()
def train_in_process(
    args: WorkerArgs, rank: Rank, stop: StopRequest, on_hang: Callable[[Failure], object]
) -> Outcome | Failure:
    """Train in this process; return how that ended.

    If this worker hangs, `on_hang` is called from another thread, and the process ends afterwards.

    Raises:
        Stopped: a signal arrived.
    """
    if "TORCHELASTIC_ERROR_FILE" in os.environ:  # torchrun's variable.
        die_with_parent()
    heartbeat = Heartbeat()
    heartbeat.start()
    if sys.__stderr__:
        faulthandler.enable(sys.__stderr__)  # A crash shows its Python stack.
    run_dirs = [Path(args.run_dir)] if rank.rank == 0 else []  # Others learn it from rank 0.
    limit: float = args.config["hang_timeout"]
    detector, over = HangDetector([heartbeat], limit), threading.Event()

    def watch() -> None:
        while not over.wait(HEARTBEAT_POLL_SECONDS):
            # A rank that waits for another one is subject to the time-out of collectives.
            if detector.hangs() and not only_waits(stacks := _stacks()):
                threading.Timer(PRINT_SECONDS, os._exit, (1,)).start()
                seen = Failure.seen("Hang", hang_message(limit, stacks), args, rank, heartbeat)
                hang = replace(seen, traceback=stacks)
                hang.write(*run_dirs[-1:])
                on_hang(hang)
                sys.stderr.flush()
                os._exit(1)

    threading.Thread(target=watch, name="hang", daemon=True).start()
    try:
        return run_worker(args, rank, stop, heartbeat, run_dirs)
    finally:
        over.set()


def _stacks() -> str:
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read()
