"""skrl's PPO in PyTorch, from which that in JAX is derived. Runs in a worker."""

import os
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box

from mjfleet.rl.adapters.library_ppo import LibraryPPO, Observations

with ExitStack() as imported:
    # skrl would connect the ranks by NCCL, even on CPUs.
    if world_size := os.environ.pop("WORLD_SIZE", None):
        imported.callback(os.environ.__setitem__, "WORLD_SIZE", world_size)
    from skrl.agents.torch.ppo import PPO
    from skrl.memories.torch import RandomMemory
    from skrl.models.torch import DeterministicMixin, GaussianMixin, Model
    from skrl.resources.schedulers.torch import KLAdaptiveLR


class SkrlPPO(LibraryPPO):
    """skrl's PPO in PyTorch, which trains our networks directly."""

    def _make_agent(self) -> Any:
        agent = self._build(PPO, RandomMemory, _Policy, _Value, self.device)
        agent.optimizer = self.optimizer
        if self.is_adaptive:
            schedule: Any = KLAdaptiveLR(self.optimizer, kl_threshold=self.config.desired_kl)
            step, agent.scheduler = schedule.step, schedule
            schedule.step = lambda kl: step(self._mean_kl(kl))
        return agent

    def _array(self, tensor: torch.Tensor) -> Any:
        """Return a tensor as an array of skrl's framework."""
        return tensor

    def _train(self) -> None:
        """Have the agent update networks, optimiser and learning rate from its memory."""
        self.agent.update(timestep=0, timesteps=0)
        self.learning_rate = self.optimizer.param_groups[0]["lr"]

    def _learn(self, observations: Observations, after: Observations) -> dict[str, float]:
        storage, memory = self.storage, self.agent.memory
        # Held until the update ends: JAX may read a tensor's memory later than it says.
        rollout = {
            "observations": observations["actor"],
            "states": observations["critic"],
            "actions": storage.actions,
            "rewards": storage.rewards,
            "terminated": storage.dones.bool(),
            "log_prob": storage.actions_log_prob,
            "values": storage.values,
        }
        for name, tensor in rollout.items():
            memory.set_tensor_by_name(name, self._array(tensor))
        memory.filled = True
        self.agent._current_next_observations = self._array(after["actor"])
        self.agent._current_next_states = self._array(after["critic"])
        self._train()
        tracked = {name: values[-1] for name, values in self.agent.tracking_data.items()}
        self.agent.tracking_data.clear()
        return {
            "value": tracked["Loss / Value loss"] / (self.config.value_loss_coef or 1.0),
            "surrogate": tracked["Loss / Policy loss"],
            "entropy": self.actor.output_entropy.mean().item(),
        }

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
        agent = ppo(
            models={"policy": policy(self.actor, **place), "value": value(self.critic, **place)},
            memory=memory(memory_size=steps, num_envs=self.storage.num_envs, device=device),
            cfg=common | settings,
            **place,
        )
        agent.init()
        return agent


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
