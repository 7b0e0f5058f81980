"""skrl's PPO in PyTorch, from which that in JAX is derived. Runs in a worker."""

import os
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

from torch import nn

from mjfleet.rl.libraries.library_ppo import LibraryPPO

with ExitStack() as imported:
    # skrl would connect the ranks by NCCL, even on CPUs.
    if world_size := os.environ.pop("WORLD_SIZE", None):
        imported.callback(os.environ.__setitem__, "WORLD_SIZE", world_size)
    from skrl.agents.torch.ppo import PPO
    from skrl.memories.torch import RandomMemory
    from skrl.resources.schedulers.torch import KLAdaptiveLR


class _Network(nn.Module):
    """rsl_rl's actor or critic for normalised observations, as skrl's PPO calls it."""

    device, enable_training_mode = None, nn.Module.train

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network
        self.get_entropy = lambda role: network.output_entropy
        self.distribution = lambda role: SimpleNamespace(stddev=network.output_std)

    def act(self, inputs: dict[str, Any], role: str) -> tuple[Any, dict[str, Any]]:
        """Return the critic's values, or the logarithms of probabilities of `taken_actions`."""
        if role == "value":
            return self.network.mlp(inputs["states"]), {}
        self.network.distribution.update(self.network.mlp(inputs["observations"]))
        log_probs = self.network.get_output_log_prob(inputs["taken_actions"])
        return None, {"log_prob": log_probs[:, None]}


class SkrlPPO(LibraryPPO):
    """skrl's PPO in PyTorch, which trains our networks directly."""

    _framework: Any = PPO, RandomMemory, _Network, lambda tensor: tensor
    """Classes of a framework, and what makes an array of it from a tensor."""

    def _make_agent(self, device: str | None = None) -> Any:
        ppo, memory, network, self._array = self._framework
        storage, own, device = self.storage, self.config, device or self.device
        room = {"memory_size": storage.num_transitions_per_env, "num_envs": storage.num_envs}
        agent = ppo(
            models={"policy": network(self.actor), "value": network(self.critic)},
            memory=memory(**room, device=device), device=device,
            observation_space=self.actor.obs_dim, state_space=self.critic.obs_dim,
            action_space=storage.actions.shape[-1],
            cfg={
                "learning_epochs": own.num_learning_epochs, "mini_batches": own.num_mini_batches,
                "ratio_clip": own.clip_param, "discount_factor": own.gamma, "gae_lambda": own.lam,
                "value_clip": own.clip_param if own.use_clipped_value_loss else 0.0,
                "grad_norm_clip": 0.0,  # The optimiser clips, because the ranks average first.
                "entropy_loss_scale": own.entropy_coef, "value_loss_scale": own.value_loss_coef,
                "experiment": {"write_interval": 0, "checkpoint_interval": 0},  # Write nothing.
            },
        )  # fmt: skip
        agent.init()
        agent.optimizer, agent.scheduler = self.optimizer, None
        if self.schedule == "adaptive":
            schedule: Any = KLAdaptiveLR(self.optimizer, kl_threshold=own.desired_kl)
            agent.scheduler, adapt = schedule, schedule.step
            schedule.step = lambda kl: adapt(self.collectives.mean(kl))
        return agent

    def _update(self, seen: dict[str, Any], after: dict[str, Any]) -> dict[str, float]:
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
        tracked = {name: values.pop() for name, values in agent.tracking_data.items()}
        value = tracked["Loss / Value loss"] / (self.config.value_loss_coef or 1.0)
        surrogate, entropy = tracked["Loss / Policy loss"], self.actor.output_entropy.mean().item()
        return {"value": value, "surrogate": surrogate, "entropy": entropy}
