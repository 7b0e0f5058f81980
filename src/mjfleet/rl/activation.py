"""The activation function that most policies use, from operations that are fast on a CPU."""

import torch
from torch import nn


class QuickELU(nn.ELU):
    """ELU with alpha 1 by way of `exp`, equal within the rounding of 1 in its precision.

    torch's own goes by `expm1`, which took ten times as long as `exp` on AVX-512.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """The activation of each element: x above zero, exp(x) - 1 below."""
        positive = input.relu()
        # Of torch's ways to split at zero, this is the one whose backward pass is fast too.
        return (input - positive).exp_() + (positive - 1.0)


def quicken(model: nn.Module) -> None:
    """Replace each ELU in `model`, which has no parameters, where its device is a CPU."""
    for module in model.modules():
        # rsl_rl's layers share one; `named_children` would tell its first place alone.
        for name, child in module._modules.items():
            if type(child) is nn.ELU and child.alpha == 1.0:
                setattr(module, name, QuickELU())
