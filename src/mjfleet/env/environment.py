"""The environment contract: what a task author writes, and the step that is built from it."""

import inspect
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, TypeVar

import mujoco
import torch
from rsl_rl.env import VecEnv
from tensordict import TensorDict

from mjfleet.config import EnvConfig
from mjfleet.env.step_recorder import RESULTS, StateHistory
from mjfleet.errors import UserError
from mjfleet.sim import Simulation

C = TypeVar("C", bound=EnvConfig)

NAN = "NAN"
"""The kind of warning that counts the worlds that were reset because a number was not finite."""
EVALUATION_SEED = 2**31 - 1
"""No worker trains with it; runs of any seed are evaluated in the same episodes."""


@dataclass(frozen=True)
class EpisodeStatistics:
    """Sums over the episodes that ended, and over the steps taken, since the last call."""

    episodes: int
    returns: float
    lengths: float
    """In environment steps."""
    terms: dict[str, float]
    """Sum of each reward term over those episodes."""
    rewards: float
    """Sum of the rewards of all steps of all worlds, whether or not their episode ended."""
    steps: int
    """Steps taken, all worlds together."""
    metrics: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Of each of the task's own, what is divided by what: sums over the same steps."""


@dataclass(frozen=True)
class EnvShard:
    """Some of the worlds in which policies are evaluated, which all workers share."""

    first: int
    """The number of the first of them."""
    count: int
    total: int
    """How many there are, of all workers together."""


