"""skrl's PPO in PyTorch, from which that in JAX is derived. Runs in a worker."""

import os
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box

from mjfleet.rl.libraries.library_ppo import Inputs, LibraryPPO

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

    _array: Any = staticmethod(lambda tensor: tensor)
    """Returns a tensor as an array of skrl's framework."""

    def _make_agent(self) -> Any:
        agent = self._build(PPO, RandomMemory, _Policy, _Value, self.device)
        agent.optimizer = self.optimizer
        if self.schedule == "adaptive":
            agent.scheduler = _Schedule(self.optimizer, kl_threshold=self.config.desired_kl)
            agent.scheduler.mean_kl = self._mean_kl
        return agent

    def _update(self, seen: Inputs, after: Inputs) -> dict[str, float]:
        storage, agent = self.storage, self.agent
        # Held until the update ends: JAX may read a tensor's memory later than it says.
        rollout = {
            "observations": seen["actor"], "states": seen["critic"], "actions": storage.actions,
            "rewards": storage.rewards, "terminated": storage.dones.bool(),
            "log_prob": storage.actions_log_prob, "values": storage.values,
        }  # fmt: skip
        for name, tensor in rollout.items():
            agent.memory.set_tensor_by_name(name, self._array(tensor))
        agent.memory.filled = True
        agent._current_next_observations = self._array(after["actor"])
        agent._current_next_states = self._array(after["critic"])
        agent.update(timestep=0, timesteps=0)
        tracked = {name: values[-1] for name, values in agent.tracking_data.items()}
        agent.tracking_data.clear()
        return {
            "value": tracked["Loss / Value loss"] / (self.config.value_loss_coef or 1.0),
            "surrogate": tracked["Loss / Policy loss"],
            "entropy": self.actor.output_entropy.mean().item(),
        }

    def _build(self, ppo: Any, memory: Any, policy: Any, value: Any, device: str | None) -> Any:
        """Build an agent from a framework's classes; no `device`: the framework has only one."""
        actor, critic, storage, config = self.actor, self.critic, self.storage, self.config
        sizes = actor.obs_dim, critic.obs_dim, storage.actions.shape[-1]
        spaces = (Box(-np.inf, np.inf, (size,)) for size in sizes)
        names = "observation_space", "state_space", "action_space"
        place: Any = dict(zip(names, spaces, strict=True)) | {"device": device}
        steps = storage.num_transitions_per_env
        settings = {
            "rollouts": steps, "learning_epochs": config.num_learning_epochs,
            "mini_batches": config.num_mini_batches, "ratio_clip": config.clip_param,
            "discount_factor": config.gamma, "gae_lambda": config.lam,
            "value_clip": config.clip_param if config.use_clipped_value_loss else 0.0,
            "grad_norm_clip": 0.0,  # `_finish_gradients` clips, because the ranks average first.
            "entropy_loss_scale": config.entropy_coef, "value_loss_scale": config.value_loss_coef,
            "experiment": {"write_interval": 0, "checkpoint_interval": 0},  # skrl writes nothing.
        }  # fmt: skip
        agent = ppo(
            models={"policy": policy(actor, **place), "value": value(critic, **place)},
            memory=memory(memory_size=steps, num_envs=storage.num_envs, device=device),
            cfg=settings,
            **place,
        )
        agent.init()
        return agent


class _Schedule(KLAdaptiveLR):
    """skrl's adaptive learning rate, which follows the divergence of all ranks."""

    mean_kl: Any

    def step(self, kl: Any = None, *, epoch: int | None = None) -> None:
        """Adapt the rate; torch's constructor calls this without a divergence."""
        super().step(None if kl is None else self.mean_kl(kl), epoch=epoch)


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
