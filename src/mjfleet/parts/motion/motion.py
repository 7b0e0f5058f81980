"""The motion that a robot is to follow: frames of clips, and which of them is now. In a worker."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mjfleet.config import SamplingConfig
from mjfleet.env import Env, evaluation_levels
from mjfleet.errors import UserError
from mjfleet.parts.motion.clips import SUFFIXES, Robot, read_clip
from mjfleet.parts.motion.kinematics import Bodies, central_differences, forward, resample
from mjfleet.parts.motion.sampling import StartFrames
from mjfleet.utils.input_files import find_files


@dataclass(frozen=True)
class Frame:
    """The reference of each environment, float32."""

    qpos: torch.Tensor  # `(num_envs, nq)`, of the whole model.
    qvel: torch.Tensor  # `(num_envs, nv)`
    bodies: Bodies  # `(num_envs, bodies, ...)`


class Motion:
    """Clips that robots follow. Make it in `setup`.

    An episode begins at a frame that is drawn, in an evaluation at the first of a clip. The frame
    advances with each step, before `after_physics`, so that rewards compare the new state with the
    frame that belongs to it. Where `ended` is true, `truncated` has to be.
    """

    frame: torch.Tensor
    """The number of the current frame, `(num_envs,)`, long, among those of all clips."""
    names: tuple[str, ...]
    """Names of the clips, in the order of their frames."""

    def __init__(
        self,
        env: Env[Any],
        clips: Sequence[str],
        bodies: Sequence[str],
        sampling: SamplingConfig | None = None,
    ) -> None:
        """Read clips, and compute where bodies are in their frames.

        Args:
            clips: files, folders, and weights, see mjfleet/utils/input_files.py.
            bodies: names of the bodies whose poses and velocities are wanted.
            sampling: how starts are drawn; adaptively by default.

        Raises:
            UserError: a file cannot be read or does not fit the robot, two clips have one name, or
                the model has no such body.
        """
        model = env.sim.model
        known = [model.body(i).name for i in range(model.nbody)]
        if lacking := [name for name in bodies if name not in known]:
            raise UserError(
                f"Motion: the model has no body {lacking[0]!r}; it has {', '.join(known)}."
            )
        files = find_files(clips, env.places, SUFFIXES, "--env.clips")
        if not files:
            raise UserError("--env.clips: give a file or a folder of clips to follow.")
        self._env, robot, ids = env, Robot(model), [model.body(name).id for name in bodies]
        self.body_ids, self.clips = ids, [read_clip(file.path, model) for file in files]
        self.names = tuple(Path(file.name).stem for file in files)  # A run's copies have others.
        if twice := [name for name in self.names if self.names.count(name) > 1]:
            raise UserError(f"--env.clips: two clips have the name {twice[0]}; rename a file.")
        rows, lengths = [], list[int]()
        for clip, file in zip(self.clips, files, strict=True):
            qpos = resample(clip.qpos, robot.root, clip.rate, env.step_dt)
            if len(qpos) < 2:
                raise UserError(f"{file.path}: it is shorter than a step, {env.step_dt:g} s.")
            speeds = central_differences(qpos, robot.root, env.step_dt)
            whole, moving = robot.whole(qpos), robot.whole_velocities(speeds)
            parts = whole, moving, *forward(model, whole, ids, moving)
            rows.append(torch.cat([part.flatten(1) for part in parts], dim=1).float())
            lengths.append(len(qpos))
        self._rows, self._sizes = torch.cat(rows).to(env.device), (model.nq, model.nv)
        self.seconds = [(length - 1) * env.step_dt for length in lengths]
        """How long each clip is, s."""
        weights = [file.weight for file in files]
        self.starts = StartFrames(env, lengths, weights, sampling or SamplingConfig())
        counts = torch.tensor(lengths, device=env.device)
        self._clip_of = torch.arange(len(lengths), device=env.device).repeat_interleave(counts)
        self._lasts = counts.cumsum(dim=0) - 1
        self._firsts = self._lasts - counts + 1
        begin = self._draw
        if env.is_evaluation:
            first = self._firsts[evaluation_levels(env, len(lengths), self.names)]
            begin = lambda mask: first  # noqa: E731
            env.max_episode_length = max(lengths)
        self.frame = env.add_state("motion.frame", dtype=torch.long, reset=begin)
        env.each_step(self._advance, after_physics=True)
        if self.starts.is_adaptive:
            env.each_step(lambda: self.starts.count(self.frame))

    @property
    def clip(self) -> torch.Tensor:
        """The number of each environment's clip, `(num_envs,)`, long."""
        return self._clip_of[self.frame]

    @property
    def ended(self) -> torch.Tensor:
        """Where the last frame of a clip is reached, `(num_envs,)`, bool."""
        return self.frame >= self._lasts[self.clip]

    @property
    def time(self) -> torch.Tensor:
        """Seconds since the beginning of the clip, `(num_envs,)`."""
        return (self.frame - self._firsts[self.clip]) * self._env.step_dt

    def now(self) -> Frame:
        """Return the current frames."""
        return self._frames(self._rows.index_select(0, self.frame))

    def _frames(self, rows: torch.Tensor) -> Frame:
        count, (nq, nv) = len(self.body_ids), self._sizes
        qpos, qvel, *parts = rows.split((nq, nv, 3 * count, 4 * count, 3 * count, 3 * count), dim=1)
        return Frame(qpos, qvel, Bodies(*(part.unflatten(1, (count, -1)) for part in parts)))

    def frames_of(self, clip: int) -> Frame:
        """Return all frames of a clip, `(frames, ...)`."""
        return self._frames(self._rows[int(self._firsts[clip]) : int(self._lasts[clip]) + 1])

    def seek(self, seconds: torch.Tensor) -> None:
        """Go to a time of each environment's clip, `(num_envs,)`, s."""
        first, last = self._firsts[self.clip], self._lasts[self.clip]
        wanted = first + (seconds / self._env.step_dt).round().long()
        self.frame.copy_(torch.minimum(wanted, last))

    def _draw(self, mask: torch.Tensor) -> torch.Tensor:
        del mask
        return self.starts.draw()

    def _advance(self) -> None:
        torch.minimum(self.frame + 1, self._lasts[self.clip], out=self.frame)
