"""Keeps the newest steps on the device, for videos and NaN dumps. Runs in a worker."""

from collections.abc import Callable

import torch

from mjfleet.sim import Simulation

RESULTS = ("qpos", "qvel", "act")
"""Fields that the physics changes. A step also starts from fields that a task writes."""
RECORDED_FIELDS = (*RESULTS, "mocap_pos", "mocap_quat")
"""Fields that an episode begins with."""
STARTS = ("time", *RECORDED_FIELDS, "ctrl")
APPLIED = ("qfrc_applied", "xfrc_applied")
"""Large fields, zero unless a task writes them. Recorded once a task has read them."""
Arrows = dict[str, tuple[torch.Tensor, torch.Tensor]]
"""What `Env.debug_vis` returns: start points and vectors, both `(num_envs, 3)` or, of several
arrows, `(num_envs, n, 3)`, in m in the world frame."""


class StepRecorder:
    """Records the newest `num_steps` steps of all environments.

    A step is recorded after `apply`, where its physics starts, and before `rewards`, where it ends.
    Each can thus be replayed alone.
    """

    def __init__(self, num_steps: int) -> None:
        self.num_steps = num_steps
        self.step = 0  # Index of the step to be recorded next.
        self.tensors: dict[str, torch.Tensor] = {}
        """By "start/<field>" and "end/<field>": `(num_steps, num_envs, ...)` in the engine's
        precision. By "terms": `(num_steps, num_envs, num terms)`, float32."""
        self.shown = 0
        """Number of environments, the first ones, whose arrows are recorded. Set it before the
        first step, for which memory is allocated."""
        self.arrows: dict[str, torch.Tensor] = {}
        """Start points and vectors of arrows, `(num_steps, shown, 2, 3)` or `(..., 2, n, 3)`."""
        self.ghosts: dict[str, torch.Tensor] = {}
        """By "ghost": what `Env.ghost` returns, `(num_steps, shown, nq)`."""

    def before_physics(
        self,
        sim: Simulation,
        debug_vis: Callable[[], Arrows],
        ghost: Callable[[], torch.Tensor | None] = lambda: None,
    ) -> None:
        """Record what a step starts from; of environments that are shown, arrows and ghosts."""
        used = [field for field in APPLIED if field in vars(sim)]
        live = {f"start/{field}": getattr(sim, field) for field in (*STARTS, *used)}
        self._write(self.tensors, live)
        if self.shown and (pairs := debug_vis()):
            both = {name: torch.stack(pair, dim=1)[: self.shown] for name, pair in pairs.items()}
            self._write(self.arrows, both)
        if self.shown and (found := ghost()) is not None:
            self._write(self.ghosts, {"ghost": found[: self.shown]})

    def after_physics(self, sim: Simulation) -> None:
        """Record the state after the physics of a step."""
        self._write(self.tensors, {f"end/{field}": getattr(sim, field) for field in RESULTS})

    def after_rewards(self, terms: torch.Tensor) -> None:
        """Record the reward terms `(num terms, num_envs)`, which completes the step."""
        self._write(self.tensors, {"terms": terms.T})
        self.step = (self.step + 1) % self.num_steps

    def now(self, sim: Simulation) -> dict[str, torch.Tensor]:
        """Return the live tensor of each "start/<field>", from which the next step would start."""
        starts = [name for name in self.tensors if name.startswith("start/")]
        return {name: getattr(sim, name.removeprefix("start/")) for name in starts}

    def _write(self, tensors: dict[str, torch.Tensor], live: dict[str, torch.Tensor]) -> None:
        live = {name: value for name, value in live.items() if value.numel()}
        for name in (name for name in live if name not in tensors):
            # A rollout would create an inference tensor. Forces that no task has read were zero.
            with torch.inference_mode(False):
                tensors[name] = live[name].new_zeros((self.num_steps, *live[name].shape))
        # One kernel launch copies all fields.
        to = [tensors[name][self.step] for name in live]
        torch.ops.aten._foreach_copy_(to, list(live.values()))
