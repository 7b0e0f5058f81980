"""Why a worker ended early: what failures/rank<r>.json holds. Imports nothing heavy."""

import json
import logging
import os
import re
import socket
import time
import traceback
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mjfleet.errors import UserError
from mjfleet.rl.phase import Phase
from mjfleet.utils.atomic_write import write_atomically
from mjfleet.worker.heartbeat import Heartbeat
from mjfleet.worker.worker_args import Rank, WorkerArgs

logger = logging.getLogger(__name__)

ECHO_SECONDS = 3.0
"""A worker that has only lost another one lasts longer, so that the other is seen to end first."""
TOLD_BY_MESSAGE = ("DivergedError", "OutOfStepError", "CheckpointError")
"""Exceptions of our own whose place in the code says nothing."""
LOG_LINES = 20
"""How many of a worker's last log lines its record holds."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why a worker ended early."""

    rank: int
    host: str
    device: str
    seed: int
    iteration: int
    """The one that was under way, counted from 1; 0 before the first."""
    phase: str
    """What it was doing: a name of `Phase`, in lower case."""
    time: float = field(default_factory=time.time)
    """Seconds since the epoch."""
    kind: str
    """The exception's class; "Killed", "Exited" or "Hang" where there was none; "Agent" where it
    was no worker, but torchrunx's agent; "Lost" where it was a host."""
    message: str
    traceback: str
    """Of the exception; of a hang, the Python stacks of all its threads."""
    mistake: bool = False
    """Whether it is the user's mistake, for whom the message is enough."""
    echo: bool = False
    """Whether it is only what another rank's failure looks like from here."""
    log: list[str] = field(default_factory=list)
    """The worker's last log lines, where it has a log of its own."""

    @classmethod
    def of(
        cls, error: BaseException, job: WorkerArgs, rank: Rank, heartbeat: Heartbeat
    ) -> "Failure":
        """What an exception says, which may be one that cannot be shown."""
        told = traceback.TracebackException.from_exception(error)
        head, _, rest = "".join(told.format_exception_only()).strip().partition(": ")
        return cls(
            **_whereabouts(job, rank, heartbeat),
            kind=type(error).__name__,
            message=rest or head,
            traceback="".join(told.format()),
            mistake=isinstance(error, UserError),
            log=last_lines(job, rank),
            echo=_is_echo(error, rest),
        )

    @classmethod
    def seen(
        cls,
        kind: str,
        message: str,
        job: WorkerArgs,
        rank: Rank,
        heartbeat: Heartbeat,
        stacks: str = "",
    ) -> "Failure":
        """What was seen of a worker from outside."""
        return cls(
            **_whereabouts(job, rank, heartbeat),
            kind=kind,
            message=message,
            traceback=stacks,
            log=last_lines(job, rank),
        )

    @property
    def has_begun(self) -> bool:
        """Whether training had begun."""
        return Phase[self.phase.upper()] >= Phase.COLLECT

    @property
    def is_users_mistake(self) -> bool:
        """Whether all that has happened is that a worker has found a mistake of the user's."""
        return self.mistake and not self.has_begun

    @property
    def headline(self) -> str:
        """Who failed, and where."""
        when = f"iteration {self.iteration}, {self.phase}" if self.iteration else self.phase
        return f"rank {self.rank} on {self.host} ({self.device}), {when}"

    @property
    def summary(self) -> str:
        """Who failed, where and why, in a line."""
        return f"{self.headline}: {self.kind}: {self.message}"

    def write(self, run_dir: Path) -> Path | None:
        """Store it in the run directory; returns the file, or None where that cannot be done."""
        path = run_dir / "failures" / f"rank{self.rank}.json"
        text = json.dumps(asdict(self), indent=2) + "\n"
        try:
            path.parent.mkdir(exist_ok=True)
            write_atomically(path, lambda file: file.write(text.encode()))
        except OSError as error:
            logger.warning("%s could not be written: %s", path, error.strerror)
            return None
        return path

    @property
    def report(self) -> str:
        """All that a person needs to know of it, without the stacks of a hang."""
        if self.kind in ("Agent", "Lost"):
            return f"on {self.host}: {self.message}"
        if self.kind in TOLD_BY_MESSAGE:
            return f"{self.headline}: {self.message}"
        if self.kind in ("Hang", "Killed", "Exited"):
            end = "".join(f"\n  {line}" for line in self.log[-5:])
            return f"{self.headline}: {self.message}" + (f"\nIts last lines:{end}" if end else "")
        return f"{self.headline}:\n{self.traceback.rstrip()}"


class FailedError(Exception):
    """A worker has failed, as its record says."""

    def __init__(self, failure: Failure, record: Path | None) -> None:
        """Hold the record, and its file where it could be written."""
        super().__init__(failure.message)
        self.failure = failure
        self.record = record


def innermost(stacks: str) -> str:
    """Where the main thread is, in words; faulthandler writes it last, its newest call first."""
    frames = re.findall(r'\(most recent call first\):\n  File "(.+)", line (\d+) in (.+)', stacks)
    if not frames:
        return ""
    file, line, function = frames[-1]
    return f", in {function} ({file}, line {line})"


def only_waits(stacks: str) -> bool:
    """Whether a rank with such stacks waits for others."""
    waiting = ("distributed_c10d.py", "rl/collectives.py", "worker/group.py")
    return any(file in stacks for file in waiting)


def read_failures(run_dir: Path) -> list[Failure]:
    """All that were written, the causes before the echoes, each by time."""
    paths = (run_dir / "failures").glob("rank*.json")
    found = [Failure(**json.loads(path.read_text())) for path in paths]
    return sorted(found, key=lambda failure: (failure.echo, failure.time))


def _is_echo(error: BaseException, message: str) -> bool:
    """Whether this is how another rank's end looks from here: a connection that is gone."""
    if not isinstance(error, (RuntimeError, OSError)):
        return False
    from torch.distributed import DistError, DistNetworkError

    if isinstance(error, DistNetworkError):
        return True
    if isinstance(error, DistError):
        return "remote" in message
    return "gloo/transport" in message and "Timed out" not in message


def last_lines(job: WorkerArgs, rank: Rank) -> list[str]:
    """The end of a worker's own log; nothing where it has none."""
    if not job.log_files or job.log_files[rank.local_rank] == os.devnull:
        return []
    try:
        with open(job.log_files[rank.local_rank], "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 65536))
            return file.read().decode(errors="replace").splitlines()[-LOG_LINES:]
    except OSError:
        return []  # It ended before it had a log.


def _whereabouts(job: WorkerArgs, rank: Rank, heartbeat: Heartbeat) -> dict[str, Any]:
    return {
        "rank": rank.rank,
        "host": socket.gethostname(),
        "device": job.devices[rank.local_rank],
        "seed": job.config["agent"]["seed"] + rank.rank,
        "iteration": heartbeat.iteration,
        "phase": heartbeat.phase.name.lower(),
    }
