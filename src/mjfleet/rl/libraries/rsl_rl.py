"""Learners by rsl_rl's algorithms: a subclass of its PPO, and distillation. Runs in a worker."""

from collections.abc import Collection, Mapping
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from rsl_rl import algorithms
from rsl_rl.utils import resolve_optimizer
from tensordict import TensorDict

from mjfleet.errors import UserError
from mjfleet.rl.checkpoints.files import misfit_of, read_checkpoint
from mjfleet.rl.learner import Setup
from mjfleet.rl.rollout_learner import RolloutLearner

KEPT = "learning_rate", "is_multi_gpu", "gpu_global_rank", "gpu_world_size"
"""Numbers of rsl_rl's PPO that this module sets."""


class _Holder(RolloutLearner):
    """Learns by `inner`."""

    def take(self, inner: Any, setup: Setup) -> None:
        """Learn by `inner`, which has our networks."""
        self.inner, self.storage, self.optimizer = inner, inner.storage, inner.optimizer
        self.learning_rate = inner.learning_rate
        inner.is_multi_gpu, inner.reduce_parameters = self.is_distributed, self.reduce_parameters
        inner.gpu_global_rank = self.collectives.rank
        inner.gpu_world_size = self.collectives.world_size
        inner.compile(setup.agent.torch_compile_mode)
        self.compiles = setup.agent.torch_compile_mode is not None
        self.scratch(*vars(self).keys() - {"actor", "critic"})

    def train_mode(self, is_training: bool = True) -> None:
        self.inner.train_mode() if is_training else self.inner.eval_mode()

    def set_learning_rate(self, rate: float, name: str = "optimizer") -> None:
        super().set_learning_rate(rate, name)
        self.inner.learning_rate = self.learning_rate

    def restore(self, state: Mapping[str, Any], names: Collection[str]) -> None:
        super().restore(state, names)
        self.inner.learning_rate = self.learning_rate


class OwnPPO(_Holder):
    """A subclass of rsl_rl's PPO, which may save and load more than that."""

    def __init__(self, kind: type[algorithms.PPO], setup: Setup, **settings: Any) -> None:
        """Take the class; `settings` are what it takes besides rsl_rl's."""
        super().__init__(setup)
        parts: Any = self.actor, self.critic, self.storage
        inner = kind(*parts, device=setup.device, **self.settings | settings)
        if not self.config.learns_values:
            inner.critic.requires_grad_(False)
        self.owner, self.rnd = inner, inner.rnd
        self.declare_novelty()
        self.take(inner, setup)
        for name, value in vars(inner).items():
            if name not in KEPT and isinstance(value, bool | int | float | torch.Tensor):
                get, put = partial(getattr, inner, name), partial(self.put, inner, name)
                self.add_state(name, per="rank", get=get, set=put)

    def compute_returns(self, obs: TensorDict) -> None:
        super().compute_returns(obs)
        self.share_advantages()

    def broadcast_parameters(self) -> None:
        self.inner.broadcast_parameters()

    def save(self) -> dict[str, Any]:
        return self.inner.save()

    def restore(self, state: Mapping[str, Any], names: Collection[str]) -> None:
        super().restore(state, {"rnd"} & {*names})
        parts = {name: name in names for name in ("actor", "critic", "optimizer")}
        self.inner.load(state, parts | {"rnd": "rnd_optimizer" in names}, strict=True)
        self.learning_rate = self.inner.learning_rate


class Distillation(_Holder):
    """A student imitates a teacher, which may observe more.

    The student is the actor; the teacher is in the critic's place, also in checkpoints. The student
    acts, and learns what the teacher would have done there (DAgger, Ross et al. 2011,
    arXiv:1011.0686).
    """

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup, "distillation")
        self.critic.requires_grad_(False)
        # No loss depends on it. AdamW would make a deviation smaller that has a gradient of 0.
        self.actor.distribution.requires_grad_(False)
        config, rollout = self.config, self.storage
        rollout.distribution_params = tuple(torch.zeros_like(rollout.actions) for _ in range(2))
        parts: Any = self.actor, self.critic, rollout
        inner = algorithms.Distillation(
            *parts,
            num_learning_epochs=config.num_learning_epochs,
            gradient_length=config.gradient_length,
            learning_rate=config.learning_rate,
            max_grad_norm=config.max_grad_norm,
            loss_type=config.loss_type,
            use_mixed_precision=config.use_mixed_precision,
            device=self.device,
        )
        # As in the checkpoints of PPO, the optimiser has the parameters of both.
        both = chain(self.actor.parameters(), self.critic.parameters())
        make: Any = resolve_optimizer(config.optimizer)
        inner.optimizer = make(both, lr=config.learning_rate)
        self._teacher, self._is_taught = setup.agent.teacher, False
        self.take(inner, setup)

    def begin(self) -> None:
        """Load the teacher on rank 0, unless a checkpoint of this run had it.

        Raises:
            UserError: the file cannot be read, or holds another network.
        """
        if self._is_taught or self.collectives.rank != 0:
            return
        assert self._teacher
        path, built = Path(self._teacher.checkpoint or ""), self.critic.state_dict()
        saved = read_checkpoint(path)["actor_state_dict"]
        if misfit := misfit_of(saved, built):
            raise UserError(
                f"the teacher {path} does not fit what it observes in this task: {misfit}."
            )
        self.critic.load_state_dict(saved)
        self._is_taught = True

    def act(self, obs: TensorDict) -> torch.Tensor:
        """Sample the student's actions, and note the teacher's."""
        step = self.storage.step
        if step == 0:  # Where the update begins too, also after a resume.
            self.inner.last_hidden_states = self.actor.get_hidden_state(), None
        actions = super().act(obs)
        new = self.actor.output_mean, self.actor.output_std
        for rollout, now in zip(self.storage.distribution_params or (), new, strict=True):
            rollout[step] = now
        return actions

    def _learn(self) -> dict[str, float]:
        memory = self.critic.get_hidden_state()
        losses = super()._learn()
        self.critic.reset(hidden_state=memory)  # rsl_rl's update sets it back to an earlier one.
        return losses

    def restore(self, state: Mapping[str, Any], names: Collection[str]) -> None:
        self._is_taught |= "critic" in names
        super().restore(state, names)
