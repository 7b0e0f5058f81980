"""Flat buffers for gradients, each averaged by one all-reduce. Runs in a worker."""

from abc import abstractmethod
from collections.abc import Iterable, Iterator

import torch

from mjfleet.rl.ranks.collectives import Collectives


class FlatGradient:
    """One buffer for the gradients of all parameters, followed by a minibatch's KL divergence.

    The learning rate depends on the KL divergence, which is averaged with the gradients, so that
    all ranks adapt it in the same way.
    """

    def __init__(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Allocate the buffer for the parameters that require a gradient, in this order."""
        self.parameters = [p for p in parameters if p.requires_grad]
        sizes = [p.numel() for p in self.parameters]
        first = self.parameters[0]
        self.flat = torch.zeros(sum(sizes) + 1, dtype=first.dtype, device=first.device)
        """`(number of parameters + 1,)`."""
        self.kl = self.flat[-1]
        self._views = self.views(self.flat)
        self.attach()

    def views(self, flat: torch.Tensor) -> dict[torch.nn.Parameter, torch.Tensor]:
        """Return each parameter's part of a buffer that is laid out like `flat`."""
        pieces = flat[:-1].split([p.numel() for p in self.parameters])
        return {p: piece.view_as(p) for p, piece in zip(self.parameters, pieces, strict=True)}

    def split(self, modules: Iterable[torch.nn.Module]) -> list[torch.Tensor]:
        """Return each module's part of the buffer; the modules have the parameters in this order.

        A parameter of several modules is in the first one's.
        """
        rest, sizes = set(self.parameters), []
        for module in modules:
            own = rest.intersection(module.parameters())
            rest -= own
            sizes.append(sum(p.numel() for p in own))
        parts = self.flat[:-1].split(sizes)
        return [part for part in parts if len(part)]

    def attach(self) -> None:
        """Make every parameter's gradient a view of the buffer, with the same values.

        A missing gradient becomes zero.
        """
        for parameter, view in self._views.items():
            if parameter.grad is None:
                view.zero_()
            elif parameter.grad.data_ptr() != view.data_ptr():
                view.copy_(parameter.grad)
            parameter.grad = view

    def average(self, collectives: Collectives) -> None:
        """Average the buffer over all ranks, in one all-reduce."""
        self.attach()
        collectives.all_reduce(self.flat)
        self.flat /= collectives.world_size


class SharedGradients:
    """Averages the gradients of a learner's optimisers over the ranks."""

    def __init__(self, collectives: Collectives) -> None:
        self.collectives = collectives
        self.is_distributed = collectives.world_size > 1
        self._gradients: dict[tuple[str, ...], FlatGradient] = {}

    @abstractmethod
    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """Return the optimisers by name."""

    def gradient_of(self, *names: str) -> FlatGradient:
        """Return the flat gradient of the optimisers with these names; without names, of all."""
        if names not in self._gradients:
            groups = [g for n, x in self.optimizers().items() for g in x.param_groups
                      if n in names or not names]  # fmt: skip
            self._gradients[names] = FlatGradient(p for group in groups for p in group["params"])
        return self._gradients[names]

    def reduce_parameters(self, *names: str) -> None:
        """Average gradients over the ranks, in one all-reduce; for the names see `gradient_of`.

        A parameter that has no gradient on a rank counts as zero there.
        """
        if self.is_distributed:
            self.gradient_of(*names).average(self.collectives)

    def descend(self, loss: torch.Tensor, name: str) -> None:
        """Take a step of an optimiser down the gradient of a loss, averaged over the ranks."""
        optimizer = self.optimizers()[name]
        optimizer.zero_grad()
        loss.backward()
        self.reduce_parameters(name)
        optimizer.step()

    def flat_gradients(self) -> Iterator[torch.Tensor]:
        yield from (gradient.flat for gradient in self._gradients.values())
