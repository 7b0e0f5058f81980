"""rsl_rl's Gaussian with less to compute for many samples. Runs in a worker."""

import math

import torch
from rsl_rl.modules.distribution import GaussianDistribution

LOG_2_PI = math.log(2.0 * math.pi)


class Gaussian(GaussianDistribution):
    """The same distribution: what depends on the standard deviation is computed once for all
    samples, which share it, and not for each."""

    def update(self, mlp_output: torch.Tensor) -> None:
        """Be the distribution of actions whose means are these, `(num_samples, num_actions)`."""
        self._mean = mlp_output
        if self.std_type == "log":
            logarithms = self.log_std_param.clamp(*self.log_std_range)
            self._deviation = logarithms.exp()
        else:
            self._deviation = self.std_param.clamp(*self.std_range)
            logarithms = self._deviation.log()
        self._log_volume = logarithms.sum()

    def sample(self) -> torch.Tensor:
        """Draw actions `(num_samples, num_actions)`, the same as rsl_rl's."""
        with torch.no_grad():
            return torch.normal(self._mean, self.std)

    @property
    def mean(self) -> torch.Tensor:
        """`(num_samples, num_actions)`."""
        return self._mean

    @property
    def std(self) -> torch.Tensor:
        """`(num_samples, num_actions)`, a view of one row."""
        return self._deviation.expand_as(self._mean)

    @property
    def entropy(self) -> torch.Tensor:
        """`(num_samples,)`, a view of one number."""
        constant = 0.5 * self.output_dim * (1.0 + LOG_2_PI)
        return (self._log_volume + constant).expand(len(self._mean))

    def log_prob(self, outputs: torch.Tensor) -> torch.Tensor:
        """Of actions `(num_samples, num_actions)`, together: `(num_samples,)`."""
        scaled = (outputs - self._mean) / self._deviation
        constant = self._log_volume + 0.5 * self.output_dim * LOG_2_PI
        return -0.5 * scaled.square().sum(dim=-1) - constant
