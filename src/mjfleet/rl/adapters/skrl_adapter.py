"""skrl's PPO in PyTorch, and what it shares with the one in JAX. Runs in a worker.

Networks, rollouts and checkpoints stay rsl_rl's, so collecting, saving, evaluating and exporting
are the same, and a run can continue with another library. skrl computes returns and advantages,
minibatches, losses and gradients, and adapts the learning rate; the optimiser is ours.

skrl's own connection between ranks is switched off. Gradients and KL divergences are averaged by
Collectives, also for JAX, before they reach the optimiser and skrl's schedules.
"""

import os
from abc import ABC, abstractmethod
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box
from tensordict import TensorDict
from torch import nn

from mjfleet.rl.algorithm import Algorithm

with ExitStack() as imported:
    # skrl would connect the ranks by NCCL, even on CPUs.
    if world_size := os.environ.pop("WORLD_SIZE", None):
        imported.callback(os.environ.__setitem__, "WORLD_SIZE", world_size)
    from skrl.agents.torch.ppo import PPO
    from skrl.memories.torch import RandomMemory
    from skrl.models.torch import DeterministicMixin, GaussianMixin, Model
    from skrl.resources.schedulers.torch import KLAdaptiveLR


class SkrlPPO(Algorithm, ABC):
    """The part for both frameworks, whose arrays are made from the tensors of rsl_rl's storage."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._last_observations: Any = None
        self.optimizer.register_step_pre_hook(self._finish_gradients)
        self.agent: Any = self._make_agent()
        self.agent.init()
        self.watch(self.agent.memory, "sample")

    @abstractmethod
    def _make_agent(self) -> Any:
        """Build skrl's agent from our networks and optimiser."""

    @abstractmethod
    def _array(self, tensor: torch.Tensor) -> Any:
        """Return a tensor as an array of the framework."""

    @abstractmethod
    def _learn(self) -> None:
        """Have the agent update networks, optimiser and learning rate from its memory."""

    def compute_returns(self, obs: TensorDict) -> None:
        """Keep the observations after the rollout: skrl computes returns in its update."""
        self._last_observations = obs

    def update(self) -> dict[str, float]:
        """Learn from the stored rollout; return the mean losses of this rank."""
        storage, memory = self.storage, self.agent.memory
        # Held until the update ends: JAX may read a tensor's memory later than it says.
        rollout = {
            "observations": self.actor.get_latent(storage.observations),
            "states": self.critic.get_latent(storage.observations),
            "actions": storage.actions,
            "rewards": storage.rewards,  # rsl_rl has added the values at time-outs.
            "terminated": storage.dones.bool(),
            "log_prob": storage.actions_log_prob,
            "values": storage.values,
        }
        for name, tensor in rollout.items():
            memory.set_tensor_by_name(name, self._array(tensor))
        memory.filled = True
        after = self._last_observations
        self.agent._current_next_observations = self._array(self.actor.get_latent(after))
        self.agent._current_next_states = self._array(self.critic.get_latent(after))
        self._learn()
        for network in (self.actor, self.critic):
            network.update_normalization(storage.observations.flatten(0, 1))
        storage.clear()
        tracked = {name: values[-1] for name, values in self.agent.tracking_data.items()}
        self.agent.tracking_data.clear()
        return {
            "value": tracked["Loss / Value loss"] / (self.config.value_loss_coef or 1.0),
            "surrogate": tracked["Loss / Policy loss"],
            "entropy": self.actor.output_entropy.mean().item(),
        }

    def _finish_gradients(self, *_: Any) -> None:
        """Average gradients over the ranks, then clip those of actor and critic, as rsl_rl does."""
        if self.is_distributed:
            self.reduce_parameters()
        for network in (self.actor, self.critic):
            nn.utils.clip_grad_norm_(network.parameters(), self.config.max_grad_norm)

    def _mean_kl(self, kl: float) -> float:
        """Return the mean over all ranks, so that all adapt their learning rates alike."""
        return self.collectives.total([kl])[0] / self.collectives.world_size

    def _build(
        self, ppo: Any, memory: Any, policy: Any, value: Any, device: str, **settings: Any
    ) -> Any:
        """Build an agent from a framework's classes; `settings` are skrl's, besides the common."""
        sizes = {
            "observation_space": self.actor.obs_dim,
            "state_space": self.critic.obs_dim,
            "action_space": self.storage.actions.shape[-1],
        }
        place: dict[str, Any] = {name: Box(-np.inf, np.inf, (n,)) for name, n in sizes.items()}
        place["device"] = device
        steps, config = self.storage.num_transitions_per_env, self.config
        common = {
            "rollouts": steps,
            "learning_epochs": config.num_learning_epochs,
            "mini_batches": config.num_mini_batches,
            "discount_factor": config.gamma,
            "gae_lambda": config.lam,
            "learning_rate": self.learning_rate,
            "ratio_clip": config.clip_param,
            "value_clip": config.clip_param if config.use_clipped_value_loss else 0.0,
            "grad_norm_clip": 0.0,  # `_finish_gradients` clips, because the ranks average first.
            "entropy_loss_scale": config.entropy_coef,
            "value_loss_scale": config.value_loss_coef,
            "experiment": {"write_interval": 0, "checkpoint_interval": 0},  # skrl writes nothing.
        }
        return ppo(
            models={"policy": policy(self.actor, **place), "value": value(self.critic, **place)},
            memory=memory(memory_size=steps, num_envs=self.storage.num_envs, device=device),
            cfg=common | settings,
            **place,
        )


class TorchPPO(SkrlPPO):
    """skrl's PPO in PyTorch, which trains our networks directly."""

    def _make_agent(self) -> Any:
        agent = self._build(PPO, RandomMemory, _Policy, _Value, self.device)
        agent.optimizer = self.optimizer
        if self.is_adaptive:
            schedule: Any = KLAdaptiveLR(self.optimizer, kl_threshold=self.config.desired_kl)
            step, agent.scheduler = schedule.step, schedule
            schedule.step = lambda kl: step(self._mean_kl(kl))
        return agent

    def _array(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def _learn(self) -> None:
        self.agent.update(timestep=0, timesteps=0)
        self.learning_rate = self.optimizer.param_groups[0]["lr"]


class _Policy(GaussianMixin, Model):
    """rsl_rl's actor for normalised observations."""

    def __init__(self, network: Any, **place: Any) -> None:
        Model.__init__(self, **place)
        GaussianMixin.__init__(self, clip_log_std=False)
        self.network = network

    # skrl passes the role by position, under another name.
    def compute(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, inputs: dict[str, Any], role: str
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        self.network.distribution.update(self.network.mlp(inputs["observations"]))
        return self.network.output_mean, {"log_std": self.network.output_std.log()}


class _Value(DeterministicMixin, Model):
    """rsl_rl's critic for normalised observations."""

    def __init__(self, network: Any, **place: Any) -> None:
        Model.__init__(self, **place)
        DeterministicMixin.__init__(self)
        self.network = network

    def compute(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, inputs: dict[str, Any], role: str
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        return self.network.mlp(inputs["states"]), {}
