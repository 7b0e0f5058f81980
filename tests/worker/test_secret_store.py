"""Who may join the ranks of a run that we start: only those that know its secret."""

import multiprocessing
import select
import socket
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from multiprocessing.connection import Client
from pathlib import Path

import pytest
from torch.distributed import (
    DistNetworkError,
    DistStoreError,
    Store,  # pyright: ignore[reportPrivateImportUsage]
)

from mjfleet.errors import WorkerError
from mjfleet.worker.secret_store import SecretStore, serve_store
from mjfleet.worker.torch_process_group import process_group
from mjfleet.worker.worker_args import HostArgs, WorkerArgs

from ..conftest import PATIENCE

LOOPBACK = "127.0.0.1"
LIMIT = timedelta(seconds=PATIENCE)


@pytest.fixture(scope="module")
def served() -> tuple[Store, int]:
    listener = socket.create_server((LOOPBACK, 0))
    return serve_store(listener, "ours"), listener.getsockname()[1]


def test_ranks_that_know_the_secret_share_a_store(served: tuple[Store, int]) -> None:
    store, port = served
    theirs = SecretStore(LOOPBACK, port, "ours", LIMIT)
    every_byte = bytes(range(256))
    theirs.set("a", every_byte)
    assert store.get("a") == theirs.get("a") == every_byte
    store.set("ü", "ü")
    assert theirs.get("ü") == "ü".encode()
    assert (theirs.add("n", 2), theirs.add("n", 3)) == (2, 5)
    assert theirs.check(["a", "n"])
    assert not theirs.check(["a", "b"])
    before = theirs.num_keys()
    assert theirs.delete_key("a")
    assert theirs.num_keys() == before - 1
    with pytest.raises(DistStoreError, match="b"):
        theirs.wait(["b"], timedelta(seconds=0.1))


def test_strangers_are_not_served(served: tuple[Store, int]) -> None:
    _, port = served
    with pytest.raises(WorkerError, match="not rank 0 of this run"):
        SecretStore(LOOPBACK, port, "theirs", LIMIT)
    silent = socket.create_connection((LOOPBACK, port))
    with silent, socket.create_connection((LOOPBACK, port)) as loud:
        # As a client of torch's TCPStore begins.
        loud.settimeout(LIMIT.total_seconds())
        loud.sendall(b"\x00" * 64)
        answer = bytearray()
        with suppress(ConnectionResetError):
            while data := loud.recv(4096):
                answer += data
        assert len(answer) < 200  # A challenge at most.
        # Others do not wait for strangers.
        assert SecretStore(LOOPBACK, port, "ours", LIMIT).add("m", 1) == 1


def test_who_knows_the_secret_may_only_call_what_a_store_can(served: tuple[Store, int]) -> None:
    _, port = served
    with Client((LOOPBACK, port), authkey=b"ours") as connection:
        connection.send_bytes(b'["__reduce__"]')
        with pytest.raises((EOFError, ConnectionError)):
            connection.recv_bytes()


def test_a_rank_0_that_is_not_there_is_a_lost_connection() -> None:
    with socket.create_server((LOOPBACK, 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(DistNetworkError):
        SecretStore(LOOPBACK, port, "ours", timedelta(seconds=0.1))


def test_a_rank_that_is_faster_than_rank_0_waits_for_it() -> None:
    """The port is bound before any worker starts; what has tried it before does not matter."""
    listener = socket.create_server((LOOPBACK, 0))
    port = listener.getsockname()[1]
    socket.create_connection((LOOPBACK, port)).close()
    with ThreadPoolExecutor() as pool:
        theirs = pool.submit(SecretStore, LOOPBACK, port, "ours", LIMIT)
        while not select.select([listener], [], [], 1.0)[0]:
            pass
        store = serve_store(listener, "ours")
        theirs.result().set("a", b"1")
        assert store.get("a") == b"1"


def join(args: WorkerArgs, rank: int, secret: str) -> float | str:
    """Join the other rank, in a process of its own; return a sum over both, or the error."""
    try:
        with process_group(
            replace(args, secret=secret), args.rank_of(rank), LIMIT.total_seconds()
        ) as collectives:
            return collectives.total([rank + 1])[0]
    except WorkerError as error:
        return str(error)


def join_both(args: WorkerArgs, secrets: tuple[str, str]) -> list[float | str]:
    with ProcessPoolExecutor(2, multiprocessing.get_context("fork")) as pool:
        both: list[Future[float | str]] = [
            pool.submit(join, args, rank, secret) for rank, secret in enumerate(secrets)
        ]
        return [future.result() for future in both]


@pytest.mark.parametrize("several_hosts", [False, True])
def test_a_rank_without_the_secret_does_not_join(tmp_path: Path, several_hosts: bool) -> None:
    listener = socket.create_server((LOOPBACK, 0))
    port = listener.getsockname()[1]
    part = HostArgs(
        node=0, first_rank=0, world_size=2, address=LOOPBACK, port=port, listener=listener.fileno()
    )
    args = WorkerArgs(
        task="", task_folder="", config={}, devices=("cpu", "cpu"), engine="native", threads=1,
        run_dir="", backend="gloo", part=part if several_hosts else None, scratch=str(tmp_path),
    )  # fmt: skip
    assert join_both(args, ("ours", "ours")) == [3.0, 3.0]
    if not several_hosts:  # Where the store asks for it, rank 0 would wait for the other one.
        (tmp_path / "other").mkdir()
        errors = join_both(replace(args, scratch=str(tmp_path / "other")), ("ours", "theirs"))
        assert all("does not know this run's secret" in str(error) for error in errors)
