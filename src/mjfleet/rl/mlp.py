"""Forward passes of rsl_rl's networks of linear layers. Runs in a worker."""

import math
from typing import Any

import torch
from torch import nn

IMAGES = 16
"""From how many images on torch has oneDNN convolve them."""
WORTHWHILE = 2**18
"""How many activations of a layer make convolving faster, measured."""
LOG2_E = math.log2(math.e)
MANY = 2**15
"""How many activations of a layer make several quick operations faster than a slow one."""


def widest(mlp: nn.Sequential) -> int:
    """The greatest number of outputs of a layer."""
    return max(layer.out_features for layer in mlp if isinstance(layer, nn.Linear))


def forward(mlp: Any, rows: torch.Tensor) -> torch.Tensor:
    """The outputs `(num_rows, ...)` of a network for inputs `(num_rows, num_inputs)`.

    On a CPU, torch multiplies matrices by MKL. That has no AVX-512 for AMD's processors, and leaves
    half of the arithmetic units of those that have it idle. A linear layer is a convolution of
    images with one kernel of 1 x 1, which torch has oneDNN do: twice as fast there, with the same
    derivatives.
    """
    if rows.device.type != "cpu":
        return mlp(rows)
    layers = list(mlp)
    if not _is_for_onednn(rows, widest(mlp)):
        for layer in layers:
            rows = _apply(layer, rows)
        return rows
    # Pixels are rows; channels come last in memory, so that nothing has to move.
    features = rows.view(IMAGES, -1, 1, rows.shape[-1]).permute(0, 3, 1, 2)
    last = max(i for i, layer in enumerate(layers) if isinstance(layer, nn.Linear))
    for layer in layers[:last]:
        if isinstance(layer, nn.Linear):
            kernel = layer.weight[:, :, None, None]
            features = nn.functional.conv2d(features, kernel, layer.bias)
        else:
            features = _apply(layer, features)
    outputs = features.permute(0, 2, 3, 1).flatten(0, 2)
    for layer in layers[last:]:  # Too few outputs to be worth a convolution.
        outputs = layer(outputs)
    return outputs


def overwrite(mlp: nn.Sequential) -> None:
    """Let activations overwrite their inputs: derivatives follow from the outputs, and sooner."""
    for layer in mlp:
        if isinstance(layer, (nn.ELU, nn.CELU, nn.SELU, nn.ReLU)):
            layer.inplace = True


def _is_for_onednn(rows: torch.Tensor, width: int) -> bool:
    return (
        torch.backends.cpu.get_cpu_capability().startswith("AVX512")
        and torch.backends.mkldnn.is_available()
        and rows.dtype == torch.float32
        and len(rows) % IMAGES == 0
        and len(rows) * width >= WORTHWHILE
    )


def _apply(layer: nn.Module, rows: torch.Tensor) -> torch.Tensor:
    """What a layer makes of rows, by the quickest way."""
    if isinstance(layer, nn.Linear):
        weight = layer.weight
        if torch.is_grad_enabled() and layer.in_features < layer.out_features:
            # Their derivative is laid out as weights are, and MKL takes up to seven times as long
            # for a product of few columns as for one of few rows.
            weight = weight.t().contiguous().t()
        return nn.functional.linear(rows, weight, layer.bias)
    if isinstance(layer, nn.ELU):
        if layer.alpha == 1.0 and rows.numel() >= MANY:
            return _ELU.apply(rows)
        return nn.functional.elu(rows, layer.alpha, layer.inplace)
    return layer(rows)


class _ELU(torch.autograd.Function):
    """torch's ELU by powers of two: torch's own takes exp(x) - 1 in one function, which is more
    precise next to zero than what is added up afterwards, and takes twice as long."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        # Above zero, x is greater than exp(0) - 1; below, it is less than exp(x) - 1.
        y = (x * LOG2_E).clamp_(max=0.0).exp2_().sub_(1.0)
        torch.maximum(x, y, out=y)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        (y,) = ctx.saved_tensors
        return torch.ops.aten.elu_backward(gradient, 1.0, 1.0, 1.0, True, y)
