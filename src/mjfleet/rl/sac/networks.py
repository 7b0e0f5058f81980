"""The networks of SAC: a policy bounded by tanh, and critics that predict distributions."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from rsl_rl.models import MLPModel
from torch import nn
from torch.nn import functional


def widths_of(size: int, hidden_dims: Sequence[int]) -> list[int]:
    """Return the sizes of a network's input and hidden layers; -1 stands for the input's size."""
    return [size, *(size if width == -1 else width for width in hidden_dims)]


class SquashedActor(MLPModel):
    """A Gaussian whose samples pass through tanh, times the limit of each action."""

    limit: torch.Tensor

    def __init__(
        self, obs: Any, obs_groups: dict[str, list[str]], limit: torch.Tensor,
        hidden_dims: Sequence[int], log_std: tuple[float, float], first_actions: float = 1.0,
        **encoders: Any,
    ) -> None:  # fmt: skip
        """Build the network.

        Args:
            limit: the largest action, `(num_actions,)`.
            log_std: bounds of the logarithm of the deviation before tanh.
            first_actions: factor of the weights of the last layer.
        """
        sizes = 2 * len(limit), list(hidden_dims)
        super().__init__(obs, obs_groups, "actor", *sizes, obs_normalization=True, **encoders)
        widths, layers = widths_of(self._get_latent_dim(), hidden_dims), list[nn.Module]()
        for size, following in pairwise(widths):
            layers += [nn.Linear(size, following), nn.LayerNorm(following), nn.SiLU()]
        self.mlp = nn.Sequential(*layers, nn.Linear(widths[-1], 2 * len(limit)))
        for parameter in self.mlp[-1].parameters():
            parameter.data.mul_(first_actions)
        self.register_buffer("limit", limit)
        self._log_std = log_std

    def forward(
        self,
        obs: Any,
        masks: torch.Tensor | None = None,
        hidden_state: Any = None,
        stochastic_output: bool = False,
    ) -> torch.Tensor:
        """Return the mean action, `(num_envs, num_actions)`."""
        return self.explore(obs, 0.0)

    def explore(self, obs: Any, noise: torch.Tensor | float) -> torch.Tensor:
        """Return the action with noise of deviation 1 before tanh, `(num_envs, num_actions)`."""
        mean, log_std = self.moments(self.get_latent(obs))
        return self.limit * torch.tanh(mean + log_std.exp() * noise)

    def moments(self, latent: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return mean and logarithm of the deviation before tanh, `(samples, num_actions)` each."""
        mean, raw = self.mlp(latent).chunk(2, dim=-1)
        low, high = self._log_std
        return mean, low + (high - low) * (0.5 + 0.5 * torch.tanh(raw))

    def sample(self, latent: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return actions in [-1, 1] `(samples, num_actions)` and log-probabilities `(samples,)`."""
        mean, log_std = self.moments(latent)
        noise = torch.randn_like(mean)
        before = mean + log_std.exp() * noise
        gaussian = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
        # log(1 - tanh(x)^2), without the loss of digits where tanh is close to 1.
        squashed = 2.0 * (math.log(2.0) - before - functional.softplus(-2.0 * before))
        return torch.tanh(before), (gaussian - squashed).sum(dim=-1)


class Critics(MLPModel):
    """Several critics at once, each with a categorical distribution of the return.

    Bellemare et al. 2017 (arXiv:1707.06887): probabilities of `atoms` between -support and support.
    """

    values: torch.Tensor
    action_unit: torch.Tensor

    def __init__(
        self, obs: Any, obs_groups: dict[str, list[str]], num_actions: int,
        hidden_dims: Sequence[int], atoms: int, support: float, first_std: float,
        action_unit: float, count: int = 2, **encoders: Any,
    ) -> None:  # fmt: skip
        """Build `count` critics of observations, and of actions divided by `action_unit`.

        They predict returns with a deviation of `first_std` of the support at first.
        """
        super().__init__(obs, obs_groups, "critic", 1, [1], obs_normalization=True, **encoders)
        del self.mlp
        self.register_buffer("action_unit", torch.tensor(action_unit))
        widths = widths_of(self._get_latent_dim() + num_actions, hidden_dims)
        shapes = list(pairwise([*widths, atoms]))
        made = [
            torch.empty(count, *shape).uniform_(-1, 1) / math.sqrt(shape[0]) for shape in shapes
        ]
        self.weights = nn.ParameterList(map(nn.Parameter, made))
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(count, 1, n)) for _, n in shapes)
        self.register_buffer("values", torch.linspace(-support, support, atoms))
        # A wide distribution takes 1 / (tau * (1 - gamma)) updates to become narrow.
        self.biases[-1].data -= 0.5 * (self.values / (first_std * support)).square()

    def logits(
        self, latent: torch.Tensor, actions: torch.Tensor, is_frozen: bool = False
    ) -> torch.Tensor:
        """Return logits `(count, samples, atoms)`; frozen: no gradient reaches the parameters."""
        rows, last = torch.cat((latent, actions / self.action_unit), dim=-1), len(self.weights) - 1
        rows = rows.expand(len(self.weights[0]), -1, -1)
        for i, pair in enumerate(zip(self.weights, self.biases, strict=True)):
            weight, bias = (part.detach() for part in pair) if is_frozen else pair
            rows = torch.baddbmm(bias, rows, weight)
            if i < last:
                rows = functional.silu(functional.layer_norm(rows, rows.shape[-1:]))
        return rows

    def means(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the expected returns of logits, `(count, samples)`."""
        return logits.softmax(dim=-1) @ self.values

    def project(
        self, probabilities: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Move probabilities `(samples, atoms)` at `values` to the atoms.

        Returns:
            Probabilities of the atoms `(samples, atoms)`, and the share beyond the support, `()`.
        """
        low, high = self.values[0], self.values[-1]
        beyond = (probabilities * ((values < low) | (values > high))).sum(dim=-1).mean()
        atoms = len(self.values)
        place = ((values.clamp(low, high) - low) / (high - low) * (atoms - 1)).clamp(0, atoms - 1)
        lower = place.floor().clamp(max=atoms - 2)
        # A GPU would end the process by a wrong index.
        index, share = lower.nan_to_num().long(), place - lower
        found = torch.zeros_like(probabilities)
        found.scatter_add_(1, index, probabilities * (1.0 - share))
        found.scatter_add_(1, index + 1, probabilities * share)
        return found, beyond
