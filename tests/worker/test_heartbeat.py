"""A heartbeat is written by one process and read by another."""

import os
import time
from pathlib import Path

import pytest

from mjfleet.rl.worker_phases import Phase
from mjfleet.worker.heartbeat import START_SECONDS, HangDetector, Heartbeat


class Clock:
    """Takes the place of the monotonic clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    def hangs_after(self, seconds: float, detector: HangDetector) -> bool:
        """What a detector says that is asked every second."""
        end, answer = self.now + seconds, False
        while self.now < end:
            self.now += 1.0
            answer = detector.hangs()
        return answer


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_what_a_worker_writes_is_read_by_who_watches_it(tmp_path: Path) -> None:
    watcher = Heartbeat.in_file(tmp_path / "heartbeat")
    assert (watcher.pid, watcher.phase, watcher.iteration) == (0, Phase.START, 0)
    assert watcher.silence == 0.0
    child = os.fork()
    if child == 0:
        worker = Heartbeat.in_file(tmp_path / "heartbeat")
        worker.start()
        worker.enter(Phase.COLLECT, 3)
        os._exit(0)
    os.waitpid(child, 0)
    assert (watcher.pid, watcher.phase, watcher.iteration) == (child, Phase.COLLECT, 3)
    assert watcher.has_begun
    assert 0.0 < watcher.silence < 60.0


def test_silence_is_a_hang_once_training_has_begun_and_until_it_is_done(clock: Clock) -> None:
    worker = Heartbeat()
    detector = HangDetector([worker], limit=10.0)
    assert not clock.hangs_after(START_SECONDS - 1, detector)  # It may still be importing.
    assert clock.hangs_after(2, detector)
    worker.enter(Phase.LEARN)
    assert not clock.hangs_after(9, detector)
    assert clock.hangs_after(2, detector)
    worker.beat()
    assert not clock.hangs_after(9, detector)
    worker.finish(stopped_by=2)
    other = Heartbeat()
    other.enter(Phase.LEARN)
    both = HangDetector([worker, other], limit=10.0)
    assert not clock.hangs_after(9, both)
    assert clock.hangs_after(2, both)
    assert worker.stopped_by == 2
    other.finish(stopped_by=None)
    assert not clock.hangs_after(20, both)


def test_a_suspension_of_the_watcher_is_no_hang(clock: Clock) -> None:
    worker = Heartbeat()
    worker.enter(Phase.LEARN)
    detector = HangDetector([worker], limit=10.0)
    clock.now += 1000.0
    assert not detector.hangs()
    assert not clock.hangs_after(9, detector)
    assert clock.hangs_after(2, detector)


def test_an_excuse_and_a_limit_of_zero_allow_any_silence(clock: Clock) -> None:
    worker, other = Heartbeat(), Heartbeat()
    worker.enter(Phase.LEARN)
    other.enter(Phase.LEARN)
    detector, patient = HangDetector([worker, other], 10.0), HangDetector([worker], 0.0)
    with other.excused():
        assert not clock.hangs_after(20, detector)
    assert clock.hangs_after(20, detector)
    assert not clock.hangs_after(20, patient)


def test_an_excuse_ends_with_its_block_and_returns_to_the_phase_before() -> None:
    worker = Heartbeat()
    worker.enter(Phase.COLLECT)
    with worker.excused(), worker.excused(Phase.SAVE):
        assert worker.excuses == 2
        assert worker.phase is Phase.SAVE
    assert (worker.excuses, worker.phase) == (0, Phase.COLLECT)
    with pytest.raises(OSError, match="full"), worker.excused(Phase.SAVE):
        raise OSError("full")
    assert (worker.excuses, worker.phase) == (0, Phase.SAVE)  # It shows what has failed.
