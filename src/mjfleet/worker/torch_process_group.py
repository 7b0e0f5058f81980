"""Joins the workers of a run in a torch.distributed process group, and has them take turns.

Runs in each worker.
"""

import hmac
import os
import secrets
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import FileStore, Store  # pyright: ignore[reportPrivateImportUsage]

from mjfleet.errors import WorkerError
from mjfleet.rl.collectives import Collectives
from mjfleet.utils.wait_until import wait_until
from mjfleet.worker.rank_environment import Rank
from mjfleet.worker.secret_store import SecretStore, serve_store
from mjfleet.worker.under_torchrun import meet, meeting_store
from mjfleet.worker.worker_args import LOOPBACK_ALONE, WorkerArgs

STORE = "store"  # The file at which the workers of one host meet.


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
    store = _store(args, rank, timeout)  # torch keeps no reference to one that is Python's.
    dist.init_process_group(
        args.backend,
        store=store,
        rank=rank.rank,
        world_size=rank.world_size,
        timeout=timeout,
        device_id=torch.device(device) if args.backend == "nccl" else None,
    )
    try:
        collectives = Collectives(rank.rank, rank.world_size, device)
        if args.secret:
            check_secret(collectives, args.secret)
        yield collectives
    except BaseException:
        if args.backend != "nccl":
            dist.destroy_process_group()
        raise
    dist.destroy_process_group()


def check_secret(collectives: Collectives, secret: str) -> None:
    """Have all ranks show each other that they know the secret of the run, which is not sent.

    Nothing asks those that connect to a rank's gloo or NCCL, at ports of their own, who they are.

    Raises:
        WorkerError: a rank does not know it.
    """
    # Each rank's answer depends on a number that each other one has just drawn.
    drawn = str(collectives.all_gather_text(secrets.token_hex(16))).encode()

    def answer(rank: int) -> str:
        return hmac.digest(secret.encode(), b"%d %s" % (rank, drawn), "sha256").hex()

    for rank, text in enumerate(collectives.all_gather_text(answer(collectives.rank))):
        if not hmac.compare_digest(str(text).encode(), answer(rank).encode()):
            raise WorkerError(f"what has joined as rank {rank} does not know this run's secret")


def _store(args: WorkerArgs, rank: Rank, timeout: timedelta) -> Store:
    """Return the store at which the workers meet.

    Workers that we started meet on one host in a file that only the user can read, on several ones
    at rank 0, which asks for the secret of the run. The store of torchrun may hold what earlier
    workers of the run have left.
    """
    if not args.local:
        store = meeting_store(rank)
        store.set_timeout(timeout)
        return meet(store, rank, timeout)[0]
    if args.part is None:
        store = FileStore(str(Path(args.scratch, STORE)), rank.world_size)
        store.set_timeout(timeout)
        return store
    if rank.rank == 0:
        return serve_store(socket.socket(fileno=args.part.listener), args.secret)
    return SecretStore(args.part.address, args.part.port, args.secret, timeout)


@contextmanager
def local_rank_0_first(
    store: Store, rank: Rank, timeout: timedelta, beat: Callable[[], object]
) -> Iterator[None]:
    """Enter the block in the others of a host only when its local rank 0 has left it.

    So one worker of each host compiles warp's kernels, and the others find them in its cache. They
    meet at the store of the process group, and call `beat` while they wait.

    Raises:
        TimeoutError: local rank 0 was not done in time.
    """
    done = f"mjfleet/first/{rank.node}"

    def is_done() -> bool:
        beat()
        return store.check([done])

    if rank.local_rank > 0 and not wait_until(is_done, timeout.total_seconds()):
        raise TimeoutError(f"local rank 0 was not done after {timeout}")
    yield
    if rank.local_rank == 0:
        store.set(done, "")