class Env(VecEnv, Generic[C]):
    """`num_envs` worlds with observations, rewards and episodes that reset themselves.

    A task author sets `model_file` and writes the methods below. Tensors have the world index
    first and live on `self.device`. Nothing in them may wait for the device: no `.item()`, no
    `.cpu()`, no `.nonzero()`, no `if tensor:`, no indexing by a boolean mask; use `torch.where`.

    One step is: `apply`, `cfg.decimation` physics steps, `rewards`, `terminated` and time-outs,
    `reset_worlds` for the worlds that are done, `observe`. The observation of a world that is done
    is thus the first of its next episode.
    """

    model_file: ClassVar[str]
    """The MJCF file, relative to the file of the class that sets this."""

    cfg: C
    max_episode_length: int
    history: StateHistory | None = None
    """Records the states of each step where somebody wants them."""
    on_nan: Literal["stop", "reset"] = "stop"
    """Reset: a world with a state, reward or observation that is not finite has failed."""
    steered: bool = False
    """Somebody who watches sets the commands: the task draws none."""

    def __init__(self, cfg: C, sim: Simulation, seed: int, share: EnvShard | None = None) -> None:
        """Build the worlds and reset them.

        Args:
            cfg: the task's numbers.
            sim: the simulation.
            seed: of all random numbers that `uniform` and `normal` draw.
            share: for an evaluation, which of its worlds are here. Each has the random numbers that
                it would have if all were here. None: these are for training, and all there are.
        """
        # rsl_rl declares these two more widely.
        self.cfg = cfg  # pyright: ignore[reportIncompatibleVariableOverride]
        self.sim = sim
        self.num_envs = sim.num_envs
        self.device = sim.device
        self.step_dt = cfg.decimation * float(sim.model.opt.timestep)
        """Simulated seconds per environment step."""
        steps = max(1, round(cfg.episode_seconds / self.step_dt))
        self.max_episode_length = steps  # pyright: ignore[reportIncompatibleVariableOverride]
        self._share = share
        self.is_evaluation = share is not None
        """Whether policies are evaluated here: a curriculum should then begin with all levels."""
        first = share.first if share else 0
        self.world_ids = torch.arange(first, first + self.num_envs, device=self.device)
        """The numbers of the worlds, `(num_envs,)`, long: 0 to `num_envs` - 1 in training."""
        # Another stream than that of torch, which draws the actions and whose seeds are below 2^31.
        self.generator = torch.Generator(self.device).manual_seed(seed + 2**31)
        self.num_actions = self.count_actions()
        if self.num_actions < 1:
            raise UserError(f"{type(self).__name__}: the model has no actuator to act with")
        self.action = torch.zeros(self.num_envs, self.num_actions, device=self.device)
        """The newest action, `(num_envs, num_actions)`, float32; zero in a new episode."""
        self.episode_length_buf = torch.zeros(self.num_envs, dtype=torch.long, device=self.device)

        self.setup()
        everywhere = torch.ones(self.num_envs, dtype=torch.bool, device=self.device)
        self._reset(everywhere)
        self._check_returns()
        terms = self.rewards()
        self.reward_names = tuple(terms)
        self.metric_names = tuple(self.metrics())
        self.terms = torch.zeros(len(terms), self.num_envs, device=self.device)
        """Reward terms of the newest step, `(number of terms, num_envs)`."""
        shape = 2 * len(self.metric_names), self.num_envs
        self.measured = torch.zeros(shape, device=self.device)
        """Of the newest step, what each metric divides, then by what, `(2 * metrics, num_envs)`."""
        self._observations = self._observe()
        self._term_sums = torch.zeros(len(terms), self.num_envs, device=self.device)
        # Worlds that were put into the middle of an episode do not count until it has ended.
        self._whole = everywhere
        count = 3 + len(terms) + 2 * len(self.metric_names)
        self._totals = torch.zeros(count, dtype=torch.float64, device=self.device)
        self._steps = 0
        self._nan_resets = torch.zeros((), dtype=torch.long, device=self.device)
        self._unseeable = ~everywhere
        """Worlds whose newest observation was not finite, where these are reset."""

    @classmethod
    def make_model(cls, cfg: C) -> mujoco.MjModel:
        """The model, compiled from `model_file`; override to build it from the configuration."""
        del cfg
        owner = next(base for base in cls.__mro__ if "model_file" in vars(base))
        path = Path(inspect.getfile(owner)).parent / cls.model_file
        try:
            return mujoco.MjModel.from_xml_path(str(path))
        except ValueError as error:
            raise UserError(f"{cls.__name__}: {path}: {error}") from None

    def setup(self) -> None:
        """Called once before the first reset: look up ids and sensors, allocate own tensors."""
        return

    def count_actions(self) -> int:
        """The size of an action; one per actuator of the model unless overridden."""
        return self.sim.model.nu

    @abstractmethod
    def reset_worlds(self, mask: torch.Tensor) -> None:
        """Write an initial state where `mask` `(num_envs,)` is true.

        The model's default state is there already. `forward` is called afterwards.
        """

    @abstractmethod
    def apply(self, action: torch.Tensor) -> None:
        """Write `sim.ctrl` from `action` `(num_envs, num_actions)`, float32."""

    @abstractmethod
    def observe(self) -> dict[str, torch.Tensor]:
        """Observation groups `(num_envs, size)`: "actor" and "critic" at least."""

    @abstractmethod
    def rewards(self) -> dict[str, torch.Tensor]:
        """Named, weighted terms `(num_envs,)`; their sum is the reward. The names never change."""

    def terminated(self) -> torch.Tensor:
        """Worlds that failed, `(num_envs,)`, bool; none unless overridden. Time-outs are apart."""
        return torch.zeros(self.num_envs, dtype=torch.bool, device=self.device)

    def metrics(self) -> dict[str, torch.Tensor | tuple[torch.Tensor, torch.Tensor]]:
        """Named numbers for people to judge by, each `(num_envs,)`: logged as means over all steps
        and worlds. Of a pair, the sum of the first is divided by the sum of the second: energy by
        distance, failures by minutes. Called after `rewards`; the names never change."""
        return {}

    def arrows(self) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        """Named arrows to draw over each world: where they start and what they point along, both
        (num_envs, 3), metres in the world frame; default none."""
        return {}

    def commands(self) -> dict[str, tuple[torch.Tensor, float, float]]:
        """What the robot is told to do, by name: the present values, a view `(num_envs,)` that a
        viewer may write, and their range. Where `steered` is true they stay as written."""
        return {}

    def deployment(self) -> dict[str, Any]:
        """What a robot that runs the policy must know and the model does not say: the parts of an
        observation, what an action means. Plain JSON data, for `mjfleet export`: docs/deploy.md."""
        return {}

    def uniform(self, size: int, low: float, high: float) -> torch.Tensor:
        """Random numbers `(num_envs, size)` in [low, high), from this worker's own generator."""
        return self._draw(torch.rand, size) * (high - low) + low

    def normal(self, size: int) -> torch.Tensor:
        """Standard normal numbers `(num_envs, size)`, from this worker's own generator."""
        return self._draw(torch.randn, size)

    @property
    def unwrapped(self) -> "Env[C]":
        """Itself: rsl_rl asks for this where environments may be wrapped."""
        return self

    def get_observations(self) -> TensorDict:
        """The current observations: each group `(num_envs, size)`, float32."""
        return self._observations

    def step(
        self, actions: torch.Tensor
    ) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict[str, Any]]:
        """Advance every world by one environment step; see the class for the order.

        Args:
            actions: `(num_envs, num_actions)`, float32.

        Returns:
            Observations; rewards `(num_envs,)`, float32; dones `(num_envs,)`, bool; and extras,
            whose "time_outs" `(num_envs,)`, bool, are the dones that were no failure.
        """
        self.action = actions
        self.apply(actions)
        if self.history:
            self.history.before_physics(self.sim, self.arrows)
        self.sim.step(self.cfg.decimation)
        if self.history:
            self.history.after_physics(self.sim)
        self.episode_length_buf += 1
        named = self.rewards()
        if tuple(named) != self.reward_names:
            raise ValueError(f"rewards() now has {list(named)}, not {list(self.reward_names)}")
        terms = torch.stack(tuple(named.values())).to(torch.float32)
        if self.history:
            self.history.after_rewards(terms)
        failed = self.terminated()
        if self.on_nan == "reset":
            bad = self._bad_worlds(terms)
            self._nan_resets += bad.sum()
            terms = terms.masked_fill(bad, 0.0)
            failed = failed | bad
        reward = terms.sum(dim=0)
        self.terms, self.measured = terms, self._measure()
        time_outs = (self.episode_length_buf >= self.max_episode_length) & ~failed
        dones = failed | time_outs
        self._record(terms, reward, dones)
        self._reset(dones)
        self._observations = self._observe()
        return self._observations, reward, dones, {"time_outs": time_outs}

    def reset(self) -> None:
        """Begin a new episode in every world; those that were under way count for nothing."""
        self._whole = torch.ones_like(self._whole)
        self._term_sums.zero_()
        self._reset(self._whole)
        self._observations = self._observe()

    def start_at_random_times(self) -> None:
        """Put every world at a random time of its episode, so that time-outs are spread out."""
        self.episode_length_buf.random_(self.max_episode_length, generator=self.generator)
        self._whole = self.episode_length_buf == 0
        self._observations = self._observe()

    def take_statistics(self) -> EpisodeStatistics:
        """What happened since the last call; waits for the device, so call it once an iteration."""
        episodes, lengths, rewards, *rest = self._totals.tolist()
        terms, sums = rest[: len(self.reward_names)], rest[len(self.reward_names) :]
        steps = self._steps * self.num_envs
        self._totals.zero_()
        self._steps = 0
        return EpisodeStatistics(
            episodes=round(episodes),
            returns=sum(terms),
            lengths=lengths,
            terms=dict(zip(self.reward_names, terms, strict=True)),
            rewards=rewards,
            steps=steps,
            metrics={
                name: (sums[2 * i], sums[2 * i + 1]) for i, name in enumerate(self.metric_names)
            },
        )

    def warnings(self) -> dict[str, int]:
        """Worlds in trouble since the last call, of every kind; waits for the device.

        Those of the simulation, and NAN: resets because of a number that was not finite.
        """
        resets = int(self._nan_resets)
        self._nan_resets.zero_()
        kinds = dict.fromkeys(self.sim.warning_kinds, 0)
        return kinds | self.sim.warnings() | {NAN: resets}

    def count_steps(self, number: int) -> None:
        """Count steps of all worlds that were taken without `step`, by a captured graph of it."""
        self._steps += number

    def _draw(self, random: Callable[..., torch.Tensor], size: int) -> torch.Tensor:
        """Random numbers `(num_envs, size)`; those of the worlds of other workers are passed by."""
        share = self._share
        count = share.total if share else self.num_envs
        drawn = random(count, size, generator=self.generator, device=self.device)
        return drawn[share.first : share.first + share.count] if share else drawn

    def _bad_worlds(self, terms: torch.Tensor) -> torch.Tensor:
        """Worlds with a state or reward, or before this step an observation, that is not finite."""
        bad = self._unseeable | ~terms.isfinite().all(dim=0)
        for name in RESULTS:
            bad = bad | ~getattr(self.sim, name).isfinite().all(dim=1)
        return bad

    def _record(self, terms: torch.Tensor, reward: torch.Tensor, dones: torch.Tensor) -> None:
        """Add a step to the statistics, before the worlds that are done are reset."""
        self._term_sums += terms
        ended = (dones & self._whole).to(torch.float32)
        lengths = self.episode_length_buf * ended
        totals = torch.stack((ended.sum(), lengths.sum(), reward.sum()))
        self._totals += torch.cat((totals, self._term_sums @ ended, self.measured.sum(dim=1)))
        self._term_sums.masked_fill_(dones, 0.0)
        self._whole = self._whole | dones
        self._steps += 1

    def _measure(self) -> torch.Tensor:
        """What each metric divides, and by what, `(2 * number of metrics, num_envs)`."""
        parts = []
        for value in self.metrics().values():
            parts += value if isinstance(value, tuple) else (value, torch.ones_like(value))
        return torch.stack(parts).to(torch.float32) if parts else self.measured

    def _reset(self, mask: torch.Tensor) -> None:
        self.sim.reset(mask)
        self.episode_length_buf.masked_fill_(mask, 0)
        self.action = self.action.masked_fill(mask.unsqueeze(1), 0.0)
        self.reset_worlds(mask)
        self.sim.forward(mask)

    def _observe(self) -> TensorDict:
        # A copy: a group may be a view of the live state, and the caller keeps the observation.
        groups = {k: v.to(torch.float32, copy=True) for k, v in self.observe().items()}
        if self.on_nan == "reset":
            # To look again after a reset would call `observe` twice in a step. The world instead
            # sees zeros once, and is reset in the next step, whose reward does not count.
            finite = [group.isfinite().all(dim=1) for group in groups.values()]
            self._unseeable = ~torch.stack(finite).all(dim=0)
            bad = self._unseeable.unsqueeze(1)
            groups = {name: group.masked_fill(bad, 0.0) for name, group in groups.items()}
        return TensorDict(groups, batch_size=[self.num_envs], device=self.device)

    def _check_returns(self) -> None:
        """Refuse what would otherwise be broadcast in silence, or fail far from its cause."""
        groups, terms, failed = self.observe(), self.rewards(), self.terminated()
        for what, found in (("observe()", groups), ("rewards()", terms)):
            if not isinstance(found, dict) or not found:
                raise self._wrong(what, "is no dictionary of names to tensors")
        for key in ("actor", "critic"):
            if key not in groups:
                raise self._wrong("observe()", f"has no group {key!r}; it has {list(groups)}")
        for key, value in groups.items():
            self._check_tensor(f"observe()[{key!r}]", value, dimensions=2)
        for key, value in terms.items():
            self._check_tensor(f"rewards()[{key!r}]", value, dimensions=1)
        for key, value in self.metrics().items():
            for part in value if isinstance(value, tuple) else (value,):
                self._check_tensor(f"metrics()[{key!r}]", part, dimensions=1)
        for key, pair in self.arrows().items():
            for part in pair:
                self._check_tensor(f"arrows()[{key!r}]", part, dimensions=2)
                if part.shape[1] != 3:
                    how = f"has shape {tuple(part.shape)}, not ({self.num_envs}, 3)"
                    raise self._wrong(f"arrows()[{key!r}]", how)
        self._check_tensor("terminated()", failed, dimensions=1)
        if failed.dtype != torch.bool:
            raise self._wrong("terminated()", f"is {failed.dtype}, not torch.bool")

    def _check_tensor(self, what: str, value: Any, dimensions: int) -> None:
        wanted = f"({self.num_envs},)" if dimensions == 1 else f"({self.num_envs}, size)"
        if not isinstance(value, torch.Tensor):
            raise self._wrong(what, f"is {type(value).__name__}, not a tensor {wanted}")
        shape = tuple(value.shape)
        if len(shape) != dimensions or shape[0] != self.num_envs or 0 in shape:
            raise self._wrong(what, f"has shape {shape}, not {wanted}")
        if value.device.type != self.sim.device.type:
            raise self._wrong(what, f"is on {value.device}, not on {self.device}")

    def _wrong(self, what: str, how: str) -> UserError:
        return UserError(f"{type(self).__name__}.{what} {how}.")
