"""The process group of a run: how its workers find each other and talk."""

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import Store, TCPStore  # pyright: ignore[reportPrivateImportUsage]

from mjfleet.rl.collectives import Collectives
from mjfleet.worker.under_torchrun import meet, meeting_store
from mjfleet.worker.worker_args import LOOPBACK_ALONE, Rank, WorkerArgs

LOOPBACK = "127.0.0.1"
LOOK_SECONDS = 0.1


class Group:
    """The workers of a run, as one of them sees the others."""

    def __init__(self, rank: Rank, device: str, timeout: timedelta) -> None:
        self._rank = rank
        self._timeout = timeout
        self.collectives = Collectives(rank.rank, rank.world_size, device)

    def agree(self, text: str) -> str:
        """Rank 0's text, on all ranks."""
        return self.collectives.all_gather_text(text)[0] or ""

    @contextmanager
    def one_first(self, on: bool, beat: Callable[[], object]) -> Iterator[None]:
        """Run the block in one worker of each host before the others: it fills a cache for them.

        Args:
            on: whether there is anything to fill.
            beat: called while the others wait.
        """
        if not on or self._rank.local_world_size == 1:
            yield
            return
        store = dist.distributed_c10d._get_default_store()
        done = f"mjfleet/first/{self._rank.node}"
        deadline = time.monotonic() + self._timeout.total_seconds()
        while self._rank.local_rank > 0 and not store.check([done]):
            if time.monotonic() > deadline:
                raise TimeoutError(f"local rank 0 was not done after {self._timeout}")
            beat()
            time.sleep(LOOK_SECONDS)
        yield
        if self._rank.local_rank == 0:
            store.set(done, "")


@contextmanager
def process_group(job: WorkerArgs, rank: Rank, timeout_seconds: float) -> Iterator[Group]:
    """Join the other workers for the length of the block; alone, there is no process group.

    Workers that we started on one host meet at a store that listens on the loopback interface
    alone, and need no host name; those on several, at one that listens on the first host's address
    alone. Otherwise MASTER_ADDR and MASTER_PORT say where to meet, which under torchrun is where
    earlier workers of the run have met before.

    On an error NCCL's group is left to the end of the process, which has to follow: taking it down
    would wait for the other ranks, which wait for this one.

    Args:
        job: its `backend` and devices.
        rank: this worker's place.
        timeout_seconds: after which a collective gives up waiting for a rank.
    """
    timeout = timedelta(seconds=timeout_seconds)
    device = job.devices[rank.local_rank]
    if job.backend is None:
        yield Group(rank, device, timeout)
        return
    if rank.world_size == rank.local_world_size:
        for variable, interface in LOOPBACK_ALONE.items():
            os.environ.setdefault(variable, interface)
    store = _own_store(job, rank, timeout) if job.local else _agents_store(rank, timeout)
    threads = _threads()
    dist.init_process_group(
        job.backend,
        store=store,
        rank=rank.rank,
        world_size=rank.world_size,
        timeout=timeout,
        device_id=torch.device(device) if job.backend == "nccl" else None,
    )
    try:
        if device == "cpu":
            dist.barrier()  # The first collective starts the rest of gloo's threads.
            _let_go_first(_threads() - threads)
        yield Group(rank, device, timeout)
    except BaseException:
        if job.backend != "nccl":
            dist.destroy_process_group()
        raise
    dist.destroy_process_group()


def _threads() -> set[int]:
    """The threads of this process, by the system's numbers."""
    return {int(thread) for thread in os.listdir("/proc/self/task")}


def _let_go_first(threads: set[int]) -> None:
    """Let gloo's threads, which have little to do, interrupt what computes; where that is allowed.

    Linux makes a thread that wakes up wait until the one that runs has had its turn. A fifth of all
    reductions took 5 ms by that instead of 0.3. It takes root or a limit, RLIMIT_RTPRIO.
    """
    for thread in threads:
        try:
            os.sched_setscheduler(thread, os.SCHED_RR, os.sched_param(1))
        except (PermissionError, ProcessLookupError):
            return


def _agents_store(rank: Rank, timeout: timedelta) -> Store | None:
    """The part of torchrun's store for the workers that live; None: torch makes one of its own."""
    store = meeting_store(rank)
    if store is None:
        return None
    store.set_timeout(timeout)
    return meet(store, rank, timeout)[0]


def _own_store(job: WorkerArgs, rank: Rank, timeout: timedelta) -> TCPStore:
    """The store of workers that we started: rank 0's."""
    address = job.part.address if job.part else LOOPBACK
    port = int(os.environ["MASTER_PORT"])
    if rank.rank == 0:
        return listening_store(address, port, rank.world_size, timeout)
    return TCPStore(address, port, rank.world_size, is_master=False, timeout=timeout)


def listening_store(address: str, port: int, world_size: int, timeout: timedelta) -> TCPStore:
    """A store that listens on one interface; torch would listen on all of them."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.create_server((address, port), family=family)
    return TCPStore(
        address,
        port,
        world_size,
        is_master=True,
        timeout=timeout,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )
