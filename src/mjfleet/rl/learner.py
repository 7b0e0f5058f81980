"""The interface of a learner for training, evaluation, checkpoints and `play`. In a worker."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar, NamedTuple

import torch
from tensordict import TensorDict
from torch import nn

from mjfleet.config import AgentConfig, AlgorithmConfig, PPOConfig
from mjfleet.env import Env
from mjfleet.rl.device import optimizer as device_optimizer
from mjfleet.rl.device.graph_capture import Capture
from mjfleet.rl.learner_state import LearnerState
from mjfleet.rl.networks import build_networks
from mjfleet.rl.ranks.collectives import Collectives
from mjfleet.rl.ranks.gradients import SharedGradients
from mjfleet.sim.deferred import Deferred

Load = Callable[..., Any]
"""Finds `module:name`, see FoundTask.load."""


def key_of(name: str) -> str:
    """Return the key under which a checkpoint holds a network or an optimiser."""
    return f"{name}_state_dict"


@dataclass(frozen=True)
class Setup:
    env: Env[Any]
    agent: AgentConfig
    device: str
    """torch's name of the environment's device."""
    num_threads: int
    """CPU threads that an update may use."""
    load: Load
    collectives: Collectives
    capture: Capture | None = None
    """Captures updates as CUDA graphs. None: nothing is captured."""


class Step(NamedTuple):
    """The results of a step of the environments."""

    observations: TensorDict
    """After the step; where an episode ended, the first ones of the next episode."""
    rewards: torch.Tensor
    """`(num_envs,)`, float32."""
    dones: torch.Tensor
    """Where an episode ended, by a failure or by time, `(num_envs,)`, bool."""
    time_outs: torch.Tensor
    """Where it ended without a failure, `(num_envs,)`, bool."""


class Learner(LearnerState, SharedGradients, ABC):
    """An algorithm with its networks, on one rank. Every rank has one.

    The runner calls `begin` once; then, for each iteration, `act` and `record` for each of
    `num_steps` steps, and `learn`. All ranks learn the same, because they begin with rank 0's
    networks and average their gradients by `reduce_parameters`.
    """

    Config: ClassVar[type[AlgorithmConfig]] = PPOConfig
    """The dataclass of the algorithm's numbers, each of which is a flag; `config` has them."""
    fallback_reason: str | None = None
    """Why learning takes a slower path than the algorithm's own; None: it does not."""
    compiles = False
    """Whether the first call of `learn` compiles, which may take minutes."""
    is_captured = False
    """Whether `learn` does not wait for the device: the rollout is then checked after it."""
    schedule = "fixed"
    """What changes learning rates; `adaptive` continues from those in a checkpoint."""
    learning_rate: float
    rate_share = 1.0
    """By what a schedule of the learner's own has multiplied the learning rates."""

    def __init__(self, setup: Setup) -> None:
        LearnerState.__init__(self)
        self.config: Any = setup.agent.algorithm
        SharedGradients.__init__(self, setup.collectives)
        self.device = setup.device
        self.num_steps, self.torch_threads = setup.agent.num_steps_per_env, setup.num_threads
        self.beat: Callable[[], object] = lambda: None
        """To be called in long updates that step no optimiser: else the worker counts as stuck."""
        self.scratch("learning_rate", "_gradients")

    @classmethod
    def requires(cls, agent: AgentConfig, load: Load) -> str | None:
        """Return the part of the configuration that this class does not support, or None."""

    @classmethod
    def policy_of(cls, env: Env[Any], agent: AgentConfig, load: Load) -> Any:
        """Build the network `actor` alone, on the environment's device: for `play` and exports."""
        networks, _ = build_networks(env, agent, str(env.device), load, ["actor"])
        return networks["actor"]

    def check(self, obs: TensorDict) -> None:
        """Raise UserError for what would fail later; called once the constructor is done."""

    @abstractmethod
    def act(self, obs: TensorDict) -> torch.Tensor:
        """Return actions `(num_envs, num_actions)` to learn from; called in inference mode."""

    @abstractmethod
    def record(self, before: TensorDict, actions: torch.Tensor, step: Step) -> None:
        """Store a step's results, and the observations before it; called in inference mode."""

    @abstractmethod
    def learn(self) -> Deferred[dict[str, float]]:
        """Learn; return losses by name, which the device may still compute."""

    @abstractmethod
    def networks(self) -> dict[str, nn.Module]:
        """Return all networks by name. `actor` returns mean actions for observations.

        They are sent from rank 0 to all, compared, saved as `<name>_state_dict` and loaded.
        """

    @abstractmethod
    def checked(self) -> dict[str, list[torch.Tensor]]:
        """Return the newest rollout, which has to be finite, by name: `observation/<group>`,
        `action`, `reward` and `done`.

        Each is in parts `(steps, num_envs, ...)`; observations have one row more.
        """

    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """Return the optimisers by name, which are saved as `<name>_state_dict` and loaded."""
        return {}

    def begin(self) -> None:
        """Prepare for the first iteration; rank 0's networks are sent to the others afterwards."""

    def policy_metrics(self) -> dict[str, torch.Tensor]:
        """Return numbers `()` about the policy for a row of metrics.csv, by column."""
        return {}

    def recovery_flags(self) -> str:
        """Return flags with which training may go on after numbers that are not finite, or ""."""
        return ""

    def known(self) -> Iterator[Any]:
        """Yield what may change: networks, gradients, optimisers and declared state."""
        yield from super().known()
        yield from self.flat_gradients()
        yield from (*self.networks().values(), *self.optimizers().values())
        yield from (x for n in self.networks().values() for x in n.state_dict().values())
        for optimizer in self.optimizers().values():
            yield from device_optimizer.state_tensors(optimizer)

    def train_mode(self, is_training: bool = True) -> None:
        """Put the networks into training mode or evaluation mode."""
        for network in self.networks().values():
            network.train(is_training)

    @torch.no_grad()
    def broadcast_parameters(self) -> None:
        """Send rank 0's networks, and state that is the same on all ranks, to the others."""
        for tensor in self.replicated():
            torch.distributed.broadcast(tensor, src=0)

    def replicated(self) -> list[torch.Tensor]:
        """Return what is the same on all ranks: networks, and state that is declared so."""
        networks = self.networks().values()
        return [*(x for n in networks for x in n.state_dict().values()), *self.tensors("run")]

    def set_learning_rate(self, rate: float, name: str = "") -> None:
        """Set the learning rate of the next step, for one optimiser or for all."""
        for key, optimizer in self.optimizers().items():
            for group in optimizer.param_groups if name in ("", key) else ():
                group["lr"] = rate
        self._show_rate()

    def _show_rate(self) -> None:
        """Let `learning_rate` be that of the first optimiser, if there is one."""
        for optimizer in islice(self.optimizers().values(), 1):
            self.learning_rate = float(optimizer.param_groups[0]["lr"])

    def save(self) -> dict[str, Any]:
        """Return the state of networks and optimisers, for a checkpoint."""
        parts = {**self.networks(), **self.optimizers()}
        return {key_of(name): part.state_dict() for name, part in parts.items()}

    def restore(self, state: Mapping[str, Any], names: Collection[str]) -> None:
        """Load the networks and optimisers of these names from what `save` returned."""
        parts: dict[str, Any] = {**self.networks(), **self.optimizers()}
        for name in [name for name in parts if name in names]:  # Networks may share encoders.
            parts[name].load_state_dict(state[key_of(name)])
        self._show_rate()
