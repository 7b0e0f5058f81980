"""Decides when a video of training is due. Runs in rank 0."""

import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from mjfleet.utils.console import in_a_line, print_line
from mjfleet.utils.wait_until import wait_until
from mjfleet.video.render_process import NICE, RenderProcess
from mjfleet.video.state_recording import StateRecorder

if TYPE_CHECKING:
    from mjfleet.loggers.logger_group import LoggerGroup
    from mjfleet.rl.runner import Runner

VIDEO_SECONDS = 10.0  # Simulated seconds of a video, about.
LAST_SECONDS = 60.0  # How long the end of a run waits for videos.

logger = logging.getLogger(__name__)


class TrainingVideos:
    """Makes a video of the iterations before each `interval`th one, and before the last one.

    A video is named after the iteration with which it ends. Training does not wait for drawing: a
    process with the lowest priority draws each video as soon as it is due. While it is still busy,
    only the last video is begun. Any error ends the videos with one warning; training continues.
    No rollout of `runner` has begun; `loggers` receive each finished video.
    """

    def __init__(
        self, runner: "Runner", interval: int, folder: Path, task: str, loggers: "LoggerGroup"
    ) -> None:
        self._interval, self._last = interval, runner.agent.max_iterations
        self._folder, self._task, self._loggers = folder, task, loggers
        self._recorder = StateRecorder(runner.env, VIDEO_SECONDS)
        self._drawn: dict[int, RenderProcess] = {}  # By iteration.
        self._works = True

    def iteration(self, number: int) -> None:
        """Record a completed iteration where a video is due, and hand over finished videos."""
        self._attempt(lambda: self._record(number))

    def finish(self, stop: Callable[[], object]) -> None:
        """Wait for the last videos, until `stop` is true or LAST_SECONDS are over."""

        def is_over() -> bool:
            self._attempt(self._collect)
            return bool(stop()) or not self._drawn

        if self._drawn:
            print_line(f"drawing videos, for {LAST_SECONDS:g} s at most; Ctrl-C skips them")
            if not wait_until(is_over, LAST_SECONDS):
                logger.warning("no video of the last iteration, for lack of time")

    def close(self) -> None:
        """End what is still being drawn."""
        while self._drawn:
            self._drawn.popitem()[1].end()

    def _record(self, number: int) -> None:
        self._collect()
        due = min(math.ceil(number / self._interval) * self._interval, self._last)
        if number > due - self._recorder.length:
            self._recorder.take()
        if number < due:
            return
        recording = self._recorder.finish(f"{self._task}, iteration {number}")
        if not self._drawn or number == self._last:
            path = self._folder / f"iteration_{number}.mp4"
            nice = NICE if number < self._last else 0  # Training no longer needs the cores.
            self._drawn[number] = RenderProcess(recording, path, nice)

    def _collect(self) -> None:
        for number, process in list(self._drawn.items()):
            if process.is_done():
                del self._drawn[number]
                process.end()
                self._loggers.video(process.path, number)

    def _attempt(self, action: Callable[[], object]) -> None:
        try:
            if self._works:
                action()
        except Exception as error:
            self._works = False
            self.close()
            logger.warning("no more videos, training continues: %s", in_a_line(error))
