"""One worker of each host goes first: threads at a store stand for workers."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from torch.distributed import HashStore  # pyright: ignore[reportPrivateImportUsage]

from mjfleet.worker.rank_environment import Rank
from mjfleet.worker.torch_process_group import local_rank_0_first


def test_the_others_of_a_host_enter_when_its_first_worker_has_left() -> None:
    store, order, others_wait = HashStore(), list[str](), threading.Event()

    def work(rank: Rank) -> None:
        beats = others_wait.set if rank.node == 0 else lambda: None
        with local_rank_0_first(store, rank, timedelta(seconds=60), beats):
            if rank.node == 0 and rank.local_rank == 0:
                assert others_wait.wait(60)
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
        local_rank_0_first(HashStore(), rank, timedelta(0), lambda: None),
    ):
        pytest.fail("it has not waited")
