"""What an environment remembers: the part of Env that a task's `setup` declares its state with."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, count
from typing import Any, ClassVar

import torch
from tensordict import TensorDict

from mjfleet.env.contract import C, EnvContract
from mjfleet.env.state import Reset, StateBuffers
from mjfleet.env.undeclared import Look, address
from mjfleet.errors import UserError
from mjfleet.sim import Simulation

LATER = frozenset({
    "reward_names", "metric_names", "terms", "measured", "_term_sums", "_totals", "_observations",
    "_of_framework", "_look", "recorder", "before_reset", "on_nan", "command_override",
})  # fmt: skip
"""Attributes of the framework that are set after `setup`."""


class StatefulEnv(EnvContract[C]):
    """Declares state, restores it, and finds what is not declared."""

    helper_types: ClassVar[tuple[type, ...]] = (Simulation,)
    """Types whose objects hold declared state alone, or none."""
    generator: torch.Generator
    _observations: TensorDict

    def set_up(self) -> None:
        """Call the task's `setup`, in which alone state can be declared."""
        self._of_framework = frozenset(vars(self)) | LATER
        self.setup()
        self._is_set_up = True
        self._look = Look(self._own(), self._known_memory())

    def _begin_state(self) -> None:
        """Declare nothing yet."""
        self._states, self._is_set_up = StateBuffers(self.num_envs, self.sim.device), False
        self._timers: list[Callable[[], object]] = []
        self._cached: set[str] = set()
        self.curricula: list[Any] = []
        """Each `Levels` of the task, in the order of their making."""

    def add_state(
        self,
        name: str,
        *size: int,
        dtype: torch.dtype = torch.float32,
        reset: Reset = 0.0,
        start: torch.Tensor | float | None = None,
        shared: bool = False,
        persistent: bool = True,
    ) -> torch.Tensor:
        """Declare what the environment changes and must remember; call it in `setup`.

        Checkpoints hold it, resets fill it, and the environments of a GRPO group take it over. It
        is written in place: `self.name[:] = ...`, `self.name += ...`.

        Args:
            name: of the attribute that holds it; one with a dot, of a helper, sets none.
            size: of the state in each environment; none: one number.
            dtype: torch's.
            reset: what an episode begins with: a value; "keep"; or a function of the mask
                `(num_envs,)` that returns `(num_envs, *size)`, which counts where the mask is true.
            start: what it is at first, `(num_envs, *size)` or a number; None: what a reset writes.
            shared: whether it belongs to no single environment. Its size is then `size` alone.
            persistent: whether checkpoints hold it; not what each step computes anew.

        Returns:
            The tensor, `(num_envs, *size)`.

        Raises:
            UserError: it is called outside `setup` or twice, or an argument is not as above.
        """
        if self._is_set_up:
            raise UserError(f"add_state({name!r}) is called outside `setup`.")
        tensor = self._states.add(name, size, dtype, reset, start, shared, persistent)
        if "." not in name:
            object.__setattr__(self, name, tensor)
        return tensor

    def helper_name(self, kind: str) -> str:
        """Return a name for the state of a helper: `delay`, and `delay_2` for the next one."""
        taken = {name.partition(".")[0] for name in self._states.tensors}
        others = (f"{kind}_{number}" for number in count(2))
        return next(name for name in chain([kind], others) if name not in taken)

    def each_step(self, advance: Callable[[], object]) -> None:
        """Have a helper's function called at the end of each step, before `end_episode`."""
        self._timers.append(advance)

    def cache(self, *names: str) -> None:
        """Say of attributes that they may change and are no state: they follow from what is."""
        self._cached.update(names)

    def __setattr__(self, name: str, value: Any) -> None:
        # `self.level += 1` comes here too, with the tensor that it has been.
        states = self.__dict__.get("_states")
        if states and name in states.tensors and value is not states.tensors[name]:
            if name == "episode_length_buf":  # rsl_rl's runner replaces it.
                states.tensors[name].copy_(value)
                return
            raise AttributeError(
                f"{type(self).__name__}.{name} is state, which stays where it is: write it in "
                f"place, `self.{name}[...] = ...`."
            )
        object.__setattr__(self, name, value)

    def state_dict(self) -> dict[str, Any]:
        """Return copies of the environment's state, without the simulation's; see `add_state`."""
        return {
            "num_envs": self.num_envs,
            "states": self._states.state_dict(),
            "levels": [levels.now.clone() for levels in self.curricula],
            "observations": {k: v.clone() for k, v in self._observations.items()},
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, saved: dict[str, Any]) -> list[str]:
        """Restore what `state_dict` has returned for as many environments; return the names of
        states that are not in it."""
        lost = self._states.load_state_dict(saved["states"])
        for name, value in self._observations.items():  # The caller may keep the earlier ones.
            self._observations[name] = torch.empty_like(value).copy_(saved["observations"][name])
        self.generator.set_state(saved["generator"].cpu())
        return lost

    def begin_from(self, saved: dict[str, Any], levels: Sequence[Sequence[torch.Tensor]]) -> None:
        """Take over, before a reset, the shared state that `state_dict` has returned.

        The levels of a curriculum are drawn from `levels`, one list for each worker.
        """
        self._states.load_shared(saved["states"])
        for own, *others in zip(self.curricula, *levels, strict=False):
            own.draw_from(torch.cat(others))

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Restore, after the block, the declared state and the generator."""
        generator = self.generator.get_state()
        buffers = [(one, one.clone()) for one in self._states.buffers()]
        yield
        for buffer, before in buffers:
            buffer.copy_(before)
        self.generator.set_state(generator)

    def declared(self) -> dict[str, torch.Tensor]:
        """Return the state of the environments by name, without what they share."""
        shared = self._states.shared
        return {name: one for name, one in self._states.tensors.items() if name not in shared}

    def take_over(self, source: torch.Tensor) -> None:
        """Give each environment the state of another one, `source` `(num_envs,)`, long."""
        for field in (field for name, field in self.sim.state().items() if name != "room"):
            field.copy_(field.index_select(0, source))
        self.sim.forward()
        self._states.take_over(source)
        for name, group in self._observations.items():
            self._observations[name] = group.index_select(0, source)

    def undeclared(self) -> list[str]:
        """Return, of each attribute that has changed and is not declared, what to write instead."""
        return [
            f"{type(self).__name__}.{name} changes in a step, and is not declared. If it is to be "
            f"remembered, write `self.{name} = self.add_state({name!r}, ...)` in `setup`, and "
            f"change it in place. If it follows from other state, write `self.cache({name!r})`."
            for name in self._look.changed(self._own(), self._known_memory())
        ]

    def check_undeclared(self) -> None:
        """Raise UserError for the first attribute that has changed, and is not declared."""
        for text in self.undeclared()[:1]:
            raise UserError(text)

    def unseen(self) -> list[str]:
        """Return the task's attributes of types that `undeclared` does not look at."""
        own = self._own()
        return [n for n in self._look.unseen() if not isinstance(own.get(n), self.helper_types)]

    def _known_memory(self) -> set[int]:
        """Return where tensors are that may change: the simulation's, the framework's, state."""
        known = [getattr(self, name, None) for name in self._of_framework]
        known += [*vars(self.sim).values(), *self.sim.expanded.values(), *self._states.buffers()]
        return {address(one) for one in known if isinstance(one, torch.Tensor)}

    def _own(self) -> dict[str, Any]:
        """Return the attributes that the task has made."""
        exempt = self._of_framework | self._cached
        return {name: value for name, value in vars(self).items() if name not in exempt}
