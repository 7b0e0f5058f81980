"""How workers that torchrun starts again and again meet, and learn what rank 0 decides."""

import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from torch.distributed import HashStore, Store  # pyright: ignore[reportPrivateImportUsage]

from mjfleet.errors import UserError, WorkerError
from mjfleet.utils.wait_until import wait_until
from mjfleet.worker.rank_environment import Rank
from mjfleet.worker.under_torchrun import decided_by_rank_0, meet, meeting_store

from ..conftest import PATIENCE

LIMIT = timedelta(seconds=PATIENCE)


def all_decide(store: Store, decide: Callable[[], str], workers: int = 3) -> list[str]:
    """Have some workers learn what rank 0 decides; return that, or the error of each."""

    def answer(number: int) -> str:
        rank = Rank(rank=number, world_size=workers)
        try:
            return decided_by_rank_0(store, rank, decide, LIMIT)
        except (UserError, WorkerError, SystemExit, ValueError) as error:
            return f"{type(error).__name__}: {error}"

    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(answer, range(workers)))


def test_workers_meet_where_earlier_ones_have_met() -> None:
    store = HashStore()
    for text, workers in (("one", 2), ("another", 3), ("", 2), ("alone", 1)):
        assert all_decide(store, lambda text=text: text, workers) == [text] * workers


def test_rank_0_which_keeps_the_store_goes_on_once_the_others_have_read() -> None:
    store, ranks = HashStore(), [Rank(rank=rank, world_size=2) for rank in (0, 1)]
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(decided_by_rank_0, store, ranks[0], lambda: "text", LIMIT)
        part, text = meet(store, ranks[1], LIMIT)
        assert "text" in text
        assert not wait_until(first.done, 0.2)
        part.set("read1", "")
        assert first.result() == "text"


def test_what_workers_write_is_there_for_those_they_meet_alone() -> None:
    store, earlier = HashStore(), list[Store]()
    for workers in (2, 3, 2):
        ranks = [Rank(rank=rank, world_size=workers) for rank in range(workers)]
        with ThreadPoolExecutor(workers) as pool:
            parts = [part for part, _ in pool.map(lambda rank: meet(store, rank, LIMIT), ranks)]
        assert not any(part.check(["mark"]) for part in parts)
        parts[-1].set("mark", str(len(earlier)))
        assert {part.get("mark") for part in parts} == {b"%d" % len(earlier)}
        earlier.append(parts[0])
    assert [part.get("mark") for part in earlier] == [b"0", b"1", b"2"]


def test_a_worker_that_does_not_come_is_named() -> None:
    store = HashStore()
    all_decide(store, str, 2)
    for rank in (0, 1):
        with pytest.raises(TimeoutError, match=f"rank {1 - rank} did not come"):
            meet(store, Rank(rank=rank, world_size=2), timedelta(0))


def test_a_port_at_which_nobody_can_listen_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setenv("MASTER_PORT", str(port := taken.getsockname()[1]))
        with pytest.raises(WorkerError, match=rf"at 127\.0\.0\.1 .* port {port} .*EADDRINUSE"):
            meeting_store(Rank(world_size=2))


def test_all_workers_learn_why_rank_0_decides_nothing() -> None:
    def mistaken() -> str:
        raise UserError("no motor")

    def broken() -> str:
        raise ValueError(1)

    def ended() -> str:
        raise SystemExit(2)

    store = HashStore()
    repeated = ["RepeatedError: no motor"] * 2
    assert all_decide(store, mistaken) == ["UserError: no motor", *repeated]
    assert all_decide(store, ended) == ["SystemExit: 2"] * 3
    own, *others = all_decide(store, broken)
    assert own == "ValueError: 1"
    assert all("rank 0 has failed: ValueError: 1" in other for other in others)
