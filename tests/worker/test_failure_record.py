"""Records of failures: what they say, their order, and those of before."""

from pathlib import Path

import pytest
from torch.distributed import DistNetworkError

from mjfleet.errors import UserError
from mjfleet.rl.runner import DivergedError
from mjfleet.rl.worker_phases import Phase
from mjfleet.worker.failure_record import (
    Failure,
    hang_message,
    only_waits,
    read_failures,
)
from mjfleet.worker.heartbeat import Heartbeat
from mjfleet.worker.rank_environment import Rank
from mjfleet.worker.worker_args import WorkerArgs


def args(*log_files: str) -> WorkerArgs:
    return WorkerArgs(
        task="t", task_folder="", config={"agent": {"seed": 7}}, devices=("cpu", "cuda:1"),
        engine="warp", threads=1, run_dir="", log_files=log_files,
    )  # fmt: skip


def failure(error: BaseException, number: int = 1, phase: Phase = Phase.LEARN) -> Failure:
    heartbeat = Heartbeat()
    heartbeat.enter(phase, 5)
    rank = Rank(rank=number, local_rank=number, world_size=2, local_world_size=2)
    return Failure.of(error, args(), rank, heartbeat)


def test_a_record_says_who_failed_where_and_why(tmp_path: Path) -> None:
    try:
        raise ValueError("too large")
    except ValueError as error:
        written = failure(error)
    assert (written.rank, written.device, written.seed) == (1, "cuda:1", 8)
    assert (written.iteration, written.phase) == (5, "learn")
    assert (written.kind, written.message) == ("ValueError", "too large")
    assert "test_failure_record.py" in written.report
    assert written.summary.endswith("(cuda:1), iteration 5, learn: ValueError: too large")
    assert written.write(tmp_path)
    assert read_failures(tmp_path) == [written]
    assert not written.write(tmp_path / "gone")


def test_an_iteration_is_named_once() -> None:
    found = failure(DivergedError("iteration 5: the loss is inf; iteration 6: none"))
    assert found.report.endswith(", iteration 5, learn: the loss is inf; iteration 6: none")
    assert found.report.count("iteration 5") == found.summary.count("iteration 5") == 1


def test_an_exception_without_a_text_and_one_whose_text_cannot_be_made_have_records(
    tmp_path: Path,
) -> None:
    class SilentError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert failure(KeyError()).message == "KeyError"
    with pytest.raises(SyntaxError) as error:
        compile("x: int = (", "env.py", "exec")
    assert failure(error.value).message == "'(' was never closed (env.py, line 1)"
    silent = failure(SilentError("\udcff"))
    assert silent.kind == "SilentError"
    assert "SilentError" in silent.report
    assert silent.write(tmp_path)
    assert read_failures(tmp_path) == [silent]


def test_causes_come_before_what_follows_from_them(tmp_path: Path) -> None:
    lost = failure(DistNetworkError("connection reset"), number=0)
    gloo = failure(RuntimeError("[gloo/transport/tcp/pair.cc] Connection closed"), number=1)
    assert lost.is_secondary
    assert gloo.is_secondary
    slow = RuntimeError("[gloo/transport/tcp/buffer.cc] Timed out waiting 1000ms")
    assert not failure(slow).is_secondary
    lost.write(tmp_path)
    cause = failure(ZeroDivisionError())
    cause.write(tmp_path)
    assert [found.rank for found in read_failures(tmp_path)] == [1, 0]


def test_a_mistake_of_the_users_is_one_until_something_is_learned() -> None:
    assert failure(UserError("no"), phase=Phase.COLLECT).mistake
    assert not failure(UserError("no"), phase=Phase.LEARN).mistake
    assert not failure(ValueError("no"), phase=Phase.BUILD).mistake


def test_the_last_lines_of_a_log_are_part_of_the_record(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("".join(f"{number}\n" for number in range(100)))
    job = args(str(tmp_path / "log"), str(tmp_path / "missing"))
    logs = [
        Failure.seen("Killed", "", job, Rank(local_rank=local), Heartbeat()).log for local in (0, 1)
    ]
    assert logs[0][-1] == "99"
    assert len(logs[0]) < 100
    assert logs[1] == ()


def test_stacks_tell_where_the_main_thread_is_and_whether_it_waits() -> None:
    other = 'Thread 0x1 (most recent call first):\n  File "/a/b.py", line 3 in wait\n'
    main = 'Thread 0x2 (most recent call first):\n  File "/a/env.py", line 9 in step\n'
    assert hang_message(9.0, f"{other}\n{main}").endswith(", in step (/a/env.py, line 9)")
    assert hang_message(9.0, "") == "no step for 9 s (--hang-timeout)"
    assert not only_waits(main)
    assert only_waits('File "/x/torch/distributed/distributed_c10d.py", line 1 in all_reduce')
