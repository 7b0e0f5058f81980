"""Workers that are forked in torchrunx's agent: how they end."""

import sys
import time

from mjfleet.launch.torchrunx_compat import ForkedWorkers

from ..conftest import PATIENCE


def test_the_end_of_each_worker_is_known_once_all_have_ended() -> None:
    workers = ForkedWorkers(entrypoint=sys.exit, args={0: (0,), 1: (3,), 2: (0,)})
    result = workers.wait(PATIENCE)
    assert result is not None
    assert result.return_values == {0: None, 1: None, 2: None}
    assert {r: failure.message for r, failure in result.failures.items()} == {1: "exit code 3"}


def test_workers_that_are_at_work_can_be_ended() -> None:
    workers = ForkedWorkers(entrypoint=time.sleep, args={0: (PATIENCE,), 1: (PATIENCE,)})
    assert workers.wait(0.0) is None
    workers.close()
    result = workers.wait(PATIENCE)
    assert result is not None
    assert {failure.message for failure in result.failures.values()} == {"exit code -9"}
