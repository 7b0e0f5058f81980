"""What is seen of workers: heartbeats that the test writes, processes that do nothing."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mjfleet.launch import worker_processes
from mjfleet.launch.worker_processes import WorkerProcesses
from mjfleet.rl.worker_phases import Phase
from mjfleet.utils.wait_until import wait_until
from mjfleet.worker.failure_record import Failure, read_failures
from mjfleet.worker.heartbeat import Heartbeat
from mjfleet.worker.worker_args import Outcome, WorkerArgs

from ..conftest import PATIENCE

Workers = list["subprocess.Popen[bytes]"]
HASTY = {"hang_timeout": 0.5, "agent": {"seed": 1}}
WORKER = """
import faulthandler, signal, sys
faulthandler.register(signal.SIGQUIT, open(sys.argv[1], "a"))
print("ready", flush=True)
exec(compile("sys.exit(int(sys.stdin.readline() or 0))", sys.argv[2], "exec"))
"""


@pytest.fixture
def args(tmp_path: Path) -> WorkerArgs:
    return WorkerArgs(
        task="cartpole-balance",
        task_folder="",
        config={"hang_timeout": 0.0, "agent": {"seed": 1}},
        devices=("cpu", "cpu"),
        engine="native",
        threads=1,
        run_dir=str(tmp_path),
        scratch=str(tmp_path),
    )


@pytest.fixture
def seen(args: WorkerArgs) -> WorkerProcesses:
    return WorkerProcesses(args)


@pytest.fixture
def workers(seen: WorkerProcesses, args: WorkerArgs) -> Iterator[Workers]:
    """Two processes that wait for a line, the first in a collective, in iteration 3."""
    del seen  # It makes the files of the heartbeats.
    made = list[subprocess.Popen[bytes]]()
    for local_rank, module in enumerate(("distributed_c10d.py", "env.py")):
        command = [sys.executable, "-c", WORKER, args.stacks_file(local_rank), module]
        worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        made.append(worker)
        assert worker.stdout
        assert worker.stdout.readline() == b"ready\n"
        heartbeat = Heartbeat.in_file(args.heartbeat_file(local_rank))
        heartbeat.start()
        heartbeat.pid = worker.pid
        heartbeat.enter(Phase.COLLECT, 3)
    yield made
    for worker in made:
        worker.kill()
        worker.communicate()


def wait_for_failure(seen: WorkerProcesses) -> Failure:
    deadline = time.monotonic() + PATIENCE
    while (failure := seen.failure()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return failure


def test_it_knows_when_training_has_begun_and_how_it_ended(
    seen: WorkerProcesses, args: WorkerArgs
) -> None:
    assert not seen.has_begun
    hearts = [Heartbeat.in_file(args.heartbeat_file(local_rank)) for local_rank in (0, 1)]
    for heart in hearts:
        heart.enter(Phase.COLLECT, 1)
    assert seen.has_begun
    hearts[0].finish(None)
    assert seen.outcome is None
    hearts[1].finish(None)
    assert seen.outcome == Outcome(stopped_by=None)


def test_a_killed_worker_is_a_failure_with_its_rank_and_signal(
    seen: WorkerProcesses, workers: Workers, tmp_path: Path
) -> None:
    assert seen.failure() is None
    workers[1].kill()
    failure = wait_for_failure(seen)
    assert (failure.rank, failure.kind, failure.iteration) == (1, "Killed", 3)
    assert "SIGKILL" in failure.message
    assert read_failures(tmp_path) == [failure]


@pytest.mark.parametrize("is_alone", [False, True])
def test_a_worker_that_nccl_aborts_is_the_cause_only_if_no_other_fails(
    args: WorkerArgs, workers: Workers, tmp_path: Path, is_alone: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    seen = WorkerProcesses(replace(args, backend="nccl"))
    if is_alone:  # It waits for what does not come.
        monkeypatch.setattr(worker_processes, "ALONE_SECONDS", 0.1)
    workers[0].send_signal(signal.SIGABRT)
    while not read_failures(tmp_path):
        assert seen.failure() is None
    if not is_alone:
        workers[1].kill()
    failure = wait_for_failure(seen)
    expected = (0, "SIGABRT, as NCCL") if is_alone else (1, "SIGKILL")
    assert failure.rank == expected[0]
    assert expected[1] in failure.message


def test_a_clock_that_is_set_back_holds_up_no_failure(
    seen: WorkerProcesses, args: WorkerArgs, tmp_path: Path
) -> None:
    lost = Failure.seen("RuntimeError", "lost", args, args.rank_of(0), Heartbeat())
    lost = replace(lost, is_secondary=True, time=time.time() + 3600.0)
    lost.write(tmp_path)
    assert seen.failure() == lost


def test_a_worker_that_just_ends_is_a_failure_unless_it_is_done(
    seen: WorkerProcesses, workers: Workers, args: WorkerArgs
) -> None:
    Heartbeat.in_file(args.heartbeat_file(0)).finish(None)
    for worker, code in zip(workers, (b"0\n", b"3\n"), strict=True):
        assert worker.stdin
        worker.stdin.write(code)
        worker.stdin.flush()
    failure = wait_for_failure(seen)
    assert (failure.rank, failure.kind) == (1, "Exited")
    assert "code 3" in failure.message


def test_the_worker_that_hangs_is_the_one_that_waits_for_no_other(
    args: WorkerArgs, workers: Workers, tmp_path: Path
) -> None:
    del workers
    failure = wait_for_failure(WorkerProcesses(replace(args, config=HASTY)))
    assert (failure.kind, failure.rank) == ("Hang", 1)
    assert "env.py" in failure.traceback
    assert [record.rank for record in read_failures(tmp_path)] == [1, 0]


def test_a_host_whose_workers_only_wait_for_others_has_no_failure(
    args: WorkerArgs, workers: Workers
) -> None:
    del workers
    seen = WorkerProcesses(replace(args, config=HASTY, meeting=("127.0.0.1", 1)))
    Heartbeat.in_file(args.heartbeat_file(1)).finish(None)
    stacks = args.stacks_file(0)

    def is_asked() -> bool:
        assert seen.failure() is None
        return stacks.exists() and "distributed_c10d.py" in stacks.read_text()

    assert wait_until(is_asked, PATIENCE)
