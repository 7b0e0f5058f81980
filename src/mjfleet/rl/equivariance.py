"""Networks that commute with a mirror of the robot, by weights that are tied. Runs in a worker.

Where each weight equals its mirror image, mirrored observations lead to mirrored actions, and each
sample teaches as much as two (van der Pol et al. 2020, arXiv:2006.16908). The mirror reverses the
order of a hidden layer's units. Weights are tied once, and gradients averaged with their images.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from tensordict import TensorDict
from torch import nn

from mjfleet.errors import UserError
from mjfleet.rl.ranks.gradients import FlatGradient

TIES_WEIGHTS = "--agent.algorithm.symmetry-cfg.use-equivariant-networks"


class Mirror(NamedTuple):
    """A signed permutation: `x[..., source] * sign` is the image of `x` `(..., size)`."""

    source: torch.Tensor
    sign: torch.Tensor

    def add_image(self, mean: torch.Tensor, var: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the moments `(1, size)` of samples and their images, given those of samples."""
        change = (mean[:, self.source] * self.sign - mean) / 2
        return mean + change, (var + var[:, self.source]) / 2 + change.square()


class Equivariance:
    """Ties the weights of rsl_rl's networks."""

    def __init__(
        self,
        mirror: Callable[..., Any],
        networks: tuple[Any, ...],
        observations: TensorDict,
        gradient: FlatGradient,
    ) -> None:
        """Tie the weights of `networks`, whose gradients `gradient` holds; other weights stay free.

        `mirror` returns `observations` and actions `(samples, size)`, each followed by its images.

        Raises:
            UserError: it is no mirror, or a network has other parameters than linear layers.
        """
        distribution = networks[0].distribution
        device, num_actions = gradient.flat.device, distribution.output_dim
        sizes = {name: rows.shape[1] for name, rows in observations.items()}
        groups, actions = read_mirrors(mirror, sizes, num_actions, device)
        deviations = Mirror(actions.source, torch.ones_like(actions.sign))
        images: dict[Any, Mirror] = dict.fromkeys(distribution.parameters(), deviations)
        self.inputs = {x: join([groups[name] for name in x.obs_groups]) for x in networks}
        """The mirror of what each network observes."""
        for network in networks:
            linears = [layer for layer in network.mlp if isinstance(layer, nn.Linear)]
            inputs = self.inputs[network]
            for layer in linears:
                size = layer.out_features
                outputs = _same(size, device)  # A value is its own image.
                if layer is not linears[-1]:
                    outputs = Mirror(outputs.source.flip(0), outputs.sign)
                elif network.distribution is not None:
                    # Deviations by observation follow the means.
                    outputs = join([actions, deviations]) if size > num_actions else actions
                images[layer.weight] = _of_matrix(outputs, inputs)
                images[layer.bias] = outputs
                inputs = outputs
        own = [p for x in networks for p in x.parameters() if p.requires_grad]
        if not images.keys() >= set(own):
            raise UserError(
                f"{TIES_WEIGHTS} needs networks of linear layers; use "
                "--agent.algorithm.symmetry-cfg.no-use-equivariant-networks with others."
            )
        rest = _same(1, device)  # The KL divergence.
        free = {p: _same(p.numel(), device) for p in gradient.parameters}
        self._image = join([*((free | images)[p] for p in gradient.parameters), rest])
        self._gradient, self._flat = gradient, gradient.flat
        for parameter in own:
            image, old = images[parameter], parameter.detach().flatten()
            # The mean of two independent numbers has half the variance of one.
            scale = 2**0.5 if parameter.dim() > 1 else 1.0
            tied = (old + old[image.source] * image.sign) * (scale / 2)
            parameter.data.copy_(tied.view_as(parameter))

    def check_weights(self) -> None:
        """Raise UserError if weights that have been loaded are not tied."""
        weights = torch.cat([p.detach().flatten() for p in self._gradient.parameters])
        source, sign = (part[: len(weights)] for part in self._image)
        if not torch.allclose(weights, weights[source] * sign):
            raise UserError(
                f"{TIES_WEIGHTS}: the networks were trained without it, or by another mirror, and "
                "cannot become equivariant: give "
                "--agent.algorithm.symmetry-cfg.no-use-equivariant-networks."
            )

    def tie_gradients(self) -> None:
        """Average all gradients with their images."""
        self._flat.add_(self._flat[self._image.source] * self._image.sign).mul_(0.5)


def read_mirrors(
    mirror: Callable[..., Any], sizes: Mapping[str, int], num_actions: int, device: torch.device
) -> tuple[dict[str, Mirror], Mirror]:
    """Return the mirrors of groups of observations, whose `sizes` are given, and that of actions.

    Raises:
        UserError: `mirror` is none.
    """

    def example(size: int) -> torch.Tensor:
        return torch.arange(1.0, size + 1, device=device).unsqueeze(0)

    examples = TensorDict({name: example(size) for name, size in sizes.items()}, batch_size=1)
    seen, done = mirror(obs=examples, actions=example(num_actions))
    return {name: _read(name, seen[name]) for name in sizes}, _read("actions", done)


def _read(name: str, rows: torch.Tensor) -> Mirror:
    """Return the mirror whose image of the first row, 1, 2, 3..., is the second one."""
    if len(rows) == 2:
        mirror = Mirror(rows[1].abs().long() - 1, rows[1].sign())
        unchanged = torch.arange(rows.shape[1], device=rows.device)
        if torch.equal(mirror.source.sort().values, unchanged):
            twice = Mirror(mirror.source[mirror.source], mirror.sign[mirror.source] * mirror.sign)
            if torch.equal(twice.source, unchanged) and bool((twice.sign == 1).all()):
                return mirror
    raise UserError(
        "--agent.algorithm.symmetry-cfg.data-augmentation-func must be a mirror: it swaps the "
        f"numbers of `{name}`, changes some signs, and undoes itself. It returns samples, then "
        "their images."
    )


def _same(size: int, device: torch.device) -> Mirror:
    return Mirror(torch.arange(size, device=device), torch.ones(size, device=device))


def _of_matrix(outputs: Mirror, inputs: Mirror) -> Mirror:
    """Return the mirror of a layer's weights `(outputs, inputs)`, flattened."""
    index = outputs.source[:, None] * len(inputs.source) + inputs.source
    return Mirror(index.flatten(), (outputs.sign[:, None] * inputs.sign).flatten())


def join(mirrors: list[Mirror]) -> Mirror:
    """Return the mirror of tensors that follow each other."""
    first, index = 0, []
    for mirror in mirrors:
        index.append(mirror.source + first)
        first += len(mirror.source)
    return Mirror(torch.cat(index), torch.cat([mirror.sign for mirror in mirrors]))
