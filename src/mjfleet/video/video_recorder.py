"""Records the states of the first environments for videos, and decides when a video is due.

Runs in rank 0 and in `play`. States are recorded, not pictures: render_process.py draws them.
"""

import logging
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mujoco
import numpy as np

from mjfleet.utils.console import in_a_line, print_line
from mjfleet.video.render_process import LOOK_SECONDS, NICE, RenderProcess
from mjfleet.video.state_recording import ARROW, StateRecording

if TYPE_CHECKING:
    from mjfleet.env import Env
    from mjfleet.env.step_recorder import StepRecorder
    from mjfleet.loggers.logger_group import LoggerGroup
    from mjfleet.rl.runner import Runner

NUM_RECORDED = 4  # Environments; of fewer than that, one is recorded.
SECONDS = 10.0  # Simulated seconds of a training video, about.
LAST_SECONDS = 60.0  # How long the end of a run waits for videos.

logger = logging.getLogger(__name__)


class StateRecorder:
    """Makes recordings of about `seconds` from the newest steps of the first environments.

    `step_recorder` holds these steps.
    """

    def __init__(self, env: "Env[Any]", step_recorder: "StepRecorder", seconds: float) -> None:
        self._env, self._source = env, step_recorder
        self.length = math.ceil(seconds / (env.step_dt * step_recorder.num_steps))
        """How many calls of `take` make a recording."""
        step_recorder.shown = NUM_RECORDED if env.num_envs >= NUM_RECORDED else 1
        self._parts: list[dict[str, np.ndarray]] = []

    @property
    def is_complete(self) -> bool:
        """Whether the recording is long enough."""
        return len(self._parts) == self.length

    def take(self) -> None:
        """Add all kept steps, unless the recording is complete; waits for the device."""
        if self.is_complete:
            return
        tensors = self._source.tensors
        fields = ("time", "qpos", "mocap_pos", "mocap_quat")
        found = {name: tensors[f"start/{name}"] for name in fields if f"start/{name}" in tensors}
        found |= {ARROW + name: tensor for name, tensor in self._source.arrows.items()}
        found |= {"reward": tensors["terms"].sum(dim=2)}
        recorded = {name: tensor[:, : self._source.shown] for name, tensor in found.items()}
        self._parts.append({name: np.array(some.cpu()) for name, some in recorded.items()})

    def finish(self, title: str) -> StateRecording:
        """Return what was taken since the last call, in order."""
        parts, self._parts = self._parts, []
        steps = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        model = self._env.sim.model
        binary = np.empty(mujoco.mj_sizeModel(model), np.uint8)
        mujoco.mj_saveModel(model, None, binary)
        return StateRecording(title=title, step_dt=self._env.step_dt, model=binary, steps=steps)


class TrainingVideos:
    """Makes a video of the iterations before each `interval`th one, and before the last one.

    A video is named after the iteration with which it ends. Training does not wait for drawing: one
    process at a time draws with the lowest priority, and a recording that still waits for it gives
    way to the next one. Any error ends the videos with one warning; training continues. No rollout
    of `runner` has begun; `loggers` receive each finished video.
    """

    def __init__(
        self, runner: "Runner", interval: int, folder: Path, task: str, loggers: "LoggerGroup"
    ) -> None:
        self._interval, self._last = interval, runner.agent.max_iterations
        self._folder, self._task, self._loggers = folder, task, loggers
        assert runner.env.recorder is not None
        self._recorder = StateRecorder(runner.env, runner.env.recorder, SECONDS)
        self._waiting: tuple[int, StateRecording] | None = None
        self._drawn: dict[int, RenderProcess] = {}  # By iteration: one, until the run ends.
        self._skipped = 0
        self._works = True

    def iteration(self, number: int) -> None:
        """Record a completed iteration where a video is due, and attend to those being drawn."""
        self._attempt(lambda: self._record(number))
        self._attempt(self._move_on)

    def finish(self, stop: Callable[[], object]) -> None:
        """Wait for the last videos, until `stop` is true or LAST_SECONDS are over."""
        if self._waiting:
            self._attempt(self._begin)
        if self._drawn:
            limit = f"for {LAST_SECONDS:g} s at most; Ctrl-C skips them"
            print_line(f"drawing the last videos, {limit}")
        deadline, last = time.monotonic() + LAST_SECONDS, {**self._drawn}
        while self._works and self._drawn and not stop() and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)
            self._attempt(self._move_on)
        for number in last.keys() - self._drawn.keys():
            print_line(f"wrote {last[number].path}")

    def close(self) -> None:
        """End what is still being drawn."""
        for process in self._drawn.values():
            process.end()
        lost = self._skipped + bool(self._waiting) + len(self._drawn)
        if lost and self._works:
            logger.warning("videos that were not drawn, for lack of time: %d", lost)

    def _record(self, number: int) -> None:
        due = min(math.ceil(number / self._interval) * self._interval, self._last)
        if number > due - self._recorder.length:
            self._recorder.take()
        if number == due:
            self._skipped += bool(self._waiting)
            self._waiting = number, self._recorder.finish(f"{self._task}, iteration {number}")

    def _move_on(self) -> None:
        """Hand over finished videos, and begin to draw the one that waits."""
        for number, process in list(self._drawn.items()):
            if process.is_done():
                del self._drawn[number]
                process.end()
                self._loggers.video(process.path, number)
        if self._waiting and not self._drawn:
            self._begin()

    def _begin(self) -> None:
        """Begin to draw what waits; training no longer competes with the last video."""
        assert self._waiting
        (number, recording), self._waiting = self._waiting, None
        path = self._folder / f"iteration_{number}.mp4"
        nice = NICE if number < self._last else 0
        self._drawn[number] = RenderProcess(recording, path, nice=nice)

    def _attempt(self, action: Callable[[], object]) -> None:
        if not self._works:
            return
        try:
            action()
        except Exception as error:
            self._works = False
            logger.warning("no more videos, training goes on: %s", in_a_line(error))
