"""What the physics of a rollout started from and led to, kept on the device. Runs in a worker."""

from collections.abc import Callable

import torch

from mjfleet.sim import Simulation

RESULTS = ("qpos", "qvel", "act")
"""What physics changes; the rest of what a step starts from is what a task writes."""
STARTS = ("time", *RESULTS, "mocap_pos", "mocap_quat", "ctrl")
Arrows = dict[str, tuple[torch.Tensor, torch.Tensor]]
"""What `Env.arrows` returns."""
APPLIED = ("qfrc_applied", "xfrc_applied")
"""Large, and zero unless a task writes them: recorded once a task has looked at them."""


class StateHistory:
    """The states of the newest rollout, for a dump of worlds that went bad.

    A step is recorded where its physics starts, after `apply`, and where its physics ends, before
    `rewards` and the reset of worlds that are done. What a task's code wrote and what physics made
    of it can thus be told apart, and each step can be replayed by itself.

    All steps of a rollout are kept: about `2 * (nq + nv) + nu` numbers for each step of a world,
    which is of the order of what rsl_rl's storage keeps as observations.
    """

    def __init__(self, num_steps: int) -> None:
        self.num_steps = num_steps
        self.step = 0
        """The step that is recorded next."""
        self.tensors: dict[str, torch.Tensor] = {}
        """By "start/<field>", "end/<field>": `(num_steps, num_envs, ...)` in the engine's
        precision. "terms": `(num_steps, num_envs, num terms)`, float32."""
        self.shown = 0
        """Of how many worlds, the first ones, arrows are recorded too; set before the first step,
        since a captured graph goes on doing what it did."""
        self.arrows: dict[str, torch.Tensor] = {}
        """Where a step's arrows start and what they point along, `(num_steps, shown, 2, 3)`."""

    def before_physics(self, sim: Simulation, arrows: Callable[[], Arrows]) -> None:
        """Record what a step starts from, and what `arrows` returns where it is to be shown."""
        used = [field for field in APPLIED if field in vars(sim)]
        live = {f"start/{field}": getattr(sim, field) for field in (*STARTS, *used)}
        self._write(self.tensors, live)
        if self.shown and (pairs := arrows()):
            both = {name: torch.stack(pair, dim=1)[: self.shown] for name, pair in pairs.items()}
            self._write(self.arrows, both)

    def after_physics(self, sim: Simulation) -> None:
        """Record where the physics of a step ended."""
        self._write(self.tensors, {f"end/{field}": getattr(sim, field) for field in RESULTS})

    def after_rewards(self, terms: torch.Tensor) -> None:
        """Record the reward terms `(num terms, num_envs)`; the step is then complete."""
        self._write(self.tensors, {"terms": terms.T})
        self.step = (self.step + 1) % self.num_steps

    def now(self, sim: Simulation) -> dict[str, torch.Tensor]:
        """The live tensor of each "start/<field>": what the next step would start from."""
        starts = [name for name in self.tensors if name.startswith("start/")]
        return {name: getattr(sim, name.removeprefix("start/")) for name in starts}

    def _write(self, tensors: dict[str, torch.Tensor], live: dict[str, torch.Tensor]) -> None:
        live = {name: value for name, value in live.items() if value.numel()}
        for name in (name for name in live if name not in tensors):
            # First written in a rollout, it must not become a tensor for rollouts only. Zero is
            # what forces were in the steps before a task first looked at them.
            with torch.inference_mode(False):
                tensors[name] = live[name].new_zeros((self.num_steps, *live[name].shape))
        # One launch for all fields: on a GPU each small copy would cost more than its bytes.
        to = [tensors[name][self.step] for name in live]
        torch.ops.aten._foreach_copy_(to, list(live.values()))
