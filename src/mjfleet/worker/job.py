"""What crosses into a worker and back, as plain data. Imports nothing heavy."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from mjfleet.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Rank:
    """One worker's place among all of them; by default the only one."""

    rank: int = 0
    """Its number among all workers."""
    local_rank: int = 0
    """Its number among the workers of its host."""
    world_size: int = 1
    """The number of workers."""
    local_world_size: int = 1
    """The number of workers of its host."""
    node: int = 0
    """The number of its host."""

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> "Rank | None":
        """The place that torchrun, torchrunx or a scheduler's script gave this process, if any.

        Raises:
            UserError: WORLD_SIZE says that there are others, but not which one this is.
        """
        if environ.get("WORLD_SIZE", "1") == "1":
            return None
        try:
            world_size, rank, local_rank = (
                int(environ[name]) for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK")
            )
            local_world_size = int(environ.get("LOCAL_WORLD_SIZE", world_size))
            node = int(environ.get("GROUP_RANK", rank // local_world_size))
            if not (0 <= local_rank <= rank < world_size and local_rank < local_world_size):
                raise ValueError
        except (KeyError, ValueError):
            names = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
            given = ", ".join(f"{name}={environ[name]}" for name in names if name in environ)
            raise UserError(
                f"{given}: to be one of several workers that something else has started, a process "
                "needs WORLD_SIZE, RANK and LOCAL_RANK, as torchrun sets them. Unset WORLD_SIZE to "
                "have workers started here."
            ) from None
        return cls(
            rank=rank,
            local_rank=local_rank,
            world_size=world_size,
            local_world_size=local_world_size,
            node=node,
        )


@dataclass(frozen=True, kw_only=True)
class Job:
    """What the workers need to know, the same for all; each loads the task again by name."""

    task: str
    task_folder: str
    config: Mapping[str, Any]
    """The resolved TrainConfig, as `mjfleet.config.to_dict` makes it."""
    devices: tuple[str, ...]
    """torch's name of each local worker's device."""
    engine: Literal["warp", "native"]
    threads: int
    """CPU threads of each worker."""
    run_dir: str
    backend: Literal["nccl", "gloo"] | None = None
    """How the workers talk to each other; None: there is only one."""
    local: bool = True
    """Whether all workers run on this host, started by us, and can talk over its loopback."""
    terminal: tuple[str, str] | None = None
    """For workers that we started: where rank 0 writes its standard output and error."""
    log_files: tuple[str, ...] = ()
    """Where the others of them, by local rank, write theirs; rank 0's receives what it wrote."""
    temporary: str = ""
    """For workers that we started: the user's folder for temporary files."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a worker's training ended."""

    iterations: int
    """Iterations that were completed."""
    stopped_by: int | None
    """The signal that ended training early, if one did."""
