"""Draws the frames at which episodes begin, more often where episodes have failed. In a worker."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import torch

from mjfleet.env import Env

Sampling = Literal["adaptive", "uniform", "start"]


@dataclass(frozen=True)
class Adaptation:
    """Numbers of adaptive sampling: those of BeyondMimic (Liao et al. 2025, arXiv:2508.08241)."""

    alpha: float = 0.001
    """Weight of a step's failures in their exponential mean."""
    floor: float = 0.1
    """What is added to the failures of all bins together."""
    kernel: int = 1
    """Seconds before a failure in which episodes begin more often, too."""
    decay: float = 0.8
    """How much less so for each second."""


class StartFrames:
    """Draws starts by clip and by bins of about a second, of which the last second has none."""

    def __init__(
        self,
        env: Env[Any],
        lengths: Sequence[int],
        weights: Sequence[float],
        sampling: Sampling,
        adaptation: Adaptation,
    ) -> None:
        """Take clips of so many frames, one after the other, and a weight of each."""
        self._env, self._adaptation = env, adaptation
        second, first, kernel = max(1, round(1 / env.step_dt)), 0, adaptation.kernel
        firsts, counts, of_frames, heights, nexts = [], [], [], [], []
        for length, weight in zip(lengths, weights, strict=True):
            starts = 1 if sampling == "start" else max(1, length - second)
            bins, begun = max(1, round(starts / second)), len(firsts)
            edges = [starts * i // bins for i in range(bins + 1)]
            firsts += [first + edge for edge in edges[:-1]]
            counts += [end - start for start, end in pairwise(edges)]
            nexts += [[begun + min(i + k, bins - 1) for k in range(kernel)] for i in range(bins)]
            heights += [weight] * bins
            of_frames += [begun + min(i * bins // starts, bins - 1) for i in range(length)]
            first += length
        long = {"dtype": torch.long, "device": env.device}
        self._firsts, self._counts = torch.tensor(firsts, **long), torch.tensor(counts, **long)
        self._nexts = torch.tensor(nexts, **long)
        self.bins = torch.tensor(of_frames, **long)
        """The bin of each frame, `(frames,)`."""
        fading = adaptation.decay ** torch.arange(kernel, device=env.device).double()
        self._kernel = fading / fading.sum()
        self._heights = torch.tensor(heights, device=env.device).double()
        uniform = (self._heights * self._counts).cumsum(dim=0)
        double = {"dtype": torch.float64, "shared": True}
        self._sums = env.add_state("motion.sums", len(firsts), start=uniform, **double)
        """The share of starts in each bin and those before it, in any unit."""
        self.failures = env.add_state("motion.failures", len(firsts), reduce="sum", **double)
        """The exponential mean of failures in each bin."""
        self._steps = env.add_state("motion.steps", **double)
        if sampling == "adaptive" and not env.is_evaluation:
            env.each_iteration(self._adapt)

    def draw(self) -> torch.Tensor:
        """Return a start for each environment, `(num_envs,)`, long."""
        share, place = self._env.uniform(2, 0.0, 1.0).double().unbind(dim=1)
        found = torch.searchsorted(self._sums, share * self._sums[-1], right=True)
        bins = found.clamp(max=len(self._firsts) - 1)
        return self._firsts[bins] + (place * self._counts[bins]).long()

    def count(self, frames: torch.Tensor) -> None:
        """Count where a step has failed, at `frames` `(num_envs,)`."""
        failed = torch.zeros_like(self.failures)
        failed.index_add_(0, self.bins[frames], self._env.failed.double())
        # All decays at once after the iteration; until then, later failures count for more.
        self._steps += 1
        alpha = self._adaptation.alpha
        self.failures += alpha * failed * (1 - alpha) ** -self._steps.clamp(max=10_000)

    def probabilities(self) -> torch.Tensor:
        """Return the share of starts in each bin, `(bins,)`."""
        return torch.diff(self._sums, prepend=self._sums.new_zeros(1)) / self._sums[-1]

    def _adapt(self) -> None:
        """Decay the failures, and prefer bins in which, or before which, many were."""
        numbers = self._adaptation
        self.failures *= (1 - numbers.alpha) ** self._steps
        self._steps.zero_()
        raised = self.failures + numbers.floor / len(self.failures)
        smooth = (raised[self._nexts] * self._kernel).sum(dim=1)
        torch.cumsum(smooth * self._heights, dim=0, out=self._sums)
