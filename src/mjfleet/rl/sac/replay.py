"""A ring of the newest steps of each environment, from which n-step samples are drawn."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

FAILED, TIMED_OUT, SPOILT = 1, 2, 3
"""How a step ended its episode; 0: it did not."""


class Samples(NamedTuple):
    """Samples of a replay; the first dimension of each tensor is the sample."""

    before: torch.Tensor
    """Places of the observations before the action, for `Replay.observed`, `(samples,)`, int64."""
    after: torch.Tensor
    """Places of those whose value stands for all rewards after the window, likewise."""
    actions: torch.Tensor
    """`(samples, num_actions)`"""
    rewards: torch.Tensor
    """The discounted sum of the rewards of the window, `(samples,)`."""
    discounts: torch.Tensor
    """What the value after the window is multiplied by: gamma to its steps; 0 after a failure."""
    weights: torch.Tensor
    """1, or 0 for samples to be left out, `(samples,)`."""


class Replay:
    """The newest `length` steps of `num_envs` environments, preallocated on a device.

    An environment resets itself within a step, so that the observation after the end of an episode
    is never seen. A window of `n` steps therefore ends before a step that timed out or was spoilt:
    the observation from which that step was taken is the last one whose value is known.
    """

    def __init__(
        self, length: int, observations: Mapping[str, torch.Tensor], num_actions: int
    ) -> None:
        """Allocate the ring; `observations` are of one step, `(num_envs, ...)` by group."""
        first = next(iter(observations.values()))
        size, device = (length, len(first)), first.device
        self.observations = {
            name: torch.zeros(length, *rows.shape, dtype=rows.dtype, device=device)
            for name, rows in observations.items()
        }
        self.actions = torch.zeros(*size, num_actions, device=device)
        self.rewards = torch.zeros(size, device=device)
        self.ends = torch.zeros(size, dtype=torch.uint8, device=device)
        self.length, self.num_envs, self.device = length, len(first), device
        self.next = self.count = 0
        """The row that is written next, and the number of rows that are written."""

    def state(self) -> dict[str, Any]:
        """Return the rows that are written, and where the next one goes, for `load_state`."""
        rows = {name: tensor[: self.count] for name, tensor in self._tensors().items()}
        return {**rows, "length": self.length, "next": self.next}

    def load_state(self, saved: Mapping[str, Any]) -> None:
        """Restore what `state` has returned; from a ring of another length, its newest rows.

        Raises:
            ValueError: they are of other observations, actions or environments.
        """
        is_equal = saved["length"] == self.length
        for name, to in self._tensors().items():
            rows = saved[name] if is_equal else saved[name].roll(-saved["next"], 0)[-self.length :]
            self.count = len(rows)
            if to[: self.count].shape != rows.shape:
                raise ValueError(f"the replay's {name} has another shape")
            to[: self.count].copy_(rows)
        self.next = saved["next"] if is_equal else self.count % self.length

    def _tensors(self) -> dict[str, torch.Tensor]:
        groups = {f"observations/{name}": rows for name, rows in self.observations.items()}
        return {**groups, "actions": self.actions, "rewards": self.rewards, "ends": self.ends}

    def add(
        self,
        observations: Mapping[str, torch.Tensor],
        actions: torch.Tensor,
        rewards: torch.Tensor,
        failed: torch.Tensor,
        timed_out: torch.Tensor,
        spoilt: torch.Tensor,
    ) -> None:
        """Add a step of all environments in place of the oldest one; see Learner.record."""
        row = self.next
        to = [*(rows[row] for rows in self.observations.values()), self.actions[row]]
        values = [*(observations[name] for name in self.observations), actions]
        torch.ops.aten._foreach_copy_([*to, self.rewards[row]], [*values, rewards])
        ends = failed.to(torch.uint8) + TIMED_OUT * timed_out.to(torch.uint8)
        self.ends[row] = torch.where(spoilt, SPOILT, ends)
        self.next = (row + 1) % self.length
        self.count = min(self.count + 1, self.length)

    def newest(self, steps: int) -> list[slice]:
        """Return the rows of the newest steps, in one slice or two."""
        first = (self.next - steps) % self.length
        if first < self.next:
            return [slice(first, self.next)]
        return [slice(first, self.length), *[slice(self.next)] * (self.next > 0)]

    def sample(self, number: int, n: int, gamma: float) -> Samples:
        """Draw samples with windows of at most `n` steps, of all but the newest `n` steps.

        Waits for nothing. At least `n` + 1 steps have been added.
        """
        oldest = self.next - self.count
        ages = torch.randint(self.count - n, (number,), device=self.device)
        envs = torch.randint(self.num_envs, (number,), device=self.device)
        return self.windows(ages + oldest, envs, n, gamma)

    def windows(self, rows: torch.Tensor, envs: torch.Tensor, n: int, gamma: float) -> Samples:
        """Return the samples that begin at these rows (modulo the length) and environments."""

        def flat(steps: torch.Tensor) -> torch.Tensor:
            return steps % self.length * self.num_envs + envs

        rewards, ends = self.rewards.view(-1), self.ends.view(-1)
        total = torch.zeros(len(rows), device=self.device)
        goes_on = torch.ones_like(total)  # Until the window ends.
        discounts, known, steps = torch.ones_like(total), torch.ones_like(total), rows.clone()
        weights = (self.ends.view(-1)[flat(rows)] <= FAILED).to(total.dtype)
        for step in range(n):
            index = flat(rows + step)
            end = ends[index]
            is_cut = end > FAILED  # The step has no known follower.
            counts = goes_on * ~is_cut
            total += counts * discounts * rewards[index]
            discounts *= torch.where(counts > 0, gamma, 1.0)
            known *= 1.0 - counts * (end == FAILED)
            steps += counts.to(steps.dtype)
            goes_on = counts * (end != FAILED)
        first, last = flat(rows), flat(steps)
        actions = self.actions.view(-1, self.actions.shape[2])[first]
        return Samples(first, last, actions, total, discounts * known, weights)

    def room(self, number: int) -> dict[str, torch.Tensor]:
        """Return zeros for the observations of so many samples, by group."""
        groups = self.observations.items()
        return {name: rows.new_zeros(number, *rows.shape[2:]) for name, rows in groups}

    def observed(self, places: torch.Tensor, out: Mapping[str, torch.Tensor]) -> None:
        """Write the observations at places of samples, `(samples,)`, into a `room` for them."""
        for name, rows in self.observations.items():
            torch.index_select(rows.flatten(0, 1), 0, places, out=out[name])
