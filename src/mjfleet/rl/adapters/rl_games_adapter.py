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
from rl_games.common.a2c_common import swap_and_flatten01
from rl_games.common.algo_observer import AlgoObserver
from rl_games.common.datasets import PPODataset
from rl_games.common.ivecenv import IVecEnv
from torch import nn

from mjfleet.rl.adapters.library_ppo import LibraryPPO, Observations


class RlGamesPPO(LibraryPPO):
    """rl_games' PPO for continuous actions, which trains our networks directly."""

    def _learn(self, observations: Observations, after: Observations) -> dict[str, float]:
        agent, storage = self.agent, cast(Any, self.storage)
        means, deviations = storage.distribution_params
        agent.after = after["critic"]
        agent.rollout = {
            "rewards": storage.rewards,
            "dones": storage.dones.float(),
            "values": storage.values,
            "actions": storage.actions,
            "neglogpacs": -storage.actions_log_prob.squeeze(-1),
            # rl_games overwrites these two by those of the new policy.
            "mus": means.clone(),
            "sigmas": deviations.clone(),
        }
        agent.observations = observations
        agent.last_lr = self.learning_rate
        *_, surrogate, value, _, entropy, _, _, _ = agent.train_epoch()
        self.set_learning_rate(agent.last_lr)
        losses = {"value": value, "surrogate": surrogate, "entropy": entropy}
        return {name: torch.stack(parts).mean().item() for name, parts in losses.items()}

    def _make_agent(self) -> Any:
        config, storage = self.config, self.storage
        steps, num_envs = storage.num_transitions_per_env, storage.num_envs
        networks = _Networks(self.actor, self.critic)
        settings = {
            "name": "mjfleet",
            "network": ModelA2CContinuousLogStd(networks),
            "features": {"observer": AlgoObserver()},
            "reward_shaper": None,
            "env_name": "mjfleet",
            "env_info": {
                "observation_space": Box(-np.inf, np.inf, (self.actor.obs_dim,)),
                "action_space": Box(-1.0, 1.0, storage.actions.shape[-1:]),
            },
            "vec_env": IVecEnv(),
            "device": self.device,
            "num_actors": num_envs,
            "horizon_length": steps,
            "minibatch_size": num_envs * steps,  # Samples of one minibatch; see `dataset` below.
            "mini_epochs": config.num_learning_epochs,
            "seq_length": 1,
            "learning_rate": self.learning_rate,
            "lr_schedule": "adaptive" if self.is_adaptive else None,
            "kl_threshold": config.desired_kl,
            "gamma": config.gamma,
            "tau": config.lam,
            "e_clip": config.clip_param,
            "clip_value": config.use_clipped_value_loss,
            "critic_coef": 2.0 * config.value_loss_coef,  # rl_games halves it.
            "entropy_coef": config.entropy_coef,
            "bounds_loss_coef": 0.0,
            "normalize_advantage": True,
            "normalize_input": False,  # The networks normalise observations themselves.
            "grad_norm": None,  # `_finish_gradients` clips, because the ranks average first.
        }
        # rl_games prints its settings, and makes folders for files that nobody writes here.
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            agent: Any = _Agent("mjfleet", {"config": settings | {"train_dir": folder}})
            agent.writer.close()
        agent.optimizer = self.optimizer
        # As in rsl_rl, samples that fill no minibatch are left out. rl_games would refuse them.
        size = num_envs * steps // config.num_mini_batches
        samples = size * config.num_mini_batches
        agent.dataset = PPODataset(samples, size, False, False, self.device, seq_length=1)
        if self.is_adaptive:
            schedule: Any = agent.scheduler
            adapt = schedule.update
            schedule.update = lambda *state: adapt(*state[:-1], self._mean_kl(state[-1]))
        return agent


class _Agent(A2CAgent):
    """rl_games' agent, which is given its rollouts instead of stepping environments."""

    rollout: dict[str, torch.Tensor]  # `(steps, num_envs, ...)` each.
    observations: Observations
    after: torch.Tensor  # The critic's observations after the rollout, `(num_envs, size)`.

    def load_networks(self, params: dict[str, Any]) -> None:
        """Do nothing: the configuration has the networks."""

    def play_steps(self) -> dict[str, Any]:
        """Return the rollout as samples, environment by environment, with their returns."""
        rollout = self.rollout
        values, dones = rollout["values"], rollout["dones"].squeeze(-1)
        last_values = self.model.a2c_network.critic.mlp(self.after)
        # rl_games notes with a step whether an episode ended before it, and ignores the first.
        ended = dones[-1], last_values, dones.roll(1, 0)
        returns = values + self.discount_values(*ended, values, rollout["rewards"])
        samples = {k: swap_and_flatten01(v) for k, v in (rollout | {"returns": returns}).items()}
        obses = {name: swap_and_flatten01(group) for name, group in self.observations.items()}
        return samples | {"obses": obses, "played_frames": self.batch_size, "step_time": 0.0}


class _Networks(nn.Module):
    """rsl_rl's actor and critic for normalised observations, as rl_games' network."""

    def __init__(self, actor: Any, critic: Any) -> None:
        super().__init__()
        self.actor, self.critic = actor, critic

    def build(self, *_: Any, **__: Any) -> "_Networks":
        """Return itself, as a builder of networks."""
        return self

    def forward(self, inputs: dict[str, Any]) -> tuple[torch.Tensor | None, ...]:
        """Return means, logarithms of the deviations, values, and no recurrent state."""
        actor, observations = self.actor, inputs["obs"]
        actor.distribution.update(actor.mlp(observations["actor"]))
        values = self.critic.mlp(observations["critic"])
        return actor.output_mean, actor.output_std.log(), values, None

    def is_rnn(self) -> bool:
        return False

    def get_aux_loss(self) -> None:
        return None
