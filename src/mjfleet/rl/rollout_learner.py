"""What learners with an actor, a critic and rsl_rl's rollouts have in common. Runs in a worker."""

from functools import partial
from operator import attrgetter
from typing import Any, ClassVar, Literal

import torch
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict
from torch import nn

from mjfleet.config import AgentConfig
from mjfleet.rl.learner import Learner, Load, Setup, Step
from mjfleet.rl.networks import build_networks, lacking, make_storage
from mjfleet.sim.deferred import Deferred

USUAL_RATE = 1e-3
"""A learning rate with which training may continue after numbers that are not finite."""


class RolloutLearner(Learner):
    """Learns from a rollout in `storage`, which one optimiser does, besides that of `rnd`."""

    usual_alone: ClassVar[tuple[str, ...] | None] = None
    """Names of settings of an agent, with dots, of which the class knows the default alone, besides
    what our PPO lacks. None: it has all."""
    optimizer: Any
    rnd: Any = None
    """rsl_rl's random network distillation, or None."""
    extra: Any = None
    """Networks that a subclass adds."""
    inner: Any
    """rsl_rl's algorithm, which stores the steps, computes returns, and updates."""
    _after: Any = None

    def __init__(self, setup: Setup, kind: Literal["rl", "distillation"] = "rl") -> None:
        """Build `actor` and `critic`, and room for a rollout, in which rsl_rl stores by `kind`.

        Raises:
            UserError: they cannot be built, or rollouts cannot be learned from.
        """
        super().__init__(setup)
        built = build_networks(setup.env, setup.agent, setup.device, setup.load)
        self._networks, self.settings = built
        """The settings are those of rsl_rl's PPO."""
        self.actor: Any = self._networks["actor"]
        self.critic: Any = self._networks["critic"]
        self.storage: RolloutStorage = make_storage(setup.env, setup.agent, setup.device, kind)
        self.schedule, self.learning_rate = self.config.schedule, self.config.learning_rate
        for name, network in self._networks.items():
            if network.is_recurrent:
                put = partial(_remember, network)
                self.add_state(f"{name}_memory", per="env", get=network.get_hidden_state, set=put)
                # The configuration does not know of a class of the user's that it has a memory.
                self.config.check_rollouts(setup.env.num_envs, self.num_steps, by_env=True)
        self.scratch("storage", "_after", "_networks")

    @classmethod
    def requires(cls, agent: AgentConfig, load: Load) -> str | None:
        for name in cls.usual_alone or ():
            value, usual = (attrgetter(name)(one) for one in (agent, AgentConfig()))
            if value != usual:
                return f"--agent.{name.replace('_', '-')} {value}"
        return None if cls.usual_alone is None else lacking(agent, load)

    def declare_novelty(self) -> None:
        """Declare what `rnd` remembers of the environments."""
        average: Any = getattr(self.rnd and self.rnd.reward_normalizer, "disc_avg", None)
        if average:  # rsl_rl's running average of novelty rewards, which its own checkpoints lack.
            put = partial(_put_average, average, self.storage)
            self.add_state("novelty", per="env", get=lambda: average.avg, set=put)

    def networks(self) -> dict[str, nn.Module]:
        more = (("rnd", self.rnd), ("extra", self.extra))
        return self._networks | {name: part for name, part in more if part}

    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        found = {"optimizer": self.optimizer}
        return found | ({"rnd_optimizer": self.rnd.optimizer} if self.rnd else {})

    def act(self, obs: TensorDict) -> torch.Tensor:
        return self.inner.act(obs)

    def record(self, before: TensorDict, actions: torch.Tensor, step: Step) -> None:
        self._after, extras = step.observations, {"time_outs": step.time_outs}
        self.inner.process_env_step(step.observations, step.rewards, step.dones, extras)

    def learn(self) -> Deferred[dict[str, float]]:
        losses = self._learn()
        self.learning_rate = float(self.optimizer.param_groups[0]["lr"])  # That of the steps.
        return Deferred(torch.zeros(0, device=self.device), lambda numbers: losses)

    def _learn(self) -> dict[str, float]:
        with torch.inference_mode():
            self.compute_returns(self._after)
        return self.inner.update()

    def compute_returns(self, obs: TensorDict) -> None:
        """Compute returns and advantages; `obs` are the observations after the rollout."""
        self.inner.compute_returns(obs)

    def checked(self) -> dict[str, list[torch.Tensor]]:
        storage, observations = self.storage, dict[str, Any](self.storage.observations.items())
        seen = {f"observation/{k}": [v, self._after[k][None]] for k, v in observations.items()}
        columns = {"action": storage.actions, "reward": storage.rewards.squeeze(2)}
        columns["done"] = storage.dones.squeeze(2).bool()
        return seen | {name: [values] for name, values in columns.items()}

    def policy_metrics(self) -> dict[str, torch.Tensor]:
        return {"action_std": self.actor.output_std.mean()}

    def recovery_flags(self) -> str:
        rate, flag = min(self.learning_rate / 10, USUAL_RATE), "--agent.algorithm."
        return f"{flag}schedule fixed {flag}learning-rate {rate:.1g}"

    def set_learning_rate(self, rate: float, name: str = "optimizer") -> None:
        super().set_learning_rate(rate, name)

    def share_advantages(self) -> None:
        """Normalise the advantages of returns and values over all ranks, if there are several.

        If they are normalised in each minibatch, each rank does that by itself.
        """
        if self.is_distributed and not self.config.normalize_advantage_per_mini_batch:
            self.storage.advantages = self.storage.returns - self.storage.values
            self.normalize_advantages()

    def normalize_advantages(self) -> None:
        """Normalise the stored advantages over all ranks."""
        advantages = self.storage.advantages
        if not self.is_distributed:
            self.storage.advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
            return
        wide = advantages.double()
        sums = torch.stack((wide.sum(), wide.square().sum()))
        self.collectives.all_reduce(sums)
        (total, squares), count = sums.unbind(), wide.numel() * self.collectives.world_size
        mean = total / count
        std = ((squares - total * mean) / (count - 1)).clamp(min=0.0).sqrt()
        self.storage.advantages = (advantages - mean) / (std + 1e-8)


def _remember(network: Any, memory: Any) -> None:
    """Give a recurrent network a memory from a checkpoint: a tensor, or an LSTM's two."""
    device = next(network.parameters()).device
    parts = tuple(x.to(device) for x in memory) if isinstance(memory, tuple) else memory
    network.reset(hidden_state=parts.to(device) if isinstance(parts, torch.Tensor) else parts)


def _put_average(average: Any, storage: RolloutStorage, values: torch.Tensor) -> None:
    if values.numel() != storage.num_envs:
        raise ValueError("the average of novelty rewards is of other environments")
    average.avg = values.to(storage.device)
