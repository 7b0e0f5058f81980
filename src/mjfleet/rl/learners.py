"""Gradients of PPO's loss for a minibatch, by several CPU threads. Runs in a worker."""

import copy
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import torch
from rsl_rl.algorithms import PPO

from mjfleet.rl.mlp import forward, overwrite, widest
from mjfleet.rl.recorded import Recorded

CACHED = 2**18
"""How many activations of a layer stay in a CPU's cache: networks see so many at a time, or up to
twice as many."""


class Samples(NamedTuple):
    """Samples of a rollout, by the names of rsl_rl's storage; each `(samples, size)`.

    They are written in place: graphs hold their addresses.
    """

    actor: torch.Tensor
    """What the policy network sees, normalised."""
    critic: torch.Tensor
    actions: torch.Tensor
    values: torch.Tensor
    returns: torch.Tensor
    advantages: torch.Tensor
    """`(samples,)`, like the next."""
    log_probs: torch.Tensor
    means: torch.Tensor
    """Of the action distribution during the rollout, like the next."""
    deviations: torch.Tensor
    limits: torch.Tensor
    """Advantages times the ratio of probabilities at which the objective ends, `(samples,)`: above
    one where the advantage is positive, below one where it is negative."""

    def split(self, count: int) -> "list[Samples]":
        """So many parts of about the same size."""
        parts = zip(*(field.tensor_split(count) for field in self), strict=True)
        return [Samples(*part) for part in parts]


@dataclass(frozen=True)
class _Learner:
    """Networks and a buffer of their gradients: those that are trained, or others of the same
    parameters, by which another thread works on some of the samples."""

    actor: Any
    critic: Any
    gradients: torch.Tensor
    """Of all parameters, and at the end the KL divergence."""
    kl: torch.Tensor
    """That, a view."""
    losses: tuple[torch.Tensor, ...]
    """Sums over the minibatches of the value loss, the surrogate loss and the entropy."""
    follow: list[Callable[[Samples, float], None]] = field(default_factory=list)
    """What adds gradients by some samples of a minibatch: of the value network, of the policy."""


