"""A heartbeat is written by one process and read by another."""

import os
import time
from pathlib import Path

import pytest

from mjfleet.rl.phase import Phase
from mjfleet.worker.heartbeat import START_SECONDS, Heartbeat


def test_what_a_worker_writes_is_read_by_who_watches_it(tmp_path: Path) -> None:
    watcher = Heartbeat.create(tmp_path / "heartbeat")
    assert (watcher.pid, watcher.phase, watcher.iteration) == (0, Phase.START, 0)
    assert watcher.silence == 0.0
    child = os.fork()
    if child == 0:
        worker = Heartbeat(tmp_path / "heartbeat")
        worker.start(os.getpid())
        worker.enter(Phase.COLLECT, 3)
        os._exit(0)
    os.waitpid(child, 0)
    assert (watcher.pid, watcher.phase, watcher.iteration) == (child, Phase.COLLECT, 3)
    assert watcher.has_begun
    assert 0.0 < watcher.silence < 60.0


def test_silence_is_a_hang_once_training_has_begun_and_until_it_is_done() -> None:
    worker, since = Heartbeat(), time.monotonic() - START_SECONDS / 2
    assert not worker.hangs(1.0, since)  # It may still be importing.
    assert worker.hangs(1.0, since - START_SECONDS)
    worker.enter(Phase.LEARN)
    worker.beat()
    assert not worker.hangs(60.0, since)
    assert worker.hangs(0.0, 0.0)
    assert not worker.hangs(60.0, time.monotonic())
    worker.finish(stopped_by=2)
    assert not worker.hangs(0.0, 0.0)
    assert worker.stopped_by == 2


def test_an_excuse_ends_with_its_block_and_returns_to_the_phase_before() -> None:
    worker = Heartbeat()
    worker.enter(Phase.COLLECT)
    with worker.excused(), worker.excused(Phase.SAVE):
        assert worker.is_excused
        assert worker.phase is Phase.SAVE
    assert not worker.is_excused
    assert worker.phase is Phase.COLLECT


def test_what_fails_inside_an_excuse_shows_its_phase() -> None:
    worker = Heartbeat()
    worker.enter(Phase.COLLECT)
    with pytest.raises(OSError, match="full"), worker.excused(Phase.SAVE):
        raise OSError("full")
    assert worker.phase is Phase.SAVE
    assert not worker.is_excused
