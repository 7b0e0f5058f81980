"""Forward and backward passes of a network of linear layers as matrix products on a CPU.

Outputs and gradients are written into tensors that are allocated once. Runs in a worker, in any of
its threads.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional as fn

BLOCK_ACTIVATIONS = 2**18
"""Activations of the widest layer that are computed at a time. They fit in a CPU's cache."""
SELU = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946
"""Alpha and scale (Klambauer et al. 2017, arXiv:1706.02515)."""

LOG2_E = math.log2(math.e)


def elu_(values: torch.Tensor) -> torch.Tensor:
    """Replace x by max(x, exp(min(x, 0)) - 1), in half of the time that torch's ELU takes.

    A CPU computes powers of 2 faster than those of e.
    """
    powers = (values * LOG2_E).clamp_(max=0.0).exp2_()
    return torch.maximum(values, powers.sub_(1.0), out=values)


aten = torch.ops.aten
ELU = elu_, lambda g, y: aten.elu_backward.grad_input(g, 1.0, 1.0, 1.0, True, y, grad_input=g)
ACTIVATIONS: dict[type[nn.Module], tuple[Callable[..., object], Callable[..., object]]] = {
    nn.ELU: ELU,
    nn.CELU: ELU,
    nn.SELU: (
        fn.selu_,
        lambda g, y: aten.elu_backward.grad_input(g, *SELU, 1.0, True, y, grad_input=g),
    ),
    nn.ReLU: (fn.relu_, lambda g, y: aten.threshold_backward.grad_input(g, y, 0.0, grad_input=g)),
    nn.LeakyReLU: (
        fn.leaky_relu_,
        lambda g, y: aten.leaky_relu_backward.grad_input(g, y, 0.01, True, grad_input=g),
    ),
    nn.Tanh: (torch.Tensor.tanh_, lambda g, y: aten.tanh_backward.grad_input(g, y, grad_input=g)),
    nn.Sigmoid: (
        torch.Tensor.sigmoid_,
        lambda g, y: aten.sigmoid_backward.grad_input(g, y, grad_input=g),
    ),
    nn.Identity: (lambda y: y, lambda g, y: None),
}
"""For each activation, what computes its output y in place, and what multiplies a gradient by its
derivative, which follows from y. Constants are the defaults of torch, which rsl_rl takes."""


class CpuNetwork:
    """A network's layers with room for the outputs of up to `num_rows` samples."""

    @staticmethod
    def supports(mlp: Any) -> bool:
        """Whether all layers are linear layers or among ACTIVATIONS."""
        return all(type(layer) in (nn.Linear, *ACTIVATIONS) for layer in mlp)

    def __init__(
        self,
        mlp: Any,
        block_activations: int = BLOCK_ACTIVATIONS,
        gradients: Mapping[Any, torch.Tensor] | None = None,
    ) -> None:
        """Allocate the outputs; the parameters stay those of `mlp`, rsl_rl's MLP.

        `block_activations` activations of a layer are computed at a time. `gradients`: where
        `add_gradients` adds, by parameter.
        """
        linears = [layer for layer in mlp if isinstance(layer, nn.Linear)]
        self.num_rows = max(1, block_activations // max(layer.out_features for layer in linears))
        # Detached, so that no thread needs to switch autograd off.
        self._layers = [(x.weight.detach(), x.bias.detach()) for x in linears]
        self._gradients = [(gradients[x.weight], gradients[x.bias]) for x in linears if gradients]
        self._activate, self._activate_backward = ACTIVATIONS[type(mlp[1])]
        like = self._layers[0][0]
        self._room = [
            tuple(like.new_empty(self.num_rows, layer.out_features) for _ in range(2))
            for layer in linears
        ]
        self._views: dict[int, list[tuple[torch.Tensor, ...]]] = {}

    def _layer_views(self, num_rows: int) -> list[tuple[torch.Tensor, ...]]:
        """Return room for each layer's outputs, and for gradients by what it activates."""
        if num_rows not in self._views:
            self._views[num_rows] = [tuple(x[:num_rows] for x in room) for room in self._room]
        return self._views[num_rows]

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the outputs `(rows, size)` of inputs `(rows, size)`; the next call replaces them.

        At most `num_rows` rows.
        """
        last = len(self._layers) - 1
        views = self._layer_views(len(rows))
        for i, ((weight, bias), (outputs, _)) in enumerate(zip(self._layers, views, strict=True)):
            rows = torch.addmm(bias, rows, weight.t(), out=outputs)
            if i < last:
                self._activate(rows)
        return rows

    def predict(self, rows: torch.Tensor, outputs: torch.Tensor) -> None:
        """Write the outputs of any number of rows."""
        size = self.num_rows
        for part, out in zip(rows.split(size), outputs.split(size), strict=True):
            out.copy_(self.forward(part))

    def add_gradients(self, rows: torch.Tensor, by_output: torch.Tensor) -> None:
        """Add the parameters' gradients, given the loss's by the outputs `(rows, size)`.

        `rows` are what `forward` was last called with.
        """
        gradient = by_output
        views = self._layer_views(len(rows))
        for i in reversed(range(len(self._layers))):
            inputs, by_input = views[i - 1] if i else (rows, rows)
            by_weight, by_bias = self._gradients[i]
            if inputs.shape[1] < gradient.shape[1]:
                # A product with fewer columns than rows can take five times as long on a CPU.
                by_weight += torch.mm(inputs.t(), gradient).t()
            else:
                by_weight.addmm_(gradient.t(), inputs)
            by_bias += gradient.sum(dim=0)
            if i:
                torch.mm(gradient, self._layers[i][0], out=by_input)
                self._activate_backward(by_input, inputs)
                gradient = by_input
