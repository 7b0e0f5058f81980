"""What a worker's process is given before it imports torch."""

import pytest

from mjfleet.worker.thread_limits import thread_variables


def test_a_worker_has_as_many_threads_as_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    variables = thread_variables(3)
    assert variables["OMP_NUM_THREADS"] == "3"
    assert variables["OMP_WAIT_POLICY"] == "PASSIVE"
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    assert thread_variables(3)["OMP_WAIT_POLICY"] == "ACTIVE"
