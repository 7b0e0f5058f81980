"""How workers meet that we have started."""

import multiprocessing
import select
import socket
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from mjfleet.worker.torch_process_group import process_group
from mjfleet.worker.worker_args import WorkerArgs

from ..conftest import PATIENCE, REPOSITORY, Output


def join(args: WorkerArgs, rank: int, listener: socket.socket) -> float:
    """Join the other rank, in a process of its own; return a sum over both."""
    args = replace(args, listener=listener.fileno())
    with process_group(args, args.rank_of(rank), PATIENCE) as collectives:
        return collectives.total([rank + 1])[0]


def meet(several_hosts: bool) -> None:
    """Let rank 1 come first."""
    listener = socket.create_server(("127.0.0.1", 0))
    address, port = listener.getsockname()
    socket.create_connection((address, port)).close()
    args = WorkerArgs(
        task="", task_folder="", config={}, devices=("cpu", "cpu"), engine="native", threads=1,
        run_dir="", backend="gloo",
        meeting=(address, port) if several_hosts else None, scratch=str(Path.cwd()),
    )  # fmt: skip
    with ProcessPoolExecutor(2, multiprocessing.get_context("fork")) as pool:
        faster = pool.submit(join, args, 1, listener)
        while several_hosts and not select.select([listener], [], [], 1.0)[0]:
            pass
        assert pool.submit(join, args, 0, listener).result() == faster.result() == 3.0


@pytest.mark.parametrize("several_hosts", [False, True])
def test_workers_meet_though_one_is_faster_than_rank_0(
    tmp_path: Path, output: Output, several_hosts: bool
) -> None:
    """The port is bound before any worker starts; what has tried it before does not matter."""
    # A fork of this process, which has threads, could wait for a lock that one of them held.
    code = f"import sys; sys.path.insert(0, {str(REPOSITORY)!r}); from {__name__} import meet"
    (tmp_path / "meet.py").write_text(f"{code}; meet({several_hosts})")
    output("python", "meet.py")
