"""rsl_rl's distillation: a student imitates a teacher, which may observe more. Runs in a worker."""

from pathlib import Path
from typing import Any

import torch
from rsl_rl import algorithms
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict

from mjfleet.config import AgentConfig
from mjfleet.errors import UserError
from mjfleet.rl.algorithm import Algorithm
from mjfleet.rl.checkpoint_files import matrices, read_checkpoint, shapes


class Distillation(Algorithm):
    """The student is the actor, so that it is played and exported like any policy.

    The teacher is in the critic's place, also in checkpoints. It does not learn. The student acts
    in the environment, and learns what the teacher would have done there (DAgger, Ross et al. 2011,
    arXiv:1011.0686). Over several ranks, gradients are averaged by one all-reduce.
    """

    def __init__(
        self, agent: AgentConfig, *args: Any, device: str = "cpu", **settings: Any
    ) -> None:
        """Take Algorithm's arguments; the actor is the student, the critic the teacher."""
        *_, student, teacher, storage = args
        teacher.requires_grad_(False)
        super().__init__(agent, *args, device=device, **settings)
        config, steps, actions = agent.algorithm, agent.num_steps_per_env, storage.actions
        self.is_adaptive = False
        self.storage = RolloutStorage(
            *("distillation", storage.num_envs, steps, storage.observations[0]),
            *(actions.shape[2:], device),
        )
        self.storage.distribution_params = torch.zeros_like(actions), torch.zeros_like(actions)
        self.optimizer.register_step_pre_hook(lambda *_: self.on_minibatch())
        self._of_rsl_rl: Any = algorithms.Distillation(
            *(student, teacher, self.storage),
            num_learning_epochs=config.num_learning_epochs,
            gradient_length=config.gradient_length,
            learning_rate=config.learning_rate,
            max_grad_norm=config.max_grad_norm,
            loss_type=config.loss_type,
            use_mixed_precision=config.use_mixed_precision,
            device=device,
        )
        self._of_rsl_rl.optimizer = self.optimizer
        self._of_rsl_rl.is_multi_gpu = self.is_distributed
        self._of_rsl_rl.reduce_parameters = self.reduce_parameters
        self._is_taught = False

    def compile(self, mode: str | None = None) -> None:
        super().compile(mode)
        self._of_rsl_rl.student, self._of_rsl_rl.teacher = self.actor, self.critic

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
        if shapes(saved) != shapes(built):
            raise UserError(
                f"the teacher {path} does not fit what it observes in this task: it is "
                f"{matrices(saved)}, and should be {matrices(built)}."
            )
        self._raw_critic.load_state_dict(saved)
        self._is_taught = True

    def act(self, obs: TensorDict) -> torch.Tensor:
        """Sample the student's actions, and note the teacher's."""
        networks, step = (self.actor, self.critic), self.storage.step
        if step == 0:  # Where the update begins too, also after a resume.
            states = tuple(network.get_hidden_state() for network in networks)
            self._of_rsl_rl.last_hidden_states = states
        actions = self._of_rsl_rl.act(obs)
        new = self.actor.output_mean, self.actor.output_std
        for rollout, now in zip(self.storage.distribution_params or (), new, strict=True):
            rollout[step] = now
        return actions

    def process_env_step(
        self, obs: TensorDict, rewards: torch.Tensor, dones: torch.Tensor, extras: dict[str, Any]
    ) -> None:
        self._of_rsl_rl.process_env_step(obs, rewards, dones, extras)

    def compute_returns(self, obs: TensorDict) -> None:
        """Do nothing: there are no returns to learn from."""

    def update(self) -> dict[str, float]:
        """Learn from the stored rollout; return the mean loss of this rank."""
        return self._of_rsl_rl.update()

    def train_mode(self) -> None:
        self._of_rsl_rl.train_mode()

    def load(self, loaded_dict: dict[str, Any], load_cfg: dict | None, strict: bool) -> bool:
        self._is_taught |= load_cfg is None or bool(load_cfg.get("critic"))
        return super().load(loaded_dict, load_cfg, strict)