class Learners:
    """Computes gradients of an algorithm's loss, in this thread and maybe in others.

    CPU threads share the networks and the samples of a minibatch, and meet once: torch's own share,
    and wait for each other in, every single operation. Each sees what fits into a cache.
    """

    def __init__(
        self,
        algorithm: PPO,
        gradients: torch.Tensor,
        views: Sequence[tuple[torch.nn.Parameter, torch.Tensor]],
        with_kl: bool,
    ) -> None:
        """Begin with this thread alone.

        Args:
            algorithm: whose networks and coefficients these are.
            gradients: of all its parameters, and at the end the KL divergence.
            views: parameters, and their parts of `gradients`.
            with_kl: whether to measure that.
        """
        self._algorithm = algorithm
        self._views = views
        self._with_kl = with_kl
        self._learners = [self._learner(algorithm.actor, algorithm.critic, gradients)]
        self._threads: Executor | None = None
        networks: Any = algorithm.actor.mlp, algorithm.critic.mlp
        self._rows = CACHED // max(map(widest, networks)) if algorithm.device == "cpu" else 2**62
        """How many samples a network sees at a time."""
        for network in networks:
            overwrite(network)

    def share_among(self, num_threads: int) -> None:
        """Have so many CPU threads compute gradients; rounding depends on their number.

        Two share the networks: one has the policy, one the values. Each two more share samples.
        """
        first = self._learners[0]
        self._learners = [first]
        for _ in range(num_threads // 2 - 1):
            actor, critic = copy.deepcopy(first.actor), copy.deepcopy(first.critic)
            gradients = torch.zeros_like(first.gradients)
            copies = chain(actor.parameters(), critic.parameters())
            trained = chain(first.actor.parameters(), first.critic.parameters())
            views = {id(p): view for p, view in self._views}
            for parameter, original in zip(copies, trained, strict=True):
                parameter.data = original.data
                if id(original) in views:
                    view = views[id(original)]
                    place = view.storage_offset()
                    parameter.grad = gradients[place : place + view.numel()].view_as(view)
            self._learners.append(self._learner(actor, critic, gradients))
        if num_threads > 1:
            # This thread is one of them. Each is one to torch, whose number is a thread's own.
            others = 2 * len(self._learners) - 1
            self._threads = ThreadPoolExecutor(
                others, "learner", initializer=torch.set_num_threads, initargs=(1,)
            )

    def evaluate(self, inputs: torch.Tensor, values: torch.Tensor) -> None:
        """Write the value network's answers `(samples, 1)` for what it sees, `(samples, size)`."""
        count = 2 * len(self._learners)
        parts = zip(inputs.tensor_split(count), values.tensor_split(count), strict=True)
        self._run([partial(self._evaluate, *part) for part in parts])

    def compute_gradients(self, batch: Samples) -> None:
        """Gradients of rsl_rl's loss, and at the end of their buffer the KL divergence.

        The loss is a sum of the policy's and the value network's, which share no parameters.
        """
        calls: list[Callable[[], None]] = []
        count = len(batch.actions)
        for learner, part in zip(self._learners, batch.split(len(self._learners)), strict=True):
            learner.gradients.zero_()
            pieces = part.split(max(1, len(part.actions) // self._rows))
            for follow in learner.follow:
                calls.append(partial(_for_each, follow, pieces, count))
        self._run(calls)
        first, *others = self._learners
        for learner in others:
            first.gradients.add_(learner.gradients)

    def forget_losses(self) -> None:
        """Begin to sum losses up anew."""
        for learner in self._learners:
            for loss in learner.losses:
                loss.zero_()

    def losses(self) -> torch.Tensor:
        """Sums over the minibatches of the value loss, the surrogate loss and the entropy, `(3,)`.

        They stay on the device.
        """
        each = [torch.stack(learner.losses) for learner in self._learners]
        return torch.stack(each).sum(dim=0)

    def _learner(self, actor: Any, critic: Any, gradients: torch.Tensor) -> _Learner:
        losses = torch.zeros(3, device=self._algorithm.device).unbind()
        learner = _Learner(actor, critic, gradients, gradients[-1], losses)
        for follow in (self._follow_value, self._follow_policy):
            call = partial(follow, learner)
            learner.follow.append(Recorded(call) if self._algorithm.device == "cpu" else call)
        return learner

    def _run(self, calls: Sequence[Callable[[], None]]) -> None:
        """Make calls, the last in this thread and the others in other threads if there are any."""
        others = [self._threads.submit(call) for call in calls[:-1]] if self._threads else []
        for call in calls[len(others) :]:
            call()
        for other in others:
            other.result()

    def _evaluate(self, inputs: torch.Tensor, values: torch.Tensor) -> None:
        """Write the value network's answers, in whichever thread this is."""
        network: Any = self._algorithm.critic.mlp
        with torch.inference_mode():  # Which is a thread's own.
            for seen, answers in zip(
                inputs.split(self._rows), values.split(self._rows), strict=True
            ):
                answers.copy_(forward(network, seen))

    def _follow_policy(self, learner: _Learner, batch: Samples, share: float) -> None:
        """Add gradients of the policy by some samples of a minibatch, times their share of it."""
        algorithm, actor = self._algorithm, learner.actor
        actor.distribution.update(forward(actor.mlp, batch.actor))
        log_probs = actor.distribution.log_prob(batch.actions)
        entropy = actor.distribution.entropy.mean()
        ratio = torch.exp(log_probs - batch.log_probs)
        surrogate = -(batch.advantages * ratio).clamp_max(batch.limits).mean()
        ((surrogate - algorithm.entropy_coef * entropy) * share).backward()
        with torch.no_grad():
            if self._with_kl:
                old, new = (batch.means, batch.deviations), actor.distribution.params
                learner.kl.add_(actor.get_kl_divergence(old, new).mean(), alpha=share)
            _, total_surrogate, total_entropy = learner.losses
            total_surrogate.add_(surrogate, alpha=share)
            total_entropy.add_(entropy, alpha=share)

    def _follow_value(self, learner: _Learner, batch: Samples, share: float) -> None:
        """Add gradients of the value network, likewise."""
        algorithm = self._algorithm
        values = forward(learner.critic.mlp, batch.critic)
        errors = (values - batch.returns).square()
        if algorithm.use_clipped_value_loss:
            change = (values - batch.values).clamp(-algorithm.clip_param, algorithm.clip_param)
            errors = torch.max(errors, (batch.values + change - batch.returns).square())
        value = errors.mean()
        (value * (algorithm.value_loss_coef * share)).backward()
        with torch.no_grad():
            learner.losses[0].add_(value, alpha=share)


def _for_each(
    follow: Callable[[Samples, float], None], pieces: Sequence[Samples], count: int
) -> None:
    for piece in pieces:
        follow(piece, len(piece.actions) / count)
