"""Forward passes of rsl_rl's networks of linear layers. Runs in a worker."""

from typing import Any

import torch
from torch import nn

IMAGES = 16
"""From how many images on torch has oneDNN convolve them."""
WORTHWHILE = 2**18
"""How many activations of a layer make convolving faster, measured."""


def widest(mlp: nn.Sequential) -> int:
    """The greatest number of outputs of a layer."""
    return max(layer.out_features for layer in mlp if isinstance(layer, nn.Linear))


def forward(mlp: Any, rows: torch.Tensor) -> torch.Tensor:
    """The outputs `(num_rows, ...)` of a network for inputs `(num_rows, num_inputs)`.

    On a CPU, torch multiplies matrices by MKL, which leaves half of an AMD processor's arithmetic
    units idle, and multiplies slender ones slowly on any. A linear layer is a convolution of images
    with one kernel of 1 x 1, which torch has oneDNN do: twice as fast, with the same derivatives.
    """
    is_for_onednn = (
        rows.device.type == "cpu"
        and rows.dtype == torch.float32
        and torch.backends.mkldnn.is_available()
        and len(rows) % IMAGES == 0
        and len(rows) * widest(mlp) >= WORTHWHILE
    )
    if not is_for_onednn:
        return mlp(rows)
    # Pixels are rows; channels come last in memory, so that nothing has to move.
    features = rows.view(IMAGES, -1, 1, rows.shape[-1]).permute(0, 3, 1, 2)
    layers = list(mlp)
    last = max(i for i, layer in enumerate(layers) if isinstance(layer, nn.Linear))
    for layer in layers[:last]:
        if isinstance(layer, nn.Linear):
            kernel = layer.weight[:, :, None, None]
            features = nn.functional.conv2d(features, kernel, layer.bias)
        else:
            features = layer(features)
    outputs = features.permute(0, 2, 3, 1).flatten(0, 2)
    for layer in layers[last:]:  # Too few outputs to be worth a convolution.
        outputs = layer(outputs)
    return outputs


def overwrite(mlp: nn.Sequential) -> None:
    """Let activations overwrite their inputs: derivatives follow from the outputs, and sooner."""
    for layer in mlp:
        if isinstance(layer, (nn.ELU, nn.CELU, nn.SELU, nn.ReLU)):
            layer.inplace = True
