"""Noise that is similar from step to step, by which a policy explores."""

import torch

KEPT = 4
"""Ratio between the memories of two processes that are added."""


class PinkNoise:
    """Gaussian noise whose power falls with frequency, about as 1/f.

    Eberhard et al., Pink Noise Is All You Need, ICLR 2023: white noise pushes a joint to and fro,
    so that an episode hardly leaves where it is. Here it is a sum of first-order processes, each of
    which remembers four times as many steps as the one before. Values have a deviation of 1.
    """

    def __init__(self, num_envs: int, num_actions: int, memory: int, device: str) -> None:
        """Begin with values of long ago; `memory` steps are the longest, 1 is white noise."""
        memories = [1]
        while memories[-1] * KEPT <= memory:
            memories.append(memories[-1] * KEPT)
        self._kept = 1.0 - 1.0 / torch.tensor(memories, device=device).unsqueeze(1)
        self._added = ((1.0 - self._kept.square()) / len(memories)).sqrt()
        values = torch.randn(num_envs, len(memories), num_actions, device=device)
        self.values = values / len(memories) ** 0.5
        """The processes, `(num_envs, processes, num_actions)`."""

    def draw(self) -> torch.Tensor:
        """Return the noise of the next step, `(num_envs, num_actions)`."""
        self.values.mul_(self._kept).addcmul_(self._added, torch.randn_like(self.values))
        return self.values.sum(dim=1)

    def load(self, values: torch.Tensor) -> None:
        """Go on from earlier values, unless they are of another memory."""
        if values.shape == self.values.shape:
            self.values.copy_(values)
