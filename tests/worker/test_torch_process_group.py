"""How workers meet, and that one of each host goes first: threads at a store stand for those."""

import multiprocessing
import select
import socket
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from torch.distributed import HashStore  # pyright: ignore[reportPrivateImportUsage]

from mjfleet.utils.wait_until import wait_until
from mjfleet.worker.heartbeat import Heartbeat
from mjfleet.worker.rank_environment import Rank
from mjfleet.worker.torch_process_group import local_rank_0_compiles_first, process_group
from mjfleet.worker.worker_args import WorkerArgs

from ..conftest import PATIENCE


def join(args: WorkerArgs, rank: int, listener: socket.socket) -> float:
    """Join the other rank, in a process of its own; return a sum over both."""
    args = replace(args, listener=listener.fileno())
    with process_group(args, args.rank_of(rank), PATIENCE) as collectives:
        return collectives.total([rank + 1])[0]


@pytest.mark.parametrize("several_hosts", [False, True])
def test_workers_meet_though_one_is_faster_than_rank_0(tmp_path: Path, several_hosts: bool) -> None:
    """The port is bound before any worker starts; what has tried it before does not matter."""
    listener = socket.create_server(("127.0.0.1", 0))
    address, port = listener.getsockname()
    socket.create_connection((address, port)).close()
    args = WorkerArgs(
        task="", task_folder="", config={}, devices=("cpu", "cpu"), engine="native", threads=1,
        run_dir="", backend="gloo",
        meeting=(address, port) if several_hosts else None, scratch=str(tmp_path),
    )  # fmt: skip
    # A fork of this process, which has threads, could wait for a lock that one of them held.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch"])
    with ProcessPoolExecutor(2, context) as pool:
        faster = pool.submit(join, args, 1, listener)
        while several_hosts and not select.select([listener], [], [], 1.0)[0]:
            pass
        assert pool.submit(join, args, 0, listener).result() == faster.result() == 3.0


def test_the_others_of_a_host_enter_when_its_first_worker_has_left() -> None:
    store, order, waiting = HashStore(), list[str](), Heartbeat()
    limit = timedelta(seconds=PATIENCE)

    def work(rank: Rank) -> None:
        heartbeat = waiting if rank.node == 0 and rank.local_rank == 1 else Heartbeat()
        with local_rank_0_compiles_first(store, rank, limit, heartbeat):
            if rank.node == 0 and rank.local_rank == 0:
                assert wait_until(lambda: waiting.excuses, PATIENCE)
            order.append(f"{rank.node}.{rank.local_rank}")

    ranks = [
        Rank(rank=2 * node + local, local_rank=local, world_size=4, local_world_size=2, node=node)
        for node in (0, 1)
        for local in (0, 1)
    ]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, ranks))
    assert order.index("0.0") < order.index("0.1")
    assert order.index("1.0") < order.index("1.1")


def test_waiting_has_an_end() -> None:
    rank = Rank(rank=1, local_rank=1, world_size=2, local_world_size=2)
    with (
        pytest.raises(TimeoutError, match="local rank 0"),
        local_rank_0_compiles_first(HashStore(), rank, timedelta(0), Heartbeat()),
    ):
        pytest.fail("it has not waited")
