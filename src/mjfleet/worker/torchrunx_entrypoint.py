"""A worker that torchrunx has started: its own output, and how it fails. Runs in that worker."""

import faulthandler
import logging
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
from mjfleet.worker.failure_record import ECHO_SECONDS, Failure
from mjfleet.worker.heartbeat import Heartbeat
from mjfleet.worker.stop_signals import StopRequest
from mjfleet.worker.worker_args import LOOPBACK_ALONE, HostArgs, Rank, WorkerArgs
from mjfleet.worker.worker_main import run

FLUSH_SECONDS = 5.0
"""How long a worker that has failed may take to write what it has printed."""
DRAIN_SECONDS = 0.2
"""Within which the launcher has written to rank 0's log file what rank 0 printed."""


def run_spawned(job: WorkerArgs) -> None:
    """Train as one of the workers that torchrunx has started.

    The launcher follows this process by its pulse. A failure is written down, and the process ends
    at once: torchrunx would hold the exception back until all workers end, while the others wait
    for this one in a collective.
    """
    die_with_parent()
    rank = job.rank_of(int(os.environ["LOCAL_RANK"]))
    if job.part:
        _join_other_hosts(job.part, rank)
    heartbeat = Heartbeat(job.heartbeat_file(rank.local_rank))
    heartbeat.start(os.getpid())
    log_file = job.log_files[rank.local_rank]
    _use_own_output(*(job.terminal if job.terminal and rank.rank == 0 else (log_file, log_file)))
    _show_stacks(job.stacks_file(rank.local_rank))
    # torch leaves files behind in the folder for temporary ones; a task's own go where they belong.
    os.environ["TMPDIR"] = job.temporary
    tempfile.tempdir = None
    # The launcher turns every signal into SIGINT; SIGTERM, torch's own, means that all is lost.
    stop = StopRequest([signal.SIGINT], say=lambda text: None)
    try:
        with stop.installed():
            outcome = run(job, rank, stop, heartbeat)
        _flush()
        heartbeat.finish(outcome.stopped_by)
    except Stopped as stopped:
        _end(128 + stopped.signal_number)
    except BaseException as error:
        _fail(error, job, rank, heartbeat)


def _join_other_hosts(part: HostArgs, rank: Rank) -> None:
    """Correct what torchrunx has set, which knows this host alone."""
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


def _fail(error: BaseException, job: WorkerArgs, rank: Rank, heartbeat: Heartbeat) -> NoReturn:
    """Write down why this worker fails, and end.

    The terminal is for the launcher, which sees every rank's failure, to tell the first.
    """
    try:
        if rank.rank == 0:
            time.sleep(DRAIN_SECONDS)
        failure = Failure.of(error, job, rank, heartbeat)
        if failure.write(Path(job.run_dir)) is None:
            print(failure.report, file=sys.stderr)
        with open(job.log_files[rank.local_rank], "a", errors="backslashreplace") as file:
            file.write(failure.traceback)
        if failure.echo:
            time.sleep(ECHO_SECONDS)
    finally:
        _end(1)


def _use_own_output(stdout: str, stderr: str) -> None:
    """Write to files, not to torchrunx's log server, which drops lines and chokes on odd bytes."""
    for stream, path in ((sys.stdout, stdout), (sys.stderr, stderr)):
        stream.flush()
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOCTTY, 0o644)
        os.dup2(file, stream.fileno())
        os.close(file)
    sys.stdout.reconfigure(line_buffering=True)  # pyright: ignore[reportAttributeAccessIssue]
    root = logging.getLogger()
    root.handlers.clear()
    root.setLevel(logging.WARNING)
    logging.captureWarnings(False)
    logging.setLogRecordFactory(logging.LogRecord)


def _show_stacks(path: Path) -> None:
    """Write where every thread is: on SIGQUIT to a file, when Python crashes to the log.

    faulthandler writes from C, also when no Python code can run.
    """
    faulthandler.register(signal.SIGQUIT, path.open("w"), all_threads=True)
    faulthandler.enable()


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()


def _end(code: int) -> NoReturn:
    """End this process now, without waiting for threads, for its parent, or long for a reader."""
    threading.Timer(FLUSH_SECONDS, os._exit, (code,)).start()
    _flush()
    os._exit(code)
