"""How workers that torchrun starts again and again meet, and learn what rank 0 decides."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from torch.distributed import HashStore, Store  # pyright: ignore[reportPrivateImportUsage]

from mjfleet.errors import UserError, WorkerError
from mjfleet.worker.rank_environment import Rank
from mjfleet.worker.under_torchrun import decided_by_rank_0, meet

from ..conftest import PATIENCE

LIMIT = timedelta(seconds=PATIENCE)


def all_meet(store: Store, text: str, workers: int) -> list[str]:
    """Have some workers meet, and return the text of rank 0 that each has got."""
    ranks = [Rank(rank=rank, world_size=workers) for rank in range(workers)]
    with ThreadPoolExecutor(workers) as pool:
        met = list(pool.map(lambda r: meet(store, r, LIMIT, "" if r.rank else text), ranks))
    # What one of them writes is there for the others, and for nobody before or after them.
    parts = [part for part, _ in met]
    assert not any(part.check(["mark"]) for part in parts)
    parts[-1].set("mark", "")
    assert all(part.check(["mark"]) for part in parts)
    return [text for _, text in met]


def test_workers_meet_where_earlier_ones_have_met() -> None:
    store = HashStore()
    assert all_meet(store, "one", 2) == ["one"] * 2
    assert all_meet(store, "another", 3) == ["another"] * 3
    assert all_meet(store, "", 2) == ["", ""]
    assert all_meet(store, "alone", 1) == ["alone"]


def test_a_worker_that_does_not_come_is_named() -> None:
    store = HashStore()
    all_meet(store, "", 2)
    with pytest.raises(TimeoutError, match="rank 1 did not come"):
        meet(store, Rank(rank=0, world_size=2), timedelta(0))
    with pytest.raises(TimeoutError, match="rank 0 did not come"):
        meet(store, Rank(rank=1, world_size=2), timedelta(0))


def all_decide(decide: Callable[[], str]) -> list[str]:
    """Have three workers learn what rank 0 decides; return that, or the error of each."""
    store = HashStore()

    def answer(rank: int) -> str:
        try:
            return decided_by_rank_0(store, Rank(rank=rank, world_size=3), decide, LIMIT)
        except (UserError, WorkerError, SystemExit, ValueError) as error:
            return f"{type(error).__name__}: {error}"

    with ThreadPoolExecutor(3) as pool:
        return list(pool.map(answer, range(3)))


def test_all_workers_learn_what_rank_0_decides_or_why_it_does_not() -> None:
    def mistaken() -> str:
        raise UserError("no motor")

    def broken() -> str:
        raise ValueError(1)

    def ended() -> str:
        raise SystemExit(2)

    assert all_decide(lambda: "a run") == ["a run"] * 3
    assert all_decide(mistaken) == ["UserError: no motor"] * 3
    assert all_decide(ended) == ["SystemExit: 2"] * 3
    own, *others = all_decide(broken)
    assert own == "ValueError: 1"
    assert all("rank 0 has failed: ValueError: 1" in other for other in others)
