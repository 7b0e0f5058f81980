"""Plays a policy in real time: pause, speed, commands by hand, a choice of checkpoints."""

import math
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch

from mjfleet.errors import UserError
from mjfleet.runs.checkpoints import BEST, checkpoints_in
from mjfleet.tools.play.policy_episodes import Player
from mjfleet.utils.console import print_line
from mjfleet.video.drawing import enlarged, floating_body

FRAME_SECONDS = 1 / 60
SEEN_WIDTH = 256  # Of the picture of a camera, pixels.
CHECKPOINT_SECONDS = 1.0  # Between looks for a newer checkpoint.
SPEEDS = (1 / 8, 1 / 4, 1 / 2, 1.0, 2.0, 4.0, 8.0)
NEWEST = "newest"  # The choice that follows a run while it trains.


class Playback:
    """Steps all environments in real time. Used by the thread that plays; others call `later`.

    `playing` names the policy, for display. `folder` has the checkpoints to choose from, of which
    `choice` is wanted: a name, or NEWEST, which newer ones replace. `check_stop` raises Stopped if
    a signal was lost, as where a viewer's library catches all exceptions of its imports. `camera`
    is a Camera of the task, whose pictures are shown.
    """

    def __init__(
        self,
        player: Player,
        playing: str,
        folder: Path | None = None,
        choice: str = NEWEST,
        check_stop: Callable[[], object] = lambda: None,
        camera: Any = None,
    ) -> None:
        self.env, self.playing = player.env, playing
        self.is_paused = False
        self.speed = 1.0  # Wanted simulated seconds per second.
        self.shown = 0  # The environment whose numbers are shown.
        self.steps = 0  # Steps and resets so far; a display is out of date once it changes.
        self.sums = torch.zeros_like(self.env.terms)
        """Sums of reward terms in the current episodes, `(number of terms, num_envs)`."""
        self._player, self._folder, self._check_stop = player, folder, check_stop
        self.choice, self._camera = choice, camera
        self._first = playing
        self._loaded = playing  # Or tried.
        self._body = floating_body(self.env.sim.model)
        self._requests: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._held: dict[str, float] = {}  # Commands by hand.
        self._owed = 0.0  # Simulated seconds to be stepped.
        self._ended = torch.zeros(self.env.num_envs, dtype=torch.bool, device=self.env.device)

    def watch(self, show: Callable[[], object], is_open: Callable[[], bool]) -> None:
        """Play in real time, and call `show` up to 60 times a second, while `is_open`."""
        before = looked = time.perf_counter()
        while is_open():
            self._check_stop()
            now = time.perf_counter()
            self.advance(now - before)
            if now - looked > CHECKPOINT_SECONDS:
                looked = now
                self.load_choice()
            show()
            before = now
            time.sleep(max(0.0, FRAME_SECONDS - (time.perf_counter() - now)))

    def later(self, request: Callable[[], object]) -> None:
        """Have the thread that plays call `request` before its next step."""
        self._requests.put(request)

    def advance(self, seconds: float) -> int:
        """Call the requests, then step for so much time at the wanted speed; return the steps.

        Steps that this machine is too slow for are dropped, so that a display stays responsive.
        """
        for _ in range(self._requests.qsize()):
            self._requests.get()()
        if self.is_paused:
            return 0
        before, start = self.steps, time.perf_counter()
        self._owed += seconds * self.speed
        while self._owed >= self.env.step_dt:
            self.step()
            self._owed -= self.env.step_dt
            if time.perf_counter() - start > FRAME_SECONDS:
                self._owed = min(self._owed, self.env.step_dt)
                break
        return self.steps - before

    def step(self) -> None:
        """Take one step, paused or not."""
        for name, value in self._held.items():
            self.env.commands()[name][0].fill_(value)
        dones = self._player.step()
        self.sums = self.sums.masked_fill(self._ended, 0.0) + self.env.terms
        self._ended = dones
        self.steps += 1

    def reset(self) -> None:
        """Start a new episode in every environment."""
        self.env.reset()
        self._ended = torch.ones_like(self._ended)
        self._player.forget(self._ended)
        self.steps += 1

    def toggle(self) -> None:
        self.is_paused = not self.is_paused

    def change_speed(self, by: int) -> None:
        """Change to the speed `by` places further in SPEEDS."""
        self.speed = SPEEDS[min(max(SPEEDS.index(self.speed) + by, 0), len(SPEEDS) - 1)]

    def show_other(self, by: int) -> None:
        """Show the environment with a number `by` higher."""
        self.shown = (self.shown + by) % self.env.num_envs

    def override_commands(self, commands: dict[str, float] | None) -> None:
        """Give every environment these commands, by name; None: the task samples them again."""
        self.env.command_override = commands is not None
        self._held = commands or {}

    def numbers(self) -> tuple[list[tuple[str, float, float]], dict[str, float]]:
        """Return reward terms and metrics of the shown environment; waits for the device.

        A reward term is its name, its value in the newest step, and its sum over the episode; a
        metric is its value in the newest step.
        """
        env, shown = self.env, self.shown
        steps, sums = env.terms[:, shown].tolist(), self.sums[:, shown].tolist()
        measured = env.measured[:, shown].tolist()
        pairs = zip(env.metric_names, measured[::2], measured[1::2], strict=True)
        metrics = {name: over / by if by else math.nan for name, over, by in pairs}
        return list(zip(env.reward_names, steps, sums, strict=True)), metrics

    def motion(self) -> dict[str, float]:
        """Return how the shown robot moves in its own frame; waits for the device.

        `forward` (x) and `left` (y) in m/s, `turn_left` in rad/s; empty if it does not float.
        """
        if self._body is None:
            return {}
        sim = self.env.sim
        start = int(sim.model.body_dofadr[self._body])
        velocity = sim.qvel[self.shown, start : start + 6].cpu()
        frame = sim.xmat[self.shown, self._body].view(3, 3).to(velocity)
        forward, left, _ = (frame.T @ velocity[:3]).tolist()
        return {"forward": forward, "left": left, "turn_left": float(velocity[5])}

    def seen(self) -> np.ndarray | None:
        """Return what the camera sees in the shown environment, `(height, width, 3)`, uint8, in
        larger pixels; None: there is no camera. Waits for the device."""
        if self._camera is None:
            return None
        return enlarged(self._camera.pictures()[self.shown].cpu().numpy(), SEEN_WIDTH)

    def checkpoints(self) -> list[str]:
        """Return the names of the checkpoints to choose from: the newest first, then the best, and
        the one that was played first, such as `final_model.pt`."""
        if self._folder is None:
            return []
        names = [path.name for path in reversed(checkpoints_in(self._folder))]
        others = [name for name in (BEST, self._first) if (self._folder / name).is_file()]
        return list(dict.fromkeys(names + others))

    def load_choice(self) -> None:
        """Load the checkpoint that is wanted, if there is one that has not been tried."""
        names = self.checkpoints()
        wanted = next(iter(names), "") if self.choice == NEWEST else self.choice
        if self._folder is None or wanted not in names or wanted == self._loaded:
            return
        self._loaded = wanted
        try:
            self._player.load(self._folder / wanted)
        except UserError as error:
            print_line(f"warning: {error}")  # Training may have removed it; a newer one follows.
            return
        self.playing = wanted
        print_line(f"playing {self._folder / wanted}")
