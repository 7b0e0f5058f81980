"""Draws the frames at which episodes begin, more often where episodes have failed. In a worker."""

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch

from mjfleet.config import SamplingConfig
from mjfleet.env import Env


class StartFrames:
    """Draws starts by clip and by bins of about a second; the last second of a clip has none."""

    def __init__(
        self,
        env: Env[Any],
        lengths: Sequence[int],
        weights: Sequence[float],
        sampling: SamplingConfig,
    ) -> None:
        """Take clips of so many frames, one after the other, and a weight of each."""
        self._env, self._sampling = env, sampling
        second, first, kernel = max(1, round(1 / env.step_dt)), 0, sampling.kernel
        firsts, counts, of_frames, heights, nexts = [], [], [], [], []
        for length, weight in zip(lengths, weights, strict=True):
            starts = 1 if sampling.kind == "start" else max(1, length - second)
            bins, begun = max(1, round(starts / second)), len(firsts)
            edges = [starts * i // bins for i in range(bins + 1)]
            firsts += [first + edge for edge in edges[:-1]]
            counts += [end - start for start, end in pairwise(edges)]
            nexts += [[begun + min(i + k, bins - 1) for k in range(kernel)] for i in range(bins)]
            heights += [weight] * bins
            ends = [*edges[1:-1], length]
            of_frames += [begun + bisect_right(ends, i) for i in range(length)]
            first += length
        long = {"dtype": torch.long, "device": env.device}
        self._firsts, self._counts = torch.tensor(firsts, **long), torch.tensor(counts, **long)
        self._nexts = torch.tensor(nexts, **long)
        self.bins = torch.tensor(of_frames, **long)
        """The bin of each frame, `(frames,)`."""
        fading = sampling.decay ** torch.arange(kernel, device=env.device).double()
        self._kernel = fading / fading.sum()
        self._heights = torch.tensor(heights, device=env.device).double()
        uniform = (self._heights * self._counts).cumsum(dim=0)
        double = {"dtype": torch.float64, "shared": True}
        self._sums = env.add_state("motion.sums", len(firsts), start=uniform, **double)
        """The share of starts in each bin and those before it, in any unit."""
        self.failures = env.add_state("motion.failures", len(firsts), reduce="sum", **double)
        """The exponential mean of failures in each bin."""
        self._steps = env.add_state("motion.steps", **double)
        # So that no failure counts for more than a number has room for.
        self._most_steps = min(10_000, int(-500 / math.log1p(-sampling.alpha)))
        self.is_adaptive = sampling.kind == "adaptive" and not env.is_evaluation
        if self.is_adaptive:
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
        alpha = self._sampling.alpha
        self.failures += alpha * failed * (1 - alpha) ** -self._steps.clamp(max=self._most_steps)

    def probabilities(self) -> torch.Tensor:
        """Return the share of starts in each bin, `(bins,)`."""
        return torch.diff(self._sums, prepend=self._sums.new_zeros(1)) / self._sums[-1]

    def _adapt(self) -> None:
        """Decay the failures, and prefer bins in which, or before which, many were."""
        self.failures *= (1 - self._sampling.alpha) ** self._steps
        self._steps.zero_()
        raised = self.failures + self._sampling.floor / len(self.failures)
        smooth = (raised[self._nexts] * self._kernel).sum(dim=1)
        torch.cumsum(smooth * self._heights, dim=0, out=self._sums)
