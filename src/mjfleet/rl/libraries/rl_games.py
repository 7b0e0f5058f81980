"""rl_games' PPO: what it calls an epoch is a whole update from our rollout. Runs in a worker."""

import contextlib
import tempfile
from typing import Any

import torch
from gymnasium.spaces import Box
from rl_games.algos_torch.a2c_continuous import A2CAgent
from rl_games.algos_torch.model_builder import register_model
from rl_games.algos_torch.models import ModelA2CContinuousLogStd
from rl_games.algos_torch.network_builder import NetworkBuilder
from rl_games.common.algo_observer import AlgoObserver
from rl_games.common.ivecenv import IVecEnv

from mjfleet.rl.libraries.library_ppo import LibraryPPO


class RlGamesPPO(LibraryPPO):
    """rl_games' PPO for continuous actions, which trains our networks directly."""

    def _update(self, seen: dict[str, Any], after: dict[str, Any]) -> dict[str, float]:
        agent, storage = self.agent, self.storage
        ended, last_values = storage.dones.squeeze(2).float(), self.critic.mlp(after["critic"])
        # rl_games notes with a step whether an episode ended before it, and ignores the first.
        flags = ended[-1], last_values.detach(), ended.roll(1, 0)
        gains = agent.discount_values(*flags, storage.values, storage.rewards)
        # rl_games overwrites these.
        policy = map(torch.clone, storage.distribution_params or ())
        rollout = dict(zip(("mus", "sigmas"), policy, strict=True)) | {
            "returns": storage.values + gains, "dones": ended, "values": storage.values,
            "actions": storage.actions, "neglogpacs": -storage.actions_log_prob.squeeze(2), **seen,
        }  # fmt: skip
        # rl_games learns environment by environment.
        rows = {name: part.transpose(0, 1).flatten(0, 1) for name, part in rollout.items()}
        obses = {name: rows.pop(name) for name in seen}
        agent.play_steps = lambda: rows | {"obses": obses, "played_frames": 0, "step_time": 0.0}
        agent.last_lr = self.optimizer.param_groups[0]["lr"]
        *_, surrogate, value, _, entropy, _, _, _ = agent.train_epoch()
        losses = {"value": value, "surrogate": surrogate, "entropy": entropy}
        return {name: torch.stack(parts).mean().item() for name, parts in losses.items()}

    def _make_agent(self) -> Any:
        config, storage = self.config, self.storage
        steps, space = storage.num_transitions_per_env, Box(-1.0, 1.0, storage.actions.shape[-1:])
        settings = {
            "name": "mjfleet", "env_name": "mjfleet", "reward_shaper": None, "vec_env": IVecEnv(),
            "env_info": {"observation_space": space, "action_space": space}, "device": self.device,
            "features": {"observer": AlgoObserver()}, "num_actors": storage.num_envs,
            "horizon_length": steps, "seq_length": 1, "minibatch_size": storage.num_envs * steps,
            "mini_epochs": config.num_learning_epochs, "learning_rate": self.learning_rate,
            "lr_schedule": self.schedule, "kl_threshold": config.desired_kl, "gamma": config.gamma,
            "tau": config.lam, "e_clip": config.clip_param, "entropy_coef": config.entropy_coef,
            "clip_value": config.use_clipped_value_loss, "normalize_advantage": True,
            "bounds_loss_coef": 0.0, "critic_coef": 2.0 * config.value_loss_coef,  # It halves this.
            "normalize_input": False, "grad_norm": None,  # The optimiser clips what ranks average.
        }  # fmt: skip
        register_model("mjfleet", lambda _: ModelA2CContinuousLogStd(_Networks(self)))
        params = {"model": {"name": "mjfleet"}, "network": {"name": "actor_critic"}}
        # rl_games prints its settings, and makes folders for files that nobody writes here.
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(None):
            agent: Any = A2CAgent("", params | {"config": settings | {"train_dir": folder}})
            agent.writer.close()
        agent.optimizer = self.optimizer
        if self.schedule == "adaptive":
            adapt, mean = agent.scheduler.update, self.collectives.mean
            agent.scheduler.update = lambda *now: adapt(*now[:-1], mean(now[-1]))
        # As in rsl_rl, samples that fill no minibatch are left out. rl_games would refuse them.
        agent.dataset.minibatch_size = storage.num_envs * steps // config.num_mini_batches
        agent.dataset.length = config.num_mini_batches
        return agent


class _Networks(NetworkBuilder.BaseNetwork):
    """rsl_rl's actor and critic for normalised observations, as rl_games' network."""

    def __init__(self, learner: RlGamesPPO) -> None:
        super().__init__()
        self.actor, self.critic = learner.actor, learner.critic
        self.build = lambda *_, **__: self  # As a builder of networks.

    def forward(self, inputs: dict[str, Any]) -> tuple[torch.Tensor | None, ...]:
        """Return means, logarithms of the deviations, values, and no recurrent state."""
        actor, observations = self.actor, inputs["obs"]
        actor.distribution.update(actor.mlp(observations["actor"]))
        values = self.critic.mlp(observations["critic"])
        return actor.output_mean, actor.output_std.log(), values, None
