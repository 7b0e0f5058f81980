"""Checks the loss of a subclass of PPO, above all before it is learned from. Runs in a worker."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDict
from torch import nn

from mjfleet.env.random_numbers import own_random_numbers
from mjfleet.errors import UserError
from mjfleet.rl.minibatches import Minibatch, forget_nodes

NAME = re.compile(r"[A-Za-z0-9_]+")


def check(alg: Any, observations: TensorDict) -> None:
    """Try the networks and the loss of a subclass on the first observations; nothing is learned.

    Raises:
        UserError: they cannot be learned from.
    """
    known = set(alg.gradient.parameters)
    for name, value in vars(alg).items():
        learned = value.parameters() if isinstance(value, nn.Module) else ()
        if not {p for p in learned if p.requires_grad} <= known:
            raise UserError(
                f"{type(alg).__name__}.{name} is a network that is not learned: return it from "
                f'`modules()` as {{"{name}": ...}}; it is `self.extra["{name}"]` then.'
            )
    if alg.has_own_loss:
        with own_random_numbers(0, alg.device):
            alg.name_losses(_check_loss(alg, _try_minibatch(alg, observations)))


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
        UserError: the loss cannot be learned from.
    """
    where = f"{type(alg).__name__}.loss"
    found: Any = alg.loss(minibatch)
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
    learned = alg.gradient.parameters
    gradients = (None,)
    if total.requires_grad:
        gradients = torch.autograd.grad(total, learned, allow_unused=True)
    if all(gradient is None for gradient in gradients):
        raise UserError(f"{where}: the total has no gradient by any parameter of the networks.")
    now = alg.actor.output_distribution_params
    if [p.shape for p in now] != [p.shape for p in minibatch.distribution]:
        raise UserError(
            f"{where} ends with the actor's distribution at other samples than the minibatch's: "
            "call `super().loss(minibatch)` last, or update the distribution again."
        )
    forget_nodes(alg, minibatch.actor_inputs)
    return tuple(parts)


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
    alg.minibatches.fill()
    return alg.minibatches.batches[0]


def _kind(value: Any) -> str:
    return f"of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else f"{value!r:.60}"
