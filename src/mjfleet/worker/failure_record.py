"""Why a worker ended early: the contents of failures/rank<r>.json. Imports nothing heavy."""

import json
import logging
import os
import re
import socket
import time
import traceback
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from mjfleet.errors import UserError
from mjfleet.utils.atomic_write import write_atomically
from mjfleet.utils.safe_read import read_json
from mjfleet.worker.heartbeat import Heartbeat
from mjfleet.worker.rank_environment import Rank
from mjfleet.worker.worker_args import WorkerArgs

logger = logging.getLogger(__name__)

SECONDARY_SECONDS = 3.0
"""After a worker has lost another one, the true cause may be recorded so much later."""
ALONE_SECONDS = SECONDARY_SECONDS + 1.0  # For which a secondary failure waits for its cause.
MESSAGE_SUFFICES = ("DivergedError", "OutOfStepError", "CheckpointError", "UserError")
"""Exceptions of ours that are reported by their message, without a traceback."""
SEEN_FROM_OUTSIDE = ("Hang", "Killed", "Exited")
"""Kinds of failures without an exception of the worker's."""
WAITING_FILES = (
    "distributed_c10d.py", "rl/ranks/collectives.py", "rl/ranks/gradients.py",
    "worker/torch_process_group.py",
)  # fmt: skip
"""Files whose functions wait for other ranks."""
LOG_LINES = 20


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why a worker ended early."""

    rank: int
    host: str
    device: str
    seed: int
    iteration: int  # The current one, counted from 1; 0 before the first.
    phase: str  # What it was doing: a name of `Phase`, in lower case.
    time: float = field(default_factory=time.time)  # Seconds since the epoch.
    kind: str
    """The exception's class; without an exception "Killed", "Exited" or "Hang"; "Agent" if it was
    torchrunx's agent, "Lost" if it was a host."""
    message: str
    traceback: str = ""  # The exception's; after a hang, the Python stacks of all threads.
    mistake: bool = False
    """Whether it is a mistake of the user's, found before anything was learned."""
    flags: str = ""  # With which a run that has diverged may continue.
    is_secondary: bool = False  # Whether it only follows from another rank's failure.
    log: tuple[str, ...] = ()  # The worker's last LOG_LINES, where it has a log of its own.

    @classmethod
    def of(
        cls, error: BaseException, args: WorkerArgs, rank: Rank, heartbeat: Heartbeat
    ) -> "Failure":
        """Describe an exception, which may be one whose text cannot be made."""
        shown = traceback.TracebackException.from_exception(error)
        kind = type(error).__name__
        try:
            message = str(error).strip()
        except Exception as problem:
            message = f"its text cannot be made ({type(problem).__name__})"
        # The headline names the iteration.
        message = message.removeprefix(f"iteration {heartbeat.iteration}: ")
        return replace(
            cls.seen(kind, message or kind, args, rank, heartbeat),
            traceback="".join(shown.format()),
            mistake=isinstance(error, UserError) and not heartbeat.has_learned,
            flags=getattr(error, "flags", ""),
            is_secondary=_is_lost_connection(error, message),
        )

    @classmethod
    def seen(
        cls, kind: str, message: str, args: WorkerArgs, rank: Rank, heartbeat: Heartbeat
    ) -> "Failure":
        """Describe what was seen of a worker from outside."""
        return cls(
            rank=rank.rank,
            host=socket.gethostname(),
            device=args.devices[rank.local_rank],
            seed=args.config["agent"]["seed"] + rank.rank,
            iteration=heartbeat.iteration,
            phase=heartbeat.phase.name.lower(),
            kind=kind,
            message=message,
            log=_last_log_lines(args, rank),
        )

    @property
    def headline(self) -> str:
        when = f"iteration {self.iteration}, {self.phase}" if self.iteration else self.phase
        return f"rank {self.rank} on {self.host} ({self.device}), {when}"

    @property
    def summary(self) -> str:
        return f"{self.headline}: {self.kind}: {self.message}"

    @property
    def report(self) -> str:
        """Everything that a person needs to know, without the stacks of a hang."""
        if self.kind in ("Agent", "Lost"):
            return f"on {self.host}: {self.message}"
        if self.kind not in (*MESSAGE_SUFFICES, *SEEN_FROM_OUTSIDE):
            return f"{self.headline}:\n{self.traceback.rstrip()}"
        end = "".join(f"\n  {line}" for line in self.log[-5:])
        last = f"\nIts last lines:{end}" if end and self.kind in SEEN_FROM_OUTSIDE else ""
        return f"{self.headline}: {self.message}{last}"

    def path(self, run_dir: Path) -> Path:
        return run_dir / "failures" / f"rank{self.rank}.json"

    def write(self, *run_dirs: Path) -> Path | None:
        """Write the record into the first of these folders that can be written; return its path.

        The first is the run directory. A warning says which cannot be written; None: all of them.
        """
        text = json.dumps(asdict(self), indent=2) + "\n"
        for path in map(self.path, run_dirs):
            try:
                path.parent.mkdir(exist_ok=True)
                write_atomically(path, lambda file: file.write(text.encode()))
                return path
            except OSError as error:
                logger.warning("%s could not be written: %s", path, error.strerror)
        return None


def read_failures(*run_dirs: Path) -> list[Failure]:
    """Return all records of a run: causes before secondary failures, each by time."""
    paths = [path for folder in run_dirs for path in (folder / "failures").glob("rank*.json")]
    records = list(map(read_json, paths))
    found = [Failure(**record | {"log": tuple(record["log"])}) for record in records]
    return sorted(found, key=lambda failure: (failure.is_secondary, failure.time))


def hang_message(limit: float, stacks: str) -> str:
    """Return the message that no step came for `limit` seconds, and where the main thread is.

    faulthandler writes the main thread last, its newest call first.
    """
    frames = re.findall(r'\(most recent call first\):\n  File "(.+)", line (\d+) in (.+)', stacks)
    where = ", in {2} ({0}, line {1})".format(*frames[-1]) if frames else ""
    return f"no step for {limit:g} s (--hang-timeout){where}"


def only_waits(stacks: str) -> bool:
    """Return whether a worker with these stacks waits for other ranks."""
    return any(file in stacks for file in WAITING_FILES)


def _is_lost_connection(error: BaseException, message: str) -> bool:
    if not isinstance(error, (RuntimeError, OSError)):
        return False
    from torch.distributed import DistError, DistNetworkError

    if isinstance(error, DistNetworkError):
        return True
    if isinstance(error, DistError):
        return "remote" in message
    return "gloo/transport" in message and "Timed out" not in message


def _last_log_lines(args: WorkerArgs, rank: Rank) -> tuple[str, ...]:
    try:
        with open(args.log_files[rank.local_rank], "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 65536))
            return tuple(file.read().decode(errors="replace").splitlines()[-LOG_LINES:])
    except (IndexError, OSError):  # It has no log, or ended before it had one.
        return ()
