"""What crosses into a worker and back, as plain data. Imports nothing heavy."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from mjfleet.errors import UserError

LOOPBACK_ALONE = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
"""The variables by which gloo and NCCL keep to this host."""


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
            UserError: WORLD_SIZE is set, but not all else that a worker needs to know.
        """
        alone = environ.get("WORLD_SIZE", "1") == "1"
        if alone and "LOCAL_RANK" not in environ:
            return None
        needed = ["WORLD_SIZE", "RANK", "LOCAL_RANK"]
        if not alone:
            needed += ["MASTER_ADDR", "MASTER_PORT"]
        if environ.get("SLURM_NNODES", "1") != "1":
            needed += ["LOCAL_WORLD_SIZE"]
        try:
            if missing := [name for name in needed if name not in environ]:
                raise ValueError(f"{', '.join(missing)} missing")
            world_size, rank, local_rank = (int(environ[name]) for name in needed[:3])
            local_world_size = int(environ.get("LOCAL_WORLD_SIZE", world_size))
            if not (0 <= local_rank <= rank < world_size and local_rank < local_world_size):
                raise ValueError("no place among the others")
            node = environ.get("GROUP_RANK", environ.get("SLURM_NODEID", rank // local_world_size))
            node = int(node)
        except ValueError as error:
            names = dict.fromkeys([*needed, "LOCAL_WORLD_SIZE"])
            given = ", ".join(f"{name}={environ[name]}" for name in names if name in environ)
            raise UserError(
                f"{given}: {error}. A worker that something else has started needs "
                f"{', '.join(needed)}, as torchrun sets them; unset WORLD_SIZE to have workers "
                "started here."
            ) from None
        return cls(
            rank=rank,
            local_rank=local_rank,
            world_size=world_size,
            local_world_size=local_world_size,
            node=node,
        )


@dataclass(frozen=True, kw_only=True)
class HostArgs:
    """The part of one host in a run on several."""

    node: int
    """The number of the host."""
    first_rank: int
    """That of its first worker."""
    world_size: int
    """The number of workers of all hosts."""
    address: str
    """Where rank 0 listens, which the workers of other hosts can reach."""
    port: int
    network: Mapping[str, str] = field(default_factory=dict)
    """The variables that tell gloo and NCCL by which interface this host reaches the others."""


@dataclass(frozen=True, kw_only=True)
class WorkerArgs:
    """What a host's workers need to know; each loads the task again by name."""

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
    """Whether we have started the workers; without a `part`, all on this host."""
    part: HostArgs | None = None
    """This host's, where there are several that we have started workers on."""
    terminal: tuple[str, str] | None = None
    """For workers that we started: where rank 0 writes its standard output and error."""
    log_files: tuple[str, ...] = ()
    """Where the others of them, by local rank, write theirs; rank 0's receives what it wrote.
    Without a `terminal`, rank 0 writes there like the others."""
    temporary: str = ""
    """For workers that we started: the user's folder for temporary files."""
    scratch: str = ""
    """For workers that we started: the folder by which they and the launcher share their pulses."""
    checkpoint: str | None = None
    """Where training goes on from; None: it begins."""

    def rank_of(self, local_rank: int) -> Rank:
        """The place of one of this host's workers that we have started."""
        part, workers = self.part, len(self.devices)
        return Rank(
            rank=local_rank + (part.first_rank if part else 0),
            local_rank=local_rank,
            world_size=part.world_size if part else workers,
            local_world_size=workers,
            node=part.node if part else 0,
        )

    def heartbeat_file(self, local_rank: int) -> Path:
        """Where a worker's pulse is, for those that we started."""
        return Path(self.scratch, f"heartbeat{local_rank}")

    def stacks_file(self, local_rank: int) -> Path:
        """Where a worker writes its Python stacks when it receives SIGQUIT."""
        return Path(self.scratch, f"stacks{local_rank}")


@dataclass(frozen=True)
class Outcome:
    """How a worker's training ended."""

    iterations: int
    """Iterations that were completed."""
    stopped_by: int | None
    """The signal that ended training early, if one did."""
