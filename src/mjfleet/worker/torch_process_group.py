"""Joins the workers of a run in a torch.distributed process group. Runs in each worker."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import Store, TCPStore  # pyright: ignore[reportPrivateImportUsage]

from mjfleet.rl.collectives import Collectives
from mjfleet.worker.rank_environment import Rank
from mjfleet.worker.under_torchrun import meet, meeting_store
from mjfleet.worker.worker_args import LOOPBACK_ALONE, WorkerArgs

LOOPBACK = "127.0.0.1"


@contextmanager
def process_group(args: WorkerArgs, rank: Rank, timeout_seconds: float) -> Iterator[Collectives]:
    """Join the other workers for the length of the block; a single worker has no process group.

    A collective waits `timeout_seconds` for a rank.

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


def listening_store(address: str, port: int, world_size: int, timeout: timedelta) -> TCPStore:
    """Make a store that listens on one interface; torch's own would listen on all of them."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.create_server((address, port), family=family)
    return TCPStore(
        address, port, world_size, is_master=True, timeout=timeout, wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )  # fmt: skip


def _store(args: WorkerArgs, rank: Rank, timeout: timedelta) -> Store | None:
    """Return the store at which the workers meet; None: MASTER_ADDR and MASTER_PORT say where.

    For workers that we started, rank 0's listens on the loopback interface alone, or where there
    are several hosts, on the first one's address alone. The store of torchrun may hold what earlier
    workers of the run have left.
    """
    if not args.local:
        if (store := meeting_store(rank)) is None:
            return None
        store.set_timeout(timeout)
        return meet(store, rank, timeout)[0]
    address, port = args.part.address if args.part else LOOPBACK, int(os.environ["MASTER_PORT"])
    if rank.rank == 0:
        return listening_store(address, port, rank.world_size, timeout)
    return TCPStore(address, port, rank.world_size, is_master=False, timeout=timeout)
