"""A worker that torchrunx has started: its own output, and how it fails. Runs in that worker."""

import json
import logging
import os
import signal
import socket
import sys
import tempfile
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path

from mjfleet.errors import UserError
from mjfleet.files import write_atomically
from mjfleet.worker.job import Job, Outcome, Rank
from mjfleet.worker.life import run
from mjfleet.worker.stop import Stopped, StopRequest, die_with_parent

ECHO_SECONDS = 3.0
"""A worker that has only lost another one lasts longer, so that the other is seen to end first."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why a worker ended early: what failures/rank<r>.json holds."""

    rank: int
    host: str
    device: str
    time: float
    """Seconds since the epoch."""
    kind: str
    """The exception's class."""
    message: str
    traceback: str
    mistake: bool
    """Whether it is the user's mistake, for whom the message is enough."""
    echo: bool
    """Whether it is only what another rank's failure looks like from here."""


def run_spawned(job: Job) -> Outcome:
    """Train as one of the workers that torchrunx has started.

    A failure is written down, and the process ends at once: torchrunx would hold the exception
    back until all workers end, while the others wait for this one in a collective.
    """
    die_with_parent()
    rank = Rank.from_environ(os.environ) or Rank()
    log_file = job.log_files[rank.local_rank]
    _use_own_output(*(job.terminal if job.terminal and rank.rank == 0 else (log_file, log_file)))
    # torch leaves files behind in the folder for temporary ones; a task's own go where they belong.
    os.environ["TMPDIR"] = job.temporary
    tempfile.tempdir = None
    # The launcher turns every signal into SIGINT; SIGTERM, torch's own, means that all is lost.
    stop = StopRequest([signal.SIGINT], say=lambda text: None)
    try:
        with stop.installed():
            return run(job, rank, stop)
    except Stopped as stopped:
        _end(128 + stopped.signal_number)
    except BaseException as error:
        # The terminal is for the launcher, which sees every rank's failure, to tell the first.
        with open(log_file, "a") as file:
            file.write(traceback.format_exc())
        echo = _is_echo(error)
        _write_failure(job, rank, error, echo)
        if echo:
            time.sleep(ECHO_SECONDS)
        _end(1)
    raise AssertionError("unreachable")


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


def _write_failure(job: Job, rank: Rank, error: BaseException, echo: bool) -> None:
    folder = Path(job.run_dir, "failures")
    folder.mkdir(exist_ok=True)
    failure = Failure(
        rank=rank.rank,
        host=socket.gethostname(),
        device=job.devices[rank.local_rank],
        time=time.time(),
        kind=type(error).__name__,
        message=str(error),
        traceback=traceback.format_exc(),
        mistake=isinstance(error, UserError),
        echo=echo,
    )
    text = json.dumps(asdict(failure), indent=2) + "\n"
    path = folder / f"rank{rank.rank}.json"
    write_atomically(path, lambda file: file.write(text.encode()))


def _is_echo(error: BaseException) -> bool:
    """Whether this is how another rank's end looks from here: a connection that is gone."""
    from torch.distributed import DistError, DistNetworkError

    if isinstance(error, DistNetworkError):
        return True
    text = str(error)
    if isinstance(error, DistError):
        return "remote" in text
    return "gloo/transport" in text and "Timed out" not in text


def _end(code: int) -> None:
    """End this process now, without waiting for threads or for its parent."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)
