"""What a worker that torchrunx has started does first and last. Runs in that worker."""

import faulthandler
import os
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NoReturn

from mjfleet.errors import Stopped
from mjfleet.utils.parent_death import die_with_parent
from mjfleet.worker.failure_record import SECONDARY_SECONDS, Failure
from mjfleet.worker.heartbeat import Heartbeat
from mjfleet.worker.rank_environment import Rank
from mjfleet.worker.stop_signals import StopRequest
from mjfleet.worker.worker_args import LOOPBACK_ALONE, HostArgs, WorkerArgs
from mjfleet.worker.worker_main import train_worker

FLUSH_SECONDS = 5.0  # How long a worker that has failed may take to write what it has printed.
RELAY_SECONDS = 0.2  # Within this time the launcher copies rank 0's output into its log file.


def train_as_torchrunx_worker(args: WorkerArgs) -> None:
    """Train as one of the workers that torchrunx has started.

    The launcher follows this process by its heartbeat. A failure is recorded, and the process ends
    at once: torchrunx would hold an exception back until all workers end, while the others wait
    for this one in a collective.
    """
    die_with_parent()
    rank = args.rank_of(int(os.environ["LOCAL_RANK"]))
    if args.part:
        _join_other_hosts(args.part, rank)
    heartbeat = Heartbeat.in_file(args.heartbeat_file(rank.local_rank))
    heartbeat.start()
    log_file = args.log_files[rank.local_rank]
    stdout, stderr = args.terminal if args.terminal and rank.rank == 0 else (log_file, log_file)
    _redirect_output(stdout, stderr)
    # faulthandler writes stacks from C, also when no Python code can run.
    stacks = args.stacks_file(rank.local_rank)
    faulthandler.register(signal.SIGQUIT, stacks.open("w"), all_threads=True)
    faulthandler.enable()
    # torch leaves files in the folder for temporary files; those of a task belong in the user's.
    os.environ["TMPDIR"] = args.temporary
    tempfile.tempdir = None
    # The launcher sends SIGINT for every signal; torch sends SIGTERM when all is lost.
    stop = StopRequest([signal.SIGINT], say=lambda text: None)
    try:
        with stop.installed():
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            outcome = train_worker(args, rank, stop, heartbeat)
        sys.stdout.flush()
        sys.stderr.flush()
        heartbeat.finish(outcome.stopped_by)
    except Stopped as stopped:
        _end(128 + stopped.signal_number)
    except BaseException as error:
        _fail(error, args, rank, heartbeat)


def _join_other_hosts(part: HostArgs, rank: Rank) -> None:
    """Correct the variables that torchrunx has set, which knows this host alone."""
    for variable in LOOPBACK_ALONE:
        os.environ.pop(variable)
    os.environ |= {
        **part.network,
        "RANK": str(rank.rank),
        "WORLD_SIZE": str(rank.world_size),
        "GROUP_RANK": str(rank.node),
        "MASTER_ADDR": part.address,
        "MASTER_PORT": str(part.port),
    }


def _redirect_output(stdout: str, stderr: str) -> None:
    for stream, path in ((sys.stdout, stdout), (sys.stderr, stderr)):
        stream.flush()
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOCTTY, 0o644)
        os.dup2(file, stream.fileno())
        os.close(file)
    sys.stdout.reconfigure(line_buffering=True)  # pyright: ignore[reportAttributeAccessIssue]


def _fail(error: BaseException, args: WorkerArgs, rank: Rank, heartbeat: Heartbeat) -> NoReturn:
    """Record why this worker fails, and end it.

    Nothing is printed: the launcher, which sees the failures of all ranks, reports the first.
    """
    try:
        if rank.rank == 0:
            time.sleep(RELAY_SECONDS)
        failure = Failure.of(error, args, rank, heartbeat)
        if failure.write(Path(args.run_dir)) is None:
            print(failure.report, file=sys.stderr)
        with open(args.log_files[rank.local_rank], "a", errors="backslashreplace") as file:
            file.write(failure.traceback)
        if failure.is_secondary:
            time.sleep(SECONDARY_SECONDS)
    finally:
        _end(1)


def _end(code: int) -> NoReturn:
    """End this process now, without waiting for threads, its parent, or long for a reader."""
    threading.Timer(FLUSH_SECONDS, os._exit, (code,)).start()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
