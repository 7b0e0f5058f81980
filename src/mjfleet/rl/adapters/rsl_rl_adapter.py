"""Other algorithms of rsl_rl's, held by an Algorithm with the same networks. Runs in a worker."""

from pathlib import Path
from typing import Any

import torch
from rsl_rl import algorithms
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict

from mjfleet.config import AgentConfig
from mjfleet.errors import UserError
from mjfleet.rl.algorithm import Algorithm
from mjfleet.rl.checkpoint_files import misfit_of, read_checkpoint


class _Holder(Algorithm):
    """Learns by `inner`."""

    inner: Any

    def _hold(self, inner: Any) -> None:
        self.inner, self.storage = inner, inner.storage
        self.learn_by(inner.optimizer)
        inner.is_multi_gpu = self.is_distributed
        inner.gpu_global_rank, inner.gpu_world_size = self.gpu_global_rank, self.gpu_world_size
        inner.reduce_parameters = self.reduce_parameters

    def act(self, obs: TensorDict) -> torch.Tensor:
        return self.inner.act(obs)

    def process_env_step(
        self, obs: TensorDict, rewards: torch.Tensor, dones: torch.Tensor, extras: dict[str, Any]
    ) -> None:
        self.inner.process_env_step(obs, rewards, dones, extras)

    def update(self) -> dict[str, float]:
        """Learn from the stored rollout; return the mean losses of this rank."""
        losses = self.inner.update()
        self.learning_rate = self.inner.learning_rate
        return losses

    def train_mode(self) -> None:
        self.inner.train_mode()

    def eval_mode(self) -> None:
        self.inner.eval_mode()

    def set_learning_rate(self, rate: float) -> None:
        super().set_learning_rate(rate)
        self.inner.learning_rate = rate


class OwnPPO(_Holder):
    """A subclass of rsl_rl's PPO, which may save and load more than that."""

    def __init__(
        self,
        kind: type[algorithms.PPO],
        agent: AgentConfig,
        *parts: Any,
        device: str = "cpu",
        **settings: Any,
    ) -> None:
        """Take the class, then Algorithm's arguments and those that the class adds."""
        collectives, num_threads, *networks_and_storage = parts
        inner = kind(*networks_and_storage, device=device, **settings)
        super().__init__(agent, collectives, num_threads, *networks_and_storage, device=device)
        self.rnd, self.learning_rate = inner.rnd, inner.learning_rate
        self._hold(inner)

    def compile(self, mode: str | None = None) -> None:
        self.inner.compile(mode)
        self.actor, self.critic = self.inner.actor, self.inner.critic

    def compute_returns(self, obs: TensorDict) -> None:
        self.inner.compute_returns(obs)
        self.share_advantages()

    def broadcast_parameters(self) -> None:
        self.inner.broadcast_parameters()

    def save(self) -> dict[str, Any]:
        return self.inner.save()

    def load(self, loaded_dict: dict[str, Any], load_cfg: dict | None, strict: bool) -> bool:
        loads_iteration = self.inner.load(loaded_dict, load_cfg, strict)
        self.learning_rate = self.inner.learning_rate
        return loads_iteration


class Distillation(_Holder):
    """A student imitates a teacher, which may observe more.

    The student is the actor; the teacher is in the critic's place, also in checkpoints. The student
    acts, and learns what the teacher would have done there (DAgger, Ross et al. 2011,
    arXiv:1011.0686).
    """

    def __init__(self, agent: AgentConfig, *parts: Any, device: str = "cpu", **settings: Any):
        """Take Algorithm's arguments; the actor is the student, the critic the teacher."""
        *_, student, teacher, storage = parts
        teacher.requires_grad_(False)
        super().__init__(agent, *parts, device=device, **settings)
        config, steps, actions = agent.algorithm, agent.num_steps_per_env, storage.actions
        first = storage.observations[0]
        rollout = RolloutStorage(
            "distillation", storage.num_envs, steps, first, actions.shape[2:], device
        )
        rollout.distribution_params = torch.zeros_like(actions), torch.zeros_like(actions)
        inner = algorithms.Distillation(
            student,
            teacher,
            rollout,
            num_learning_epochs=config.num_learning_epochs,
            gradient_length=config.gradient_length,
            learning_rate=config.learning_rate,
            max_grad_norm=config.max_grad_norm,
            loss_type=config.loss_type,
            use_mixed_precision=config.use_mixed_precision,
            device=device,
        )
        inner.optimizer, self.is_adaptive, self._is_taught = self.optimizer, False, False
        self._hold(inner)

    def compile(self, mode: str | None = None) -> None:
        super().compile(mode)
        self.inner.student, self.inner.teacher = self.actor, self.critic

    def take_teacher(self, agent: AgentConfig) -> None:
        """Load the teacher, unless a checkpoint of this run had it.

        Raises:
            UserError: the file cannot be read, or holds another network.
        """
        if self._is_taught:
            return
        assert agent.teacher
        path, built = Path(agent.teacher.checkpoint or ""), self._raw_critic.state_dict()
        saved = read_checkpoint(path)["actor_state_dict"]
        if misfit := misfit_of(saved, built):
            raise UserError(
                f"the teacher {path} does not fit what it observes in this task: {misfit}."
            )
        self._raw_critic.load_state_dict(saved)
        self._is_taught = True

    def act(self, obs: TensorDict) -> torch.Tensor:
        """Sample the student's actions, and note the teacher's."""
        networks, step = (self.actor, self.critic), self.storage.step
        if step == 0:  # Where the update begins too, also after a resume.
            states = tuple(network.get_hidden_state() for network in networks)
            self.inner.last_hidden_states = states
        actions = super().act(obs)
        new = self.actor.output_mean, self.actor.output_std
        for rollout, now in zip(self.storage.distribution_params or (), new, strict=True):
            rollout[step] = now
        return actions

    def compute_returns(self, obs: TensorDict) -> None:
        """Do nothing: there are no returns to learn from."""

    def load(self, loaded_dict: dict[str, Any], load_cfg: dict | None, strict: bool) -> bool:
        self._is_taught |= load_cfg is None or bool(load_cfg.get("critic"))
        loads_iteration = super().load(loaded_dict, load_cfg, strict)
        self.inner.learning_rate = self.learning_rate
        return loads_iteration
