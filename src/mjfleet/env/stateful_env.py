"""What an environment remembers and draws: the part of Env that the methods of a task use."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import torch
from tensordict import TensorDict

from mjfleet.env.contract import C, EnvContract
from mjfleet.env.env_shard import EnvShard
from mjfleet.env.state import Reset, States, write_where
from mjfleet.env.undeclared_changes import address, changes, look
from mjfleet.errors import UserError
from mjfleet.sim.deferred import Deferred

CHECKED = ("qpos", "qvel", "act", "ctrl", "mocap_pos", "mocap_quat")
"""Fields of the simulation that must be finite where an episode begins."""


class StatefulEnv(EnvContract[C]):
    """Declares state, writes it, draws random numbers, and finds what is not declared."""

    generator: torch.Generator
    shard: EnvShard | None
    group_size: int
    step_count: int
    _observations: TensorDict

    def add_state(
        self,
        name: str,
        *size: int,
        dtype: torch.dtype = torch.float32,
        reset: Reset = 0.0,
        start: torch.Tensor | float | None = None,
        shared: bool = False,
        persistent: bool = True,
        reduce: Literal["sum"] | None = None,
    ) -> torch.Tensor:
        """Declare what the environment changes and must remember; call it in `setup`.

        Checkpoints hold it, resets fill it, and the environments of a GRPO group take it over. It
        is written in place: `self.name[:] = ...`, `self.name += ...`.

        Args:
            name: of the attribute that holds it. One with a dot belongs to a helper: it sets no
                attribute, and gets a number if another helper has it.
            size: of the state in each environment; none: one number.
            dtype: torch's.
            reset: what an episode begins with: a value; "keep"; or a function of the mask
                `(num_envs,)` that returns `(num_envs, *size)`, which counts where the mask is true.
            start: what it is at first, `(num_envs, *size)` or a number; None: what a reset writes.
            shared: whether it belongs to no single environment. Its size is then `size` alone, and
                no reset writes it.
            persistent: whether checkpoints hold it; not what each step computes anew.
            reduce: with `shared`, "sum": after each iteration, every worker has the value before
                it plus the sum of what each worker has added.

        Returns:
            The tensor, `(num_envs, *size)`.

        Raises:
            UserError: it is called outside `setup` or twice, the environment has something else of
                this name, or an argument is not as above.
        """
        if self._is_set_up:
            raise UserError(
                f"{type(self).__name__}: add_state({name!r}) is called outside `setup`, where "
                "state is declared, and Delay, History, Timer and Levels are made."
            )
        if hasattr(self, name) and name not in self._states.of_envs | self._states.shared:
            text = "the environment has something of this name; choose another"
            raise UserError(f"{type(self).__name__}: add_state({name!r}): {text}.")
        if "." in name:
            known = self._states.of_envs | self._states.shared
            same = [k for k in known if k == name or k.startswith(f"{name}_")]
            name = f"{name}_{len(same) + 1}" if same else name
        tensor = self._states.add(name, size, dtype, reset, start, shared, persistent, reduce)
        if "." not in name:
            object.__setattr__(self, name, tensor)
        return tensor

    def each_step(self, advance: Callable[[], object], after_physics: bool = False) -> None:
        """Call a helper's function at the end of each step, before `end_episode`; or with
        `after_physics`, before the task's own `after_physics`."""
        (self._readers if after_physics else self._timers).append(advance)

    def each_reset(self, begin: Callable[[torch.Tensor], object]) -> None:
        """Call a helper's function of the mask at each reset, before `reset_worlds`."""
        self._resets.append(begin)

    def each_iteration(self, follow: Callable[[], object]) -> None:
        """Call a helper's function after each iteration, once state with `reduce` has been summed
        over all workers. Only training has iterations."""
        self._iterations.append(follow)

    def cache(self, *names: str) -> None:
        """Exempt attributes from the declaration: they can be computed from other state."""
        self._cached.update(names)

    def __setattr__(self, name: str, value: Any) -> None:
        # `self.level += 1` comes here too, with the tensor that it has been.
        states = self.__dict__.get("_states")
        state = (states.of_envs | states.shared).get(name) if states else None
        if state is not None and value is not state:
            if name == "episode_length_buf":  # rsl_rl's runner replaces it.
                state.copy_(value)
                return
            raise AttributeError(
                f"{type(self).__name__}.{name} is state, which stays where it is: write it in "
                f"place, `self.{name}[...] = ...`."
            )
        object.__setattr__(self, name, value)

    def write(self, mask: torch.Tensor, target: torch.Tensor, values: torch.Tensor | float) -> None:
        """Write `values` into `target` where `mask` `(num_envs,)` is true; both `(num_envs, ...)`,
        or a number.

        It is `target[mask] = values[mask]`, without waiting for the device.
        """
        write_where(mask, target, values)

    def uniform(
        self, size: int, low: float | torch.Tensor, high: float | torch.Tensor
    ) -> torch.Tensor:
        """Return random numbers `(num_envs, size)` in [low, high) from this worker's generator.

        `low` and `high` are numbers, or both tensors `(size,)`: a range for each column.
        """
        if isinstance(low, torch.Tensor) and isinstance(high, torch.Tensor):
            return torch.lerp(low.float(), high.float(), self.uniform(size, 0.0, 1.0))
        return self._draw(size, torch.float32, torch.Tensor.uniform_, low, high)

    def normal(self, size: int, deviation: float = 1.0) -> torch.Tensor:
        """Return normal numbers `(num_envs, size)` of mean 0 from this worker's generator."""
        return self._draw(size, torch.float32, torch.Tensor.normal_, 0.0, deviation)

    def integers(self, size: int, low: int, high: int) -> torch.Tensor:
        """Return random integers `(num_envs, size)`, long, from `low` to `high` - 1, from this
        worker's generator."""
        return self._draw(size, torch.long, torch.Tensor.random_, low, high)

    def _draw(
        self, size: int, dtype: torch.dtype, fill: Callable[..., torch.Tensor], *limits: Any
    ) -> torch.Tensor:
        """Return random numbers `(num_envs, size)`. Skips those of other workers' environments."""
        shard = self.shard
        count = shard.total if shard else self.num_envs // self.group_size
        empty = torch.empty(count, size, dtype=dtype, device=self.device)
        drawn = fill(empty, *limits, generator=self.generator)
        if self.group_size > 1:
            return drawn.repeat_interleave(self.group_size, dim=0)
        return drawn[shard.first : shard.first + shard.count] if shard else drawn

    def state_dict(self) -> dict[str, Any]:
        """Return copies of the environment's state, without the simulation's, for a checkpoint."""
        return {
            "states": self._states.state_dict(),
            "levels": [levels.now.clone() for levels in self.curricula],
            "observations": {k: v.clone() for k, v in self._observations.items()},
            "generator": self.generator.get_state(),
            "step_count": self.step_count,
            "undeclared": [*self.undeclared()],
        }

    def deferred_additions(self) -> Deferred[list[float]]:
        """Return this worker's additions to state with `reduce` since `end_iteration`."""
        return Deferred(self._states.added(), list)

    def end_iteration(self, added: Sequence[float]) -> None:
        """Add the sums over all workers of what `deferred_additions` has returned."""
        self._states.add_up(added)
        for follow in self._iterations:
            follow()
        self._states.begin_sums()

    def declares(self, saved: dict[str, Any]) -> bool:
        """Return whether a `state_dict` has the state that this environment declares."""
        return saved.get("states", {}).get("sizes") == self._states.sizes()

    def load_state_dict(self, saved: dict[str, Any]) -> list[str]:
        """Restore what `state_dict` returned for as many environments; return what is lost."""
        self._states.load_state_dict(saved["states"])
        observed = self._observations.clone()  # The caller may keep the earlier ones.
        self._observations = observed.update_(saved["observations"])
        self.generator.set_state(saved["generator"].cpu())
        self.step_count = saved.get("step_count", 0)  # Earlier versions had none.
        why = "of the environment, which was not declared, and begins anew"
        return [f"{name} {why}" for name in saved["undeclared"]]

    def begin_from(self, saved: Sequence[dict[str, Any]]) -> None:
        """Take over, before a reset, shared state of what `state_dict` has returned on each worker.

        The levels of a curriculum are drawn from those that were reached. Earlier versions had
        neither.
        """
        self._states.load_shared(saved[0].get("states", {}))
        levels = [of_worker.get("levels", []) for of_worker in saved]
        for own, *others in zip(self.curricula, *levels, strict=False):
            own.draw_from(torch.cat(others))

    def keep(self) -> Callable[[], None]:
        """Return a function that restores declared state, observations and the random generator as
        they are now."""
        generator, observations = self.generator.get_state(), self._observations
        step_count = self.step_count
        buffers = [(one, one.clone()) for one in self._states.buffers()]

        def restore() -> None:
            for buffer, before in buffers:
                buffer.copy_(before)
            self._observations, self.step_count = observations, step_count
            self.generator.set_state(generator)

        return restore

    def take_over(self, source: torch.Tensor) -> None:
        """Copy to each environment the state of environment `source` `(num_envs,)`, long."""
        for field in (field for name, field in self.sim.state().items() if name != "room"):
            field.copy_(field.index_select(0, source))
        self.sim.forward()
        self._states.take_over(source)
        self._observations = self._observations[source]

    def undeclared(self) -> dict[str, str]:
        """Return a message, with the line to write, for each changed attribute that is not
        declared."""
        kind = type(self).__name__
        return {
            name: f"{kind}.{name} changes in a step, and is not declared. If it is to be "
            f"remembered, write `self.{name} = self.add_state({name!r}, ...)` in `setup`, and "
            f"change it in place. If it follows from other state, write `self.cache({name!r})`."
            for name in changes(self._look, self._look_now())
        }

    def check_undeclared(self) -> None:
        """Raise UserError if an attribute that is not declared has changed."""
        for message in self.undeclared().values():
            raise UserError(message)

    def unseen(self) -> list[str]:
        """Return the task's attributes of types that `undeclared` does not look at."""
        unseen = [name for name, found in self._look.items() if found is NotImplemented]
        return [n for n in unseen if not type(getattr(self, n)).__module__.startswith("mjfleet.")]

    def _begin_state(self) -> None:
        """Declare nothing yet."""
        self._states, self._is_set_up = States(self.num_envs, self.sim.device), False
        self._timers: list[Callable[[], object]] = []
        self._readers: list[Callable[[], object]] = []
        self._iterations: list[Callable[[], object]] = []
        self._resets: list[Callable[[torch.Tensor], object]] = []
        self._cached: set[str] = set()
        self._look: dict[str, Any] = {}
        self._observations = TensorDict()
        self.curricula: list[Any] = []
        """Each `Levels` of the task, in the order of their making."""
        self.variations: list[Any] = []
        """What each call of `mjfleet.parts.vary` varies."""
        self.policy_cameras: list[Any] = []
        """Each `mjfleet.parts.Camera` of the task, in the order of their making."""

    def _set_up(self, names: Iterable[str]) -> None:
        """Call the task's `setup`; attributes of these `names` are the framework's."""
        self._of_framework = {"_of_framework", *names}
        self.setup()
        self._is_set_up, self._look = True, self._look_now()

    def _look_now(self) -> dict[str, Any]:
        """Look at the attributes that the task has made.

        Tensors of the simulation, of the framework and of declared state may change.
        """
        known = [vars(self).get(name) for name in self._of_framework]
        known += [*vars(self.sim).values(), *self.sim.expanded.values(), *self._states.buffers()]
        owned = {address(one) for one in known if isinstance(one, torch.Tensor)}
        exempt = self._of_framework | self._cached
        return look({k: value for k, value in vars(self).items() if k not in exempt}, owned)

    def _check_finite(self) -> None:
        """Raise UserError if a first state is not finite."""
        fields = {f"sim.{name}": getattr(self.sim, name) for name in CHECKED}
        for name, tensor in (fields | self._states.of_envs | self._states.shared).items():
            if not tensor.isfinite().all():
                raise UserError(
                    f"{type(self).__name__}: self.{name} is not finite where episodes begin; look "
                    "at what add_state and reset_worlds() write."
                )
