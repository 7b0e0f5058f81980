"""Joins the workers of a run in a torch.distributed process group. Runs in workers."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import (
    FileStore,  # pyright: ignore[reportPrivateImportUsage]
    Store,  # pyright: ignore[reportPrivateImportUsage]
    TCPStore,  # pyright: ignore[reportPrivateImportUsage]
)

from mjfleet.rl.ranks.collectives import Collectives
from mjfleet.worker.rank_environment import Rank
from mjfleet.worker.under_torchrun import meet, meeting_store
from mjfleet.worker.worker_args import LOOPBACK_ALONE, WorkerArgs

STORE = "store"  # The file at which the workers of one host meet.


@contextmanager
def process_group(args: WorkerArgs, rank: Rank, timeout_seconds: float) -> Iterator[Collectives]:
    """Join the other workers for the length of the block; a single worker has no process group.

    A collective waits `timeout_seconds` for a rank, and raises an error then.

    After an error NCCL's group is left to the end of the process, which has to follow: destroying
    it would wait for the other ranks, which wait for this one.
    """
    timeout = timedelta(seconds=timeout_seconds)
    device = args.devices[rank.local_rank]
    if args.backend is None:
        yield Collectives(rank.rank, rank.world_size, device)
        return
    if rank.world_size == rank.local_world_size:
        for variable, interface in LOOPBACK_ALONE.items():
            os.environ.setdefault(variable, interface)
    dist.init_process_group(
        args.backend,
        store=_store(args, rank, timeout),
        rank=rank.rank,
        world_size=rank.world_size,
        timeout=timeout,
        device_id=torch.device(device) if args.backend == "nccl" else None,
    )
    try:
        yield Collectives(rank.rank, rank.world_size, device)
    except BaseException:
        if args.backend != "nccl":
            dist.destroy_process_group()
        raise
    dist.destroy_process_group()


def _store(args: WorkerArgs, rank: Rank, timeout: timedelta) -> Store:
    """Return where workers meet: torchrun's store, a file on one host, rank 0 on several hosts."""
    if not args.local:
        store = meeting_store(rank)
        store.set_timeout(timeout)
        return meet(store, rank, timeout)[0]
    if args.meeting is None:
        store = FileStore(str(Path(args.scratch, STORE)), rank.world_size)
        store.set_timeout(timeout)
        return store
    # The host agent has bound the port; others may connect before rank 0 serves.
    is_master = rank.rank == 0
    return TCPStore(
        *args.meeting,
        is_master=is_master,
        timeout=timeout,
        wait_for_workers=False,
        master_listen_fd=args.listener if is_master else None,
    )
