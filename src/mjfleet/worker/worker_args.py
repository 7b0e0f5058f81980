"""The plain data that enters and leaves a worker. Imports nothing heavy."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mjfleet.worker.rank_environment import Rank

LOOPBACK_ALONE = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
"""Environment variables that keep gloo and NCCL on this host."""


@dataclass(frozen=True, kw_only=True)
class WorkerArgs:
    """What the workers of a host need to know; each of them finds the task again by its name."""

    task: str
    task_folder: str
    config: Mapping[str, Any]  # The resolved TrainConfig, as `mjfleet.config.to_dict` makes it.
    devices: tuple[str, ...]  # torch's name of each local worker's device.
    gpus: tuple[str, ...] = ()  # What the driver calls each local worker's GPU.
    engine: Literal["warp", "native"]
    threads: int  # CPU threads of each worker.
    run_dir: str
    checkpoint: str | None = None  # Where training continues from; None: it begins.
    continues: bool = False  # Whether an earlier run continues, metrics included.
    task_hash: str = ""  # Hash of the task's code, for checkpoints.
    attempt: str = ""  # The attempt's random name, for checkpoints.
    backend: Literal["nccl", "gloo"] | None = None  # None: there is only one worker.
    local: bool = True  # Whether we have started the workers; without `meeting`, all on this host.
    # The rest is for workers that we have started.
    node: int = 0  # The number of this host.
    first_rank: int = 0  # The rank of its first worker.
    world_size: int | None = None  # The number of workers of all hosts; None: this is the only one.
    meeting: tuple[str, int] | None = None  # Where rank 0 listens for workers of several hosts.
    listener: int = -1  # The descriptor of the socket that listens there, on rank 0's host.
    terminal: tuple[str, str] | None = None  # Where rank 0 writes its standard output and error.
    log_files: tuple[str, ...] = ()
    """Where each writes its output, by local rank. Rank 0 writes to `terminal` instead, if there is
    one; its log file then receives a copy."""
    agent_log: str = ""  # Where torchrunx's agent logs.
    scratch: str = ""
    """A folder that is gone after the run: heartbeats, stacks, the store of one host's workers."""

    def rank_of(self, local_rank: int) -> Rank:
        """Return the place of one of this host's workers among all."""
        return Rank(
            rank=self.first_rank + local_rank,
            local_rank=local_rank,
            world_size=self.world_size or len(self.devices),
            local_world_size=len(self.devices),
        )

    def heartbeat_file(self, local_rank: int) -> Path:
        return Path(self.scratch, f"heartbeat{local_rank}")

    def stacks_file(self, local_rank: int) -> Path:
        """Return the file to which a worker writes its Python stacks on SIGQUIT."""
        return Path(self.scratch, f"stacks{local_rank}")


@dataclass(frozen=True)
class Outcome:
    """How a worker's training ended, if it did not fail."""

    stopped_by: int | None  # The signal that ended training early, if one did.
