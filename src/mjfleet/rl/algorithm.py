"""The interface of the training loop to learning algorithms. Runs in a worker."""

from collections.abc import Callable
from itertools import chain
from typing import Any

import torch
from rsl_rl import algorithms
from rsl_rl.utils import resolve_optimizer
from tensordict import TensorDict
from torch import nn

from mjfleet.config import AgentConfig
from mjfleet.errors import UserError
from mjfleet.rl.collectives import Collectives
from mjfleet.rl.equivariance import Equivariance
from mjfleet.rl.gradient_reduction import FlatGradient
from mjfleet.sim.deferred import Deferred

TAKEN = "actor", "critic", "rnd", "extra"
"""Names that a checkpoint uses for other networks."""


class Algorithm(algorithms.PPO):
    """rsl_rl's PPO, whose update a subclass may replace, on any number of ranks.

    All ranks take the same steps, because they have the same parameters and average their gradients
    by one all-reduce per minibatch. Advantages are normalised over the rollouts of all ranks.
    rsl_rl's observation normalisers reduce their moments over all ranks by themselves.
    """

    actor: Any
    critic: Any
    optimizer: Any
    equivariance: Equivariance | None = None
    """Ties the networks' weights; None: they are free."""
    fallback_reason: str | None = None
    """Why learning takes a slower path than our PPO's; None: it does not."""
    torch_threads: int
    """torch's own threads during an update."""

    def __init__(
        self,
        agent: AgentConfig,
        collectives: Collectives,
        num_threads: int,
        *parts: Any,
        **settings: Any,
    ) -> None:
        """Take rsl_rl's arguments, and those of `build_algorithm.make_algorithm`."""
        super().__init__(*parts, **settings)
        self.config = agent.algorithm
        self.collectives = collectives
        self.torch_threads = num_threads
        if not self.config.learns_values:
            self.critic.requires_grad_(False)
        # rsl_rl's update then calls `reduce_parameters`.
        self.is_multi_gpu = self.is_distributed = collectives.world_size > 1
        self.gpu_global_rank, self.gpu_world_size = collectives.rank, collectives.world_size
        self.is_adaptive = self.config.schedule == "adaptive"
        self.on_minibatch: Callable[[], object] = lambda: None
        """Called before each step of the optimiser."""
        self.extra = nn.ModuleDict(self._own_modules()).to(self.device)
        """The networks of `modules`, which are learned, saved and compared like the others."""
        if self.extra:
            learned = chain(*(x.parameters() for x in (self.actor, self.critic, self.extra)))
            make: Any = resolve_optimizer(self.config.optimizer)
            # Each once: an own network may hold layers of the actor.
            self.optimizer = make(dict.fromkeys(learned), lr=self.learning_rate)
        self.learn_by(self.optimizer)

    def learn_by(self, optimizer: Any) -> None:
        """Take the optimiser of all parameters, except for those of `rnd`."""
        self.optimizer = optimizer
        optimizer.register_step_pre_hook(lambda *_: self.on_minibatch())
        optimizers = [optimizer, *([self.rnd.optimizer] if self.rnd else [])]
        groups = [group for one in optimizers for group in one.param_groups]
        self.gradient = FlatGradient(p for group in groups for p in group["params"])

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

    def broadcast_parameters(self) -> None:
        """Send rank 0's networks to all ranks."""
        super().broadcast_parameters()
        for tensor in self.extra.state_dict().values():
            torch.distributed.broadcast(tensor, src=0)

    def train_mode(self) -> None:
        super().train_mode()
        self.extra.train()

    def eval_mode(self) -> None:
        super().eval_mode()
        self.extra.eval()

    def save(self) -> dict[str, Any]:
        state = super().save()
        return state | {"extra_state_dict": self.extra.state_dict()} if self.extra else state

    def load(self, loaded_dict: dict[str, Any], load_cfg: dict | None, strict: bool) -> bool:
        """Load what rsl_rl's PPO loads; the networks of `modules` go with the optimiser."""
        loads_iteration = super().load(loaded_dict, load_cfg, strict)
        if self.extra and (load_cfg is None or load_cfg.get("optimizer")):
            self.extra.load_state_dict(loaded_dict["extra_state_dict"], strict=strict)
        return loads_iteration

    def take_teacher(self, agent: AgentConfig) -> None:
        """Load the policy to imitate, where the algorithm does that. Called before training, on
        rank 0, after a checkpoint has been restored."""

    def check_weights(self) -> None:
        """Raise UserError if a new run cannot begin with the networks that have been loaded."""
        if self.equivariance:
            self.equivariance.check_weights()

    def compute_returns(self, obs: TensorDict) -> None:
        """Compute returns and advantages; `obs` are the observations after the rollout.

        If advantages are normalised in each minibatch, each rank does that by itself.
        """
        super().compute_returns(obs)
        self.share_advantages()

    def share_advantages(self) -> None:
        """Normalise the advantages of returns and values over all ranks, if there are several."""
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

    def start_update(self) -> Deferred[dict[str, float]]:
        """Learn from the stored rollout; return the mean losses, which may still be computed."""
        losses = self.update()
        self.learning_rate = float(self.optimizer.param_groups[0]["lr"])  # That of the steps.
        return Deferred(torch.zeros(0, device=self.device), lambda numbers: losses)

    def reduce_parameters(self) -> None:
        """Average the gradients of all parameters over the ranks, in one all-reduce.

        A parameter that has no gradient on a rank counts as zero there.
        """
        self.gradient.average(self.collectives)

    def set_learning_rate(self, rate: float) -> None:
        """Set the learning rate of the next step."""
        self.learning_rate = rate
        for group in self.optimizer.param_groups:
            group["lr"] = rate
