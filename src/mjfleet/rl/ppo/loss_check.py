"""Checks the networks and the loss of a subclass of PPO before training. Runs in a worker."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDict
from torch import nn
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode

from mjfleet.env.random_numbers import own_random_numbers
from mjfleet.errors import UserError
from mjfleet.rl.learner_state import KINDS, NUMBER
from mjfleet.rl.minibatches import Minibatch, forget_nodes

NAME = re.compile(r"[A-Za-z0-9_]+")
CLOSE = 1e-3
"""Relative to the greatest value, the difference of two distributions that counts as rounding."""


def check_networks(networks: Mapping[str, nn.Module]) -> None:
    """Raise UserError if a network has layers that torch does not find, such as those in a list."""
    for name, network in networks.items():
        known = {*network.parameters()}
        for place, module in network.named_modules(prefix=name):
            for what, leaf in _leaves_of(module, place):
                if leaf not in known:
                    raise UserError(
                        f"{what} is not learned, since torch does not find it in {name}. Make it "
                        "an attribute of its own; put layers into an `nn.ModuleList` instead of a "
                        "list; make an `nn.Parameter` of a tensor."
                    )


def check(alg: Any, observations: TensorDict) -> None:
    """Try the loss of a subclass on the first observations; nothing is learned.

    Raises:
        UserError: nothing can be learned from the loss.
    """
    learned = _learned(alg)
    for name, leaf in _leaves_of(alg, type(alg).__name__):
        if leaf not in learned:
            raise _not_learned(name)
    if alg.has_own_loss:
        tensors, states = alg.written(), alg.states(*KINDS)
        before = [tensor.clone() for tensor in tensors]
        numbers = {name: one for name, one in states.items() if isinstance(one[1], NUMBER)}
        with own_random_numbers(0, alg.device):
            minibatch = _try_minibatch(alg, observations)
            alg.name_losses(_check_loss(alg, minibatch))
            _check_distribution(alg)
        forget_nodes(alg, minibatch.actor_inputs)
        for tensor, value in zip(tensors, before, strict=True):
            tensor.copy_(value)
        alg.load_states(numbers, *KINDS)


def stack_parts(alg: Any, parts: Mapping[str, torch.Tensor], names: Sequence[str]) -> torch.Tensor:
    """Return the parts of a loss in the order of `names`; UserError if it has others."""
    if parts.keys() != set(names):
        raise UserError(
            f"{type(alg).__name__}.loss returns {', '.join(parts)}, and at first returned "
            f"{', '.join(names)}: give its parts the same names each time."
        )
    return torch.stack([parts[name] for name in names])


def _check_loss(alg: Any, minibatch: Minibatch) -> tuple[str, ...]:
    """Return the names of the parts of an algorithm's loss; nothing is learned.

    Raises:
        UserError: nothing can be learned from the loss.
    """
    where = f"{type(alg).__name__}.loss"
    versions = [tensor._version for tensor in minibatch.tensors()]
    with _AskedGradients() as asked:
        found: Any = alg.loss(minibatch)
    _refuse_changes(where, minibatch, versions)
    is_pair = isinstance(found, tuple) and len(found) == 2
    if not (is_pair and isinstance(found[0], torch.Tensor) and isinstance(found[1], dict)):
        raise UserError(
            f"{where} returns {_kind(found)}: it has to return the total, a tensor, and a "
            "dictionary of its parts: `return total, parts`."
        )
    total, parts = found
    for name, value in {"the total": total, **parts}.items():
        if not isinstance(value, torch.Tensor) or value.numel() != 1 or value.dim():
            raise UserError(f"{where}: {name} is {_kind(value)}, and has to be a scalar tensor.")
        if not value.isfinite():
            raise UserError(f"{where}: {name} is {value.item()} at first.")
    for name in parts:
        if not NAME.fullmatch(name):
            raise UserError(f"{where}: {name!r} is no name of a part: take letters, digits and _.")
    # A gradient penalty and the like ask for the gradient by an input.
    for leaf in _leaves_under(total) - _learned(alg) - asked.inputs:
        raise _not_learned(f"a tensor {_kind(leaf)} that {where} uses")
    learned = alg.gradient.parameters
    gradients = (None,)
    if total.requires_grad:
        gradients = torch.autograd.grad(total, learned, allow_unused=True)
    if all(gradient is None for gradient in gradients):
        raise UserError(f"{where}: the total has no gradient by any parameter of the networks.")
    return tuple(parts)


class _AskedGradients(TorchFunctionMode):
    """Notes what `torch.autograd.grad` is asked for gradients by."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs = set[torch.Tensor]()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.autograd.grad:
            self.inputs |= {args[1]} if isinstance(args[1], torch.Tensor) else {*args[1]}
        return func(*args, **(kwargs or {}))


