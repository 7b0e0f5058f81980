"""Videos of a run: when states are recorded, and how they become files. Rank 0 runs this.

Training neither draws nor waits: one process at a time draws, with what others leave of the
processor, and a recording that it has not come to gives way to the next one.
"""

import logging
import math
import time
from collections.abc import Callable
from pathlib import Path

from mjfleet.loggers.logger_group import LoggerGroup
from mjfleet.rl.runner import Runner
from mjfleet.utils.console import in_a_line, print_line
from mjfleet.video.recording import Recorder, Recording
from mjfleet.video.render_process import LOOK_SECONDS, Rendering

SECONDS = 10.0
"""Simulated seconds of a video, about."""
LAST_SECONDS = 60.0
"""How long the end of a run waits for videos."""

logger = logging.getLogger(__name__)


class Videos:
    """Records the first worlds of a runner's environment in front of every `interval`th iteration.

    A video ends with the iteration that its name says, and begins as many iterations earlier as it
    takes. The last iteration has one in any case. Whatever goes wrong is worth one warning, and
    ends videos, not training.

    Args:
        runner: whose rollouts are recorded; none has begun.
        interval: iterations from one video to the next.
        folder: where videos are written.
        task: the task's name.
        sinks: are handed each video that is finished.
    """

    def __init__(
        self, runner: Runner, interval: int, folder: Path, task: str, loggers: LoggerGroup
    ) -> None:
        self._interval = interval
        self._last = runner.agent.max_iterations
        self._folder = folder
        self._task = task
        self._loggers = loggers
        assert runner.env.recorder is not None
        self._recorder = Recorder(runner.env, runner.env.recorder, SECONDS)
        self._waiting: tuple[int, Recording] | None = None
        self._drawn: list[tuple[int, Rendering]] = []
        """What is being drawn, and of which iteration it is: one, until the run ends."""
        self._skipped = 0
        self._works = True

    def iteration(self, number: int) -> None:
        """An iteration is complete: record it where a video is due, and see to those before."""
        self._attempt(lambda: self._record(number))
        self._attempt(self._move_on)

    def finish(self, stop: Callable[[], object]) -> None:
        """Wait for the last videos, but not for long, and not once `stop` is true."""
        if self._waiting:
            self._attempt(self._begin)
        if self._drawn:
            print_line(
                f"drawing the last videos, for {LAST_SECONDS:g} s at most; Ctrl-C skips them"
            )
        deadline = time.monotonic() + LAST_SECONDS
        while self._works and self._drawn:
            if stop() or time.monotonic() > deadline:
                break
            for _, rendering in self._drawn:
                rendering.hurry()
            time.sleep(LOOK_SECONDS)
            self._attempt(self._move_on)

    def close(self) -> None:
        """End what is still under way."""
        for _, rendering in self._drawn:
            rendering.close()
        lost = self._skipped + bool(self._waiting) + len(self._drawn)
        if lost and self._works:
            logger.warning("videos that were not drawn, for lack of time: %d", lost)

    def _record(self, number: int) -> None:
        due = min(math.ceil(number / self._interval) * self._interval, self._last)
        if number <= due - self._recorder.length:
            return
        self._recorder.take()
        if number == due:
            self._skipped += bool(self._waiting)
            title = f"{self._task}, iteration {number}"
            self._waiting = number, self._recorder.finish(title)

    def _move_on(self) -> None:
        """Hand over what is finished, and begin with what waits."""
        for number, rendering in list(self._drawn):
            if rendering.is_done():
                self._drawn.remove((number, rendering))
                rendering.close()
                self._loggers.video(rendering.path, number)
        if self._waiting and not self._drawn:
            self._begin()

    def _begin(self) -> None:
        """Begin to draw what waits. The last video does not wait for an idle processor."""
        assert self._waiting
        (number, recording), self._waiting = self._waiting, None
        path = self._folder / f"iteration_{number}.mp4"
        self._drawn.append((number, Rendering(recording, path, idle=number < self._last)))

    def _attempt(self, action: Callable[[], object]) -> None:
        if not self._works:
            return
        try:
            action()
        except Exception as error:
            self._works = False
            logger.warning("no more videos, training goes on: %s", in_a_line(error))
