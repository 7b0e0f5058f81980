"""rl_games' PPO: what it calls an epoch is a whole update from our rollout. Runs in a worker."""

import contextlib
import io
import tempfile
from typing import Any, cast

import numpy as np
import torch
from gymnasium.spaces import Box
from rl_games.algos_torch.a2c_continuous import A2CAgent
from rl_games.algos_torch.models import ModelA2CContinuousLogStd
from rl_games.algos_torch.network_builder import NetworkBuilder
from rl_games.common.a2c_common import swap_and_flatten01
from rl_games.common.algo_observer import AlgoObserver
from rl_games.common.datasets import PPODataset
from rl_games.common.ivecenv import IVecEnv

from mjfleet.rl.libraries.library_ppo import Inputs, LibraryPPO


class RlGamesPPO(LibraryPPO):
    """rl_games' PPO for continuous actions, which trains our networks directly."""

    def _update(self, seen: Inputs, after: Inputs) -> dict[str, float]:
        agent, storage = self.agent, cast(Any, self.storage)
        values, ended = storage.values, storage.dones.squeeze(2).float()
        with torch.no_grad():
            last_values = self.critic.mlp(after["critic"])
            # rl_games notes with a step whether an episode ended before it, and ignores the first.
            flags = ended[-1], last_values, ended.roll(1, 0)
            returns = values + agent.discount_values(*flags, values, storage.rewards)
        rollout = {
            "returns": returns, "dones": ended, "values": values, "actions": storage.actions,
            "neglogpacs": -storage.actions_log_prob.squeeze(2),
        }  # fmt: skip
        # rl_games overwrites these two by those of the new policy.
        rollout["mus"], rollout["sigmas"] = map(torch.clone, storage.distribution_params)
        agent.samples = {name: swap_and_flatten01(part) for name, part in rollout.items()}
        agent.samples["obses"] = {name: swap_and_flatten01(part) for name, part in seen.items()}
        agent.last_lr = self.optimizer.param_groups[0]["lr"]
        *_, surrogate, value, _, entropy, _, _, _ = agent.train_epoch()
        losses = {"value": value, "surrogate": surrogate, "entropy": entropy}
        return {name: torch.stack(parts).mean().item() for name, parts in losses.items()}

    def _make_agent(self) -> Any:
        config, storage = self.config, self.storage
        count = storage.num_envs * storage.num_transitions_per_env
        settings = {
            "name": "mjfleet", "env_name": "mjfleet", "reward_shaper": None,
            "network": ModelA2CContinuousLogStd(_Networks(self)),
            "features": {"observer": AlgoObserver()},
            "env_info": {
                "observation_space": Box(-np.inf, np.inf, (self.actor.obs_dim,)),
                "action_space": Box(-1.0, 1.0, storage.actions.shape[-1:]),
            },
            "vec_env": IVecEnv(), "device": self.device, "num_actors": storage.num_envs,
            "horizon_length": storage.num_transitions_per_env, "seq_length": 1,
            "minibatch_size": count,  # Samples of one minibatch; see `dataset` below.
            "mini_epochs": config.num_learning_epochs, "learning_rate": self.learning_rate,
            "lr_schedule": "adaptive" if self.schedule == "adaptive" else None,
            "kl_threshold": config.desired_kl, "gamma": config.gamma, "tau": config.lam,
            "e_clip": config.clip_param, "clip_value": config.use_clipped_value_loss,
            "critic_coef": 2.0 * config.value_loss_coef,  # rl_games halves it.
            "entropy_coef": config.entropy_coef, "bounds_loss_coef": 0.0,
            "normalize_input": False,  # The networks normalise observations themselves.
            "grad_norm": None,  # `_finish_gradients` clips, because the ranks average first.
            "normalize_advantage": True,
        }  # fmt: skip
        # rl_games prints its settings, and makes folders for files that nobody writes here.
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            agent: Any = _Agent("mjfleet", {"config": settings | {"train_dir": folder}})
            agent.writer.close()
        agent.optimizer, agent.mean_kl = self.optimizer, self._mean_kl
        # As in rsl_rl, samples that fill no minibatch are left out. rl_games would refuse them.
        size, minibatches = count // config.num_mini_batches, config.num_mini_batches
        agent.dataset = PPODataset(size * minibatches, size, False, False, self.device, 1)
        return agent


class _Agent(A2CAgent):
    """rl_games' agent, which is given its rollouts instead of stepping environments."""

    samples: dict[str, Any]
    mean_kl: Any

    def load_networks(self, params: dict[str, Any]) -> None:
        """Do nothing: the configuration has the networks."""

    def play_steps(self) -> dict[str, Any]:
        """Return the rollout, environment by environment."""
        return self.samples | {"played_frames": self.batch_size, "step_time": 0.0}

    def train_actor_critic(self, input_dict: dict[str, Any]) -> tuple[Any, ...]:
        """Learn from a minibatch; the schedule gets the divergence of all ranks."""
        *losses, kl, rate, factor, mean, std, bound = super().train_actor_critic(input_dict)
        kl = kl.new_tensor(self.mean_kl(kl.item())) if self.is_adaptive_lr else kl
        return *losses, kl, rate, factor, mean, std, bound


class _Networks(NetworkBuilder.BaseNetwork):
    """rsl_rl's actor and critic for normalised observations, as rl_games' network."""

    def __init__(self, learner: RlGamesPPO) -> None:
        super().__init__()
        self.actor, self.critic = learner.actor, learner.critic

    def build(self, *_: Any, **__: Any) -> "_Networks":
        """Return itself, as a builder of networks."""
        return self

    def forward(self, inputs: dict[str, Any]) -> tuple[torch.Tensor | None, ...]:
        """Return means, logarithms of the deviations, values, and no recurrent state."""
        actor, observations = self.actor, inputs["obs"]
        actor.distribution.update(actor.mlp(observations["actor"]))
        values = self.critic.mlp(observations["critic"])
        return actor.output_mean, actor.output_std.log(), values, None
