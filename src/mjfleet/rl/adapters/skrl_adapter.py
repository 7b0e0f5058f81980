"""skrl's PPO in the place of rsl_rl's, in PyTorch; in JAX it is in skrl_jax. Runs in a worker.

Networks, rollouts and checkpoints stay as they are: whatever collects, saves, evaluates, plays or
exports knows nothing of skrl, and a run can go on with another library. What skrl does is to learn
from a rollout: returns and advantages, minibatches, losses, the learning rate, Adam.

skrl believes that it is alone. Ranks share their gradients and KL divergences where these reach
skrl's optimisers and schedules, by the run's own collectives, also those of JAX: the ranks do not
have to find each other a second time, and a lost one is noticed as ever.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box
from tensordict import TensorDict
from torch import nn

from mjfleet.rl.algorithm import Algorithm


@contextmanager
def _unconnected() -> Iterator[None]:
    """Import skrl without its connecting the ranks, which it would do by NCCL, also on a CPU."""
    world_size = os.environ.pop("WORLD_SIZE", None)
    try:
        yield
    finally:
        if world_size is not None:
            os.environ["WORLD_SIZE"] = world_size


with _unconnected():
    from skrl.agents.torch.ppo import PPO
    from skrl.memories.torch import RandomMemory
    from skrl.models.torch import DeterministicMixin, GaussianMixin, Model
    from skrl.resources.schedulers.torch import KLAdaptiveLR


class SkrlPPO(Algorithm, ABC):
    """What both frameworks share; their arrays are made from the tensors of rsl_rl's storage."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Take Algorithm's arguments."""
        super().__init__(*args, **kwargs)
        self._after: Any = None
        self.agent: Any = self._make_agent()
        self.agent.init()
        self._watch_minibatches(self.agent.memory)

    @abstractmethod
    def _make_agent(self) -> Any:
        """skrl's agent, of our networks."""

    @abstractmethod
    def _array(self, tensor: torch.Tensor) -> Any:
        """A tensor as the framework's own array."""

    @abstractmethod
    def _learn(self) -> None:
        """Have the agent update networks, optimiser and learning rate by what is in its memory."""

    def compute_returns(self, obs: TensorDict) -> None:
        """Keep what the worlds look like after the rollout: skrl computes returns in its update."""
        self._after = obs

    def update(self) -> dict[str, float]:
        """Learn from the stored rollout; returns the mean losses, of this rank."""
        storage, memory = self.storage, self.agent.memory
        # Until the end, since JAX may read from a tensor's memory later than it says.
        rollout = {
            "observations": self.actor.get_latent(storage.observations),
            "states": self.critic.get_latent(storage.observations),
            "actions": storage.actions,
            "rewards": storage.rewards,  # rsl_rl has added the values of worlds that timed out.
            "terminated": storage.dones.bool(),
            "log_prob": storage.actions_log_prob,
            "values": storage.values,
        }
        for name, tensor in rollout.items():
            memory.set_tensor_by_name(name, self._array(tensor))
        memory.filled = True
        self.agent._current_next_observations = self._array(self.actor.get_latent(self._after))
        self.agent._current_next_states = self._array(self.critic.get_latent(self._after))
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

    def mean_kl(self, kl: float) -> float:
        """The mean over all ranks, which thus adapt their learning rates alike."""
        return self.collectives.total([kl])[0] / self.collectives.world_size

    def _spaces(self) -> dict[str, Box]:
        """What skrl is to know of the networks' inputs and outputs."""
        sizes = {
            "observation_space": self.actor.obs_dim,
            "state_space": self.critic.obs_dim,
            "action_space": self.storage.actions.shape[-1],
        }
        return {name: Box(-np.inf, np.inf, (size,)) for name, size in sizes.items()}

    def _memory_sizes(self) -> dict[str, Any]:
        storage = self.storage
        return {"memory_size": storage.num_transitions_per_env, "num_envs": storage.num_envs}

    def _settings(self) -> dict[str, Any]:
        """Our numbers under skrl's names; nothing is written by skrl."""
        config = self.config
        return {
            "rollouts": self.storage.num_transitions_per_env,
            "learning_epochs": config.num_learning_epochs,
            "mini_batches": config.num_mini_batches,
            "discount_factor": config.gamma,
            "gae_lambda": config.lam,
            "learning_rate": self.learning_rate,
            "ratio_clip": config.clip_param,
            "value_clip": config.clip_param if config.use_clipped_value_loss else 0.0,
            "entropy_loss_scale": config.entropy_coef,
            "value_loss_scale": config.value_loss_coef,
            "experiment": {"write_interval": 0, "checkpoint_interval": 0},
        }

    def _watch_minibatches(self, memory: Any) -> None:
        sample = memory.sample

        def watched(*args: Any, **kwargs: Any) -> Iterator[Any]:
            for batch in sample(*args, **kwargs):
                self.on_minibatch()
                yield batch

        memory.sample = watched


class TorchPPO(SkrlPPO):
    """In PyTorch: skrl trains the very networks and steps the very optimiser."""

    def _make_agent(self) -> Any:
        place = {**self._spaces(), "device": self.device}
        models = {"policy": _Policy(self.actor, **place), "value": _Value(self.critic, **place)}
        memory = RandomMemory(**self._memory_sizes(), device=self.device)
        # `_finish_gradients` clips, after the ranks have shared them.
        settings = self._settings() | {"grad_norm_clip": 0.0}
        agent = PPO(models=models, memory=memory, cfg=settings, **place)
        agent.optimizer = self.optimizer
        self.optimizer.register_step_pre_hook(self._finish_gradients)
        if self.is_adaptive:
            agent.scheduler = _Schedule(self.optimizer, self.config.desired_kl, self.mean_kl)
        return agent

    def _array(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def _learn(self) -> None:
        self.agent.update(timestep=0, timesteps=0)
        self.learning_rate = self.optimizer.param_groups[0]["lr"]

    def _finish_gradients(self, *_: Any) -> None:
        """Average gradients over the ranks, then clip those of actor and critic."""
        if self.is_distributed:
            self.reduce_parameters()
        for network in (self.actor, self.critic):
            nn.utils.clip_grad_norm_(network.parameters(), self.config.max_grad_norm)


class _Policy(GaussianMixin, Model):
    """rsl_rl's actor; its input is normalised already."""

    def __init__(self, network: Any, **place: Any) -> None:
        Model.__init__(self, **place)
        GaussianMixin.__init__(self, clip_log_std=False)
        self.network = network

    # Who calls it gives the role by its place.
    def compute(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, inputs: dict[str, Any], role: str
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        self.network.distribution.update(self.network.mlp(inputs["observations"]))
        return self.network.output_mean, {"log_std": self.network.output_std.log()}


class _Value(DeterministicMixin, Model):
    """rsl_rl's critic; its input is normalised already."""

    def __init__(self, network: Any, **place: Any) -> None:
        Model.__init__(self, **place)
        DeterministicMixin.__init__(self)
        self.network = network

    def compute(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, inputs: dict[str, Any], role: str
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        return self.network.mlp(inputs["states"]), {}


class _Schedule(KLAdaptiveLR):
    """skrl's, by the KL divergence of all ranks."""

    def __init__(self, optimizer: Any, desired_kl: float, mean: Callable[[float], float]) -> None:
        super().__init__(optimizer, kl_threshold=desired_kl)
        self._mean = mean

    def step(self, kl: Any = None, **kwargs: Any) -> None:
        """Adapt the learning rate; torch calls it once without a divergence."""
        super().step(None if kl is None else self._mean(kl), **kwargs)