def _check_distribution(alg: Any) -> None:
    """Raise UserError if the loss ends with the actor's distribution at other observations."""
    actor = alg.actor

    def parameters() -> list[torch.Tensor]:
        return [p.detach().clone() for p in actor.output_distribution_params]

    # All steps of the rollout have the same observations, so that samples would be equal to their
    # neighbours. This makes them differ; values between 0 and 1 stay there.
    for group in alg.storage.observations.values():
        for step in group if group.is_floating_point() else ():
            step.lerp_(step.new_tensor(0.5), torch.rand_like(step) * 0.2)
    minibatch = _fill(alg)
    alg.loss(minibatch)
    left, expected = parameters(), []
    with torch.no_grad():
        for _ in range(2):
            actor.distribution.update(actor.mlp(minibatch.actor_inputs))
            expected.append(parameters())
    is_random = not all(map(_are_close, *expected))  # Dropout makes it random, for example.
    has_shape = [p.shape for p in left] == [p.shape for p in minibatch.distribution]
    if not (has_shape and (is_random or all(map(_are_close, left, expected[0])))):
        raise UserError(
            f"{type(alg).__name__}.loss ends with the actor's distribution at other observations "
            "than the minibatch's, from which the KL divergence would be computed: call "
            "`super().loss(minibatch)` last, or end with `self.actor.distribution.update("
            "self.actor.mlp(minibatch.actor_inputs))`."
        )


def _are_close(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool((one - other).abs().max() <= CLOSE * other.abs().max())


def _refuse_changes(where: str, minibatch: Minibatch, versions: Sequence[int]) -> None:
    """Raise UserError if tensors of a minibatch were written, so that their versions differ."""
    names = [*minibatch._fields[:-1], *["distribution"] * len(minibatch.distribution)]
    for name, tensor, version in zip(names, minibatch.tensors(), versions, strict=True):
        if tensor._version != version:
            raise UserError(
                f"{where} changes minibatch.{name} in place. Each epoch has the same minibatches, "
                "so that it would change again and again. Compute a new tensor, as in "
                "`advantages = 1.5 * minibatch.advantages`, and pass it to `super().loss` by "
                "`minibatch._replace(advantages=advantages)`."
            )


def _learned(alg: Any) -> set[torch.Tensor]:
    """Return the parameters in the algorithm's optimiser, or in one that is its attribute."""
    own = [value for value in vars(alg).values() if isinstance(value, Optimizer)]
    groups = [group["params"] for optimizer in own for group in optimizer.param_groups]
    return {*alg.gradient.parameters, *(parameter for group in groups for parameter in group)}


def _leaves_of(owner: Any, name: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the leaves that require a gradient, with their places: in an object's attributes, and
    in lists and dictionaries among these."""
    for attribute, value in vars(owner).items():
        found = {f"{name}.{attribute}": value}
        if isinstance(value, (list, tuple)):
            found = {f"{name}.{attribute}[{index}]": item for index, item in enumerate(value)}
        elif isinstance(value, dict):
            found = {f"{name}.{attribute}[{key!r}]": item for key, item in value.items()}
        for place, item in found.items():
            tensors = item.parameters() if isinstance(item, nn.Module) else [item]
            for one in tensors:
                if isinstance(one, torch.Tensor) and one.is_leaf and one.requires_grad:
                    yield place, one


def _leaves_under(total: torch.Tensor) -> set[torch.Tensor]:
    """Return the tensors that autograd would compute gradients of `total` for."""
    leaves = {total} if total.is_leaf and total.requires_grad else set()
    seen, waiting = set[Any](), [total.grad_fn]
    while waiting:
        node: Any = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        waiting += [following for following, _ in node.next_functions]
        if type(node).__name__ == "AccumulateGrad":
            leaves.add(node.variable)
    return leaves


def _not_learned(what: str) -> UserError:
    return UserError(
        f"{what} requires a gradient and is not learned. Return it from `modules()`, a single "
        "parameter in an `nn.ParameterDict`, and use it by `self.extra`. If it is to stay as it "
        "is, call its `requires_grad_(False)`."
    )


def _try_minibatch(alg: Any, observations: TensorDict) -> Minibatch:
    """Return a minibatch of random values, with actions for some observations."""
    storage = alg.storage
    with torch.no_grad():
        for step in range(storage.num_transitions_per_env):
            storage.step = step
            alg.act(observations)
        alg.compute_returns(observations)
        alg.store_log_probs()
        for field in (storage.values, storage.returns, storage.advantages):
            field.normal_()
        storage.clear()
    return _fill(alg)


def _fill(alg: Any) -> Minibatch:
    """Return a minibatch of the rollout, with its images encoded."""
    alg.minibatches.fill()
    return alg.minibatches.encode(alg.minibatches.batches[0])


def _kind(value: Any) -> str:
    return f"of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else f"{value!r:.60}"
