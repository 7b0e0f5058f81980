"""How workers that torchrun starts again and again meet, and what they know of their run."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from torch.distributed import HashStore, Store  # pyright: ignore[reportPrivateImportUsage]

from mjfleet.worker.rank_environment import Rank
from mjfleet.worker.under_torchrun import meet

from ..conftest import PATIENCE

LIMIT = timedelta(seconds=PATIENCE)


def all_meet(store: Store, *known: str | None) -> list[str | None]:
    """Have a worker for each of what they know meet the others; what they know afterwards."""
    ranks = [Rank(rank=rank, world_size=len(known)) for rank in range(len(known))]
    with ThreadPoolExecutor(len(known)) as pool:
        met = list(pool.map(lambda rank: meet(store, rank, LIMIT, known[rank.rank]), ranks))
    # What one of them writes is there for the others, and for nobody before or after them.
    parts = [part for part, _ in met]
    assert not any(part.check(["mark"]) for part in parts)
    parts[-1].set("mark", "")
    assert all(part.check(["mark"]) for part in parts)
    return [word for _, word in met]


def test_workers_meet_where_earlier_ones_have_met() -> None:
    store = HashStore()
    assert all_meet(store, None, None) == [None, None]
    assert all_meet(store, "a run", "another", None) == ["a run"] * 3
    # Rank 0 is on a host that is new.
    assert all_meet(store, None, None, "a run") == ["a run"] * 3
    # It has given the run back.
    assert all_meet(store, "", "a run") == ["", ""]
    assert all_meet(store, "a run") == ["a run"]


def test_a_worker_that_does_not_come_is_named() -> None:
    store = HashStore()
    all_meet(store, None, None)
    with pytest.raises(TimeoutError, match="rank 1 did not come"):
        meet(store, Rank(rank=0, world_size=2), timedelta(0))
    with pytest.raises(TimeoutError, match="rank 0 did not come"):
        meet(store, Rank(rank=1, world_size=2), timedelta(0))
