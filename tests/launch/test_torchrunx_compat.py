"""Workers that are forked in torchrunx's agent: how they end."""

import sys
from pathlib import Path

import pytest

from mjfleet.launch.torchrunx_compat import ForkedWorkers

from ..conftest import PATIENCE, Run
from .workers import write_noisy


def test_the_end_of_each_worker_is_known_once_all_have_ended() -> None:
    workers = ForkedWorkers(entrypoint=sys.exit, args={0: (0,), 1: (3,), 2: (0,)})
    result = workers.wait(PATIENCE)
    assert result is not None
    assert result.return_values == {0: None, 1: None, 2: None}
    assert {r: failure.message for r, failure in result.failures.items()} == {1: "exit code 3"}


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
