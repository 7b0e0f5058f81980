"""rsl_rl's PPO as a learner, whose update a subclass may replace. Runs in a worker."""

import warnings
from itertools import chain
from typing import Any

import torch
from rsl_rl import algorithms
from rsl_rl.utils import resolve_optimizer
from tensordict import TensorDict
from torch import nn

from mjfleet.errors import UserError
from mjfleet.rl.learner import Setup
from mjfleet.rl.rollout_learner import RolloutLearner

TAKEN = "actor", "critic", "rnd", "extra"
"""Names that a checkpoint uses for other networks."""
NUMBERS = (
    "clip_param", "desired_kl", "entropy_coef", "gamma", "lam", "max_grad_norm",
    "use_clipped_value_loss", "value_loss_coef",
)  # fmt: skip
"""Attributes of rsl_rl's PPO that may be changed between updates, and that a graph would keep."""


class Algorithm(RolloutLearner, algorithms.PPO):
    """rsl_rl's PPO with its own update, on any number of ranks.

    All ranks take the same steps, because they have the same parameters and average their gradients
    by one all-reduce per minibatch. Advantages are normalised over the rollouts of all ranks.
    rsl_rl's observation normalisers reduce their moments over all ranks by themselves.
    """

    def __init__(self, setup: Setup, **settings: Any) -> None:
        """Build networks, storage and rsl_rl's PPO, which also gets the `settings`."""
        RolloutLearner.__init__(self, setup)
        agent, before = setup.agent, {*vars(self)}
        parts: Any = self.actor, self.critic, self.storage
        with warnings.catch_warnings():  # The optimiser goes, below, if it has parameters twice.
            warnings.filterwarnings("ignore", ".*duplicate parameters")
            algorithms.PPO.__init__(self, *parts, device=setup.device, **self.settings | settings)
        if not self.config.learns_values:
            self.critic.requires_grad_(False)
        # rsl_rl's update then calls `reduce_parameters`.
        self.is_multi_gpu = self.is_distributed
        self.gpu_global_rank = self.collectives.rank
        self.gpu_world_size = self.collectives.world_size
        self.is_adaptive = self.schedule == "adaptive"
        self.declare_novelty()
        self.extra = nn.ModuleDict(self._own_modules()).to(self.device)
        """The networks of `modules`, which are learned, saved and compared like the others."""
        if self.extra or self.config.share_cnn_encoders:
            learned = chain(*(x.parameters() for x in (self.actor, self.critic, self.extra)))
            make: Any = resolve_optimizer(self.config.optimizer)
            # Each once: the critic, or an own network, may hold layers of the actor.
            self.optimizer = make(dict.fromkeys(learned), lr=self.learning_rate)
        self.gradient = self.gradient_of()
        self.compile(agent.torch_compile_mode)
        self.compiles = agent.torch_compile_mode is not None
        for name in NUMBERS:
            self.add_state(name, getattr(self, name))
        self.scratch("intrinsic_rewards", *vars(self).keys() - before)

    @property
    def inner(self) -> "Algorithm":
        """What rsl_rl's methods are called on."""
        return self

    def modules(self) -> dict[str, nn.Module]:
        """Return networks to learn besides actor and critic, by name, which `self.extra` holds.

        Called once, when `actor`, `critic` and `storage` are there.
        """
        return {}

    def _own_modules(self) -> dict[str, nn.Module]:
        found, where = self.modules(), f"{type(self).__name__}.modules"
        if not isinstance(found, dict) or not all(isinstance(x, nn.Module) for x in found.values()):
            shown = (
                {k: type(v).__name__ for k, v in found.items()}
                if isinstance(found, dict)
                else found
            )
            raise UserError(
                f"{where} returns {shown!r:.60}: return a dictionary of networks, with a single "
                "parameter in an `nn.ParameterDict`."
            )
        for name in found:
            if not str(name).isidentifier() or hasattr(nn.ModuleDict, name) or name in TAKEN:
                raise UserError(f"{where}: {name!r} is no name for a network, or taken.")
        return found

    def act(self, obs: TensorDict) -> torch.Tensor:
        return algorithms.PPO.act(self, obs)

    def compute_returns(self, obs: TensorDict) -> None:
        """Compute returns and advantages; `obs` are the observations after the rollout."""
        algorithms.PPO.compute_returns(self, obs)
        self.share_advantages()
