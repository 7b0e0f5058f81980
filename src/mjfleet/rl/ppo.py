"""rsl_rl's PPO over several ranks: one flat gradient, one all-reduce per minibatch."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from rsl_rl.algorithms import PPO

from mjfleet.rl.collectives import Collectives


class FlatPPO(PPO):
    """PPO whose gradients are views of one buffer, which travels in one all-reduce.

    Over several ranks, every rank steps its optimisers with the same gradient, the mean over the
    ranks, and therefore keeps the same parameters. What else has to be the same on all ranks:

    - The KL divergence of each minibatch, which steers the learning rate, rides along at the end of
      the buffer. Every rank sees the mean and decides alike.
    - Advantages are normalised by mean and deviation over the rollouts of all ranks.
    - Observation normalisers: rsl_rl reduces their moments over all ranks by itself.

    With one rank it is rsl_rl's PPO, unchanged.
    """

    def __init__(self, *args: Any, multi_gpu_cfg: dict[str, Any] | None, **kwargs: Any) -> None:
        """Take rsl_rl's arguments; `multi_gpu_cfg` also holds `collectives`."""
        super().__init__(*args, multi_gpu_cfg=multi_gpu_cfg, **kwargs)
        self._flat: torch.Tensor
        self._views: list[tuple[torch.nn.Parameter, torch.Tensor]]
        self.on_minibatch: Callable[[], object] = lambda: None
        """Called before each minibatch."""
        self._batch: Any = None
        self._adaptive = self.schedule == "adaptive" and self.desired_kl is not None
        self.collectives = Collectives()
        if multi_gpu_cfg is None:
            return
        self.collectives = multi_gpu_cfg["collectives"]
        # rsl_rl would adapt the learning rate by two collectives per minibatch.
        self.schedule = "fixed"
        self._kl = torch.zeros((), device=self.device)
        self._share_gradients()

    def compile(self, mode: str | None = None) -> None:
        """Compile actor and critic as rsl_rl does, and watch the actor's forward passes."""
        super().compile(mode)
        if self.is_multi_gpu and self._adaptive:
            self.actor.register_forward_hook(self._measure_kl)

    def compute_returns(self, obs: Any) -> None:
        """Compute returns as rsl_rl does, and advantages normalised over all ranks.

        `normalize_advantage_per_mini_batch` is left as it is: each rank normalises its minibatches
        by itself.
        """
        if not self.is_multi_gpu or self.normalize_advantage_per_mini_batch:
            super().compute_returns(obs)
            return
        self.normalize_advantage_per_mini_batch = True  # That is: not now.
        try:
            super().compute_returns(obs)
        finally:
            self.normalize_advantage_per_mini_batch = False
        advantages = self.storage.advantages
        wide = advantages.double()
        count, total, squares = self.collectives.total(
            [wide.numel(), wide.sum().item(), wide.square().sum().item()]
        )
        mean = total / count
        deviation = max(0.0, (squares - total * mean) / (count - 1)) ** 0.5
        self.storage.advantages = (advantages - mean) / (deviation + 1e-8)

    def update(self) -> dict[str, float]:
        """Run rsl_rl's update over the stored rollout; returns its mean losses, of this rank."""
        names = ("mini_batch_generator", "recurrent_mini_batch_generator")
        for name in names:
            setattr(self.storage, name, self._watched(getattr(self.storage, name)))
        try:
            return super().update()
        finally:
            for name in names:
                delattr(self.storage, name)

    def reduce_parameters(self) -> None:
        """Average the gradients, and the KL divergence, over all ranks in one all-reduce.

        A parameter that has no gradient on a rank counts as zero there.
        """
        for parameter, view in self._views:
            if parameter.grad is None:
                view.zero_()
                parameter.grad = view
            elif parameter.grad.data_ptr() != view.data_ptr():
                view.copy_(parameter.grad)
                parameter.grad = view
        self._flat[-1] = self._kl
        self.collectives.all_reduce(self._flat)
        self._flat /= self.collectives.world_size
        if self._adaptive:
            self._adapt_learning_rate(self._flat[-1].item())

    def _share_gradients(self) -> None:
        """Make one buffer and let every parameter's gradient be a view of it."""
        optimizers = [self.optimizer, *([self.rnd.optimizer] if self.rnd else [])]
        owned = [
            [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
            for optimizer in optimizers
        ]
        sizes = [sum(p.numel() for p in parameters) for parameters in owned]
        self._flat = torch.zeros(sum(sizes) + 1, device=self.device)
        self._views = []
        start = 0
        for optimizer, parameters, size in zip(optimizers, owned, sizes, strict=True):
            part = self._flat[start : start + size]
            pieces = part.split([p.numel() for p in parameters])
            views = [piece.view_as(p) for p, piece in zip(parameters, pieces, strict=True)]
            for parameter, view in zip(parameters, views, strict=True):
                parameter.grad = view
            self._views += zip(parameters, views, strict=True)
            # Setting gradients to None, torch's default, would part them from the buffer.
            optimizer.zero_grad = lambda set_to_none=True, part=part: part.zero_()
            start += size

    def _watched(self, generate: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        """The storage's generator of minibatches, which also lets us see each of them."""

        def generate_watched(*args: Any, **kwargs: Any) -> Iterator[Any]:
            for batch in generate(*args, **kwargs):
                self.on_minibatch()
                self._batch = (batch.old_distribution_params, batch.observations.batch_size[0])
                yield batch

        return generate_watched

    def _measure_kl(self, *_: Any) -> None:
        """After the first forward pass of a minibatch: how far the policy is from the rollout's."""
        if self._batch is None:
            return
        (old, samples), self._batch = self._batch, None
        with torch.inference_mode():
            new = tuple(p[:samples] for p in self.actor.output_distribution_params)
            self._kl.copy_(self.actor.get_kl_divergence(old, new).mean())

    def _adapt_learning_rate(self, kl: float) -> None:
        """Steer towards `desired_kl` by rsl_rl's rule and factors."""
        if kl > self.desired_kl * 2.0:
            self.learning_rate = max(1e-5, self.learning_rate / 1.5)
        elif 0.0 < kl < self.desired_kl / 2.0:
            self.learning_rate = min(1e-2, self.learning_rate * 1.5)
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate
