"""Workers that are forked in torchrunx's agent: how they end."""

import os
import sys
from pathlib import Path

import pytest

from mjfleet.launch.torchrunx_compat import ForkedWorkers

from ..conftest import PATIENCE, Run
from .workers import write_noisy


def test_the_end_of_each_worker_is_known_once_all_have_ended_and_none_is_reaped() -> None:
    (begins, begin), (told, tell) = os.pipe(), os.pipe()

    def end(code: int) -> None:
        os.read(begins, 1)
        os.write(tell, b"%d " % os.getpid())
        if code < 0:
            os.kill(os.getpid(), -code)
        sys.exit(code)

    workers = ForkedWorkers(entrypoint=end, args={0: (0,), 1: (3,), 2: (-9,)})
    os.write(begin, b"123")
    result = workers.wait(PATIENCE)
    assert result is not None
    assert result.return_values == {0: None, 1: None, 2: None}
    codes = {rank: failure.message for rank, failure in result.failures.items()}
    assert codes == {1: "exit code 3", 2: "exit code -9"}
    for pid in os.read(told, 100).split():  # The watchdog still sees how it has ended.
        assert os.waitid(os.P_PID, int(pid), os.WEXITED | os.WNOWAIT)


@pytest.mark.slow
def test_an_agent_that_fails_is_the_cause_and_not_the_workers_that_end_with_it(
    run: Run, tmp_path: Path
) -> None:
    group = "__import__('mjfleet.launch.torchrunx_compat').launch.torchrunx_compat.PipeGroup"
    confuse = f"{group}.pipe.send_bytes(b'no pickle') if RANK else None"
    write_noisy(tmp_path, step=f"{confuse}; __import__('time').sleep(600)")
    result = run("train", "noisy", "--cpu-workers", "2")
    assert result.returncode == 1
    assert "torchrunx's agent has ended (UnpicklingError(" in result.stderr
    (log,) = tmp_path.rglob("localhost.log")
    assert "AgentFailedError" in log.read_text()
