"""What an environment remembers: the part of Env that a task's `setup` declares its state with."""

from collections.abc import Callable, Sequence
from itertools import chain, count
from typing import Any

import torch
from tensordict import TensorDict

from mjfleet.env.contract import C, EnvContract
from mjfleet.env.state import Reset, States
from mjfleet.env.undeclared import Look, address
from mjfleet.errors import UserError

CHECKED = ("qpos", "qvel", "act", "ctrl", "mocap_pos", "mocap_quat")
"""Fields of the simulation that must be finite where an episode begins."""

LATER = frozenset({
    "reward_names", "metric_names", "terms", "measured", "_term_sums", "_totals", "_steps",
    "_of_framework", "recorder", "before_reset", "on_nan", "command_override",
})  # fmt: skip
"""Attributes of the framework that are set after `setup`."""


class StatefulEnv(EnvContract[C]):
    """Declares state, restores it, and finds what is not declared."""

    generator: torch.Generator
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
            shared: whether it belongs to no single environment. Its size is then `size` alone.
            persistent: whether checkpoints hold it; not what each step computes anew.

        Returns:
            The tensor, `(num_envs, *size)`.

        Raises:
            UserError: it is called outside `setup` or twice, or an argument is not as above.
        """
        if self._is_set_up:
            raise UserError(
                f"{type(self).__name__}: add_state({name!r}) is called outside `setup`, where "
                "state is declared, and Delay, History, Timer and Levels are made."
            )
        if "." in name:
            names = chain([name], (f"{name}_{number}" for number in count(2)))
            name = next(one for one in names if self._states.get(one) is None)
        tensor = self._states.add(name, size, dtype, reset, start, shared, persistent)
        if "." not in name:
            object.__setattr__(self, name, tensor)
        return tensor

    def each_step(self, advance: Callable[[], object]) -> None:
        """Have a helper's function called at the end of each step, before `end_episode`."""
        self._timers.append(advance)

    def cache(self, *names: str) -> None:
        """Say of attributes that they may change and are no state: they follow from what is."""
        self._cached.update(names)

    def __setattr__(self, name: str, value: Any) -> None:
        # `self.level += 1` comes here too, with the tensor that it has been.
        states = self.__dict__.get("_states")
        state = states.get(name) if states else None
        if state is not None and value is not state:
            if name == "episode_length_buf":  # rsl_rl's runner replaces it.
                state.copy_(value)
                return
            raise AttributeError(
                f"{type(self).__name__}.{name} is state, which stays where it is: write it in "
                f"place, `self.{name}[...] = ...`."
            )
        object.__setattr__(self, name, value)

    def state_dict(self) -> dict[str, Any]:
        """Return copies of the environment's state, without the simulation's, for a checkpoint."""
        return {
            "states": self._states.state_dict(),
            "levels": [levels.now.clone() for levels in self.curricula],
            "observations": {k: v.clone() for k, v in self._observations.items()},
            "generator": self.generator.get_state(),
            "undeclared": self.undeclared(),
        }

    def load_state_dict(self, saved: dict[str, Any]) -> list[str]:
        """Restore what `state_dict` has returned for as many environments; return what is lost."""
        lost = self._states.load_state_dict(saved["states"])
        observed = self._observations.clone()  # The caller may keep the earlier ones.
        self._observations = observed.update_(saved["observations"])
        self.generator.set_state(saved["generator"].cpu())
        why = dict.fromkeys(saved["undeclared"], "was not declared, and begins anew")
        why = dict.fromkeys(lost, "has another shape now") | why
        return [f"{name} of the environment, which {text}" for name, text in why.items()]

    def begin_from(self, saved: dict[str, Any], levels: Sequence[Sequence[torch.Tensor]]) -> None:
        """Take over, before a reset, the shared state that `state_dict` has returned.

        The levels of a curriculum are drawn from `levels`, one list for each worker.
        """
        self._states.load_state_dict(saved["states"], only_shared=True)
        for own, *others in zip(self.curricula, *levels, strict=False):
            own.draw_from(torch.cat(others))

    def keep(self) -> Callable[[], None]:
        """Return a function that restores declared state, observations and generator of now."""
        generator, observations = self.generator.get_state(), self._observations
        buffers = [(one, one.clone()) for one in self._states.buffers()]

        def restore() -> None:
            for buffer, before in buffers:
                buffer.copy_(before)
            self._observations = observations
            self.generator.set_state(generator)

        return restore

    def take_over(self, source: torch.Tensor) -> None:
        """Give each environment the state of another one, `source` `(num_envs,)`, long."""
        for field in (field for name, field in self.sim.state().items() if name != "room"):
            field.copy_(field.index_select(0, source))
        self.sim.forward()
        self._states.take_over(source)
        self._observations = self._observations[source]

    def undeclared(self) -> list[str]:
        """Return the names of attributes that have changed, and are not declared."""
        return self._look.changed(self._own(), self._known_memory())

    def check_undeclared(self) -> None:
        """Raise UserError for the first attribute that has changed, and is not declared."""
        for name in self.undeclared()[:1]:
            raise UserError(self.say_undeclared(name))

    def say_undeclared(self, name: str) -> str:
        """Return a message about an attribute that changes, with the line to write."""
        return (
            f"{type(self).__name__}.{name} changes in a step, and is not declared. If it is to be "
            f"remembered, write `self.{name} = self.add_state({name!r}, ...)` in `setup`, and "
            f"change it in place. If it follows from other state, write `self.cache({name!r})`."
        )

    def unseen(self) -> list[str]:
        """Return the task's attributes of types that `undeclared` does not look at."""
        kinds = {name: type(value).__module__ for name, value in self._own().items()}
        return [n for n in self._look.unseen() if not kinds.get(n, "").startswith("mjfleet.")]

    def _begin_state(self) -> None:
        """Declare nothing yet."""
        self._states, self._is_set_up = States(self.num_envs, self.sim.device), False
        self._timers: list[Callable[[], object]] = []
        self._cached: set[str] = set()
        self._look, self._observations = Look({}), TensorDict()
        self.curricula: list[Any] = []
        """Each `Levels` of the task, in the order of their making."""

    def _set_up(self) -> None:
        """Call the task's `setup`. What is there already is the framework's."""
        self._of_framework = frozenset(vars(self)) | LATER
        self.setup()
        self._is_set_up = True
        self._look = Look(self._own(), self._known_memory())

    def _check_finite(self) -> None:
        """Raise UserError if a first state is not finite."""
        fields = {f"sim.{name}": getattr(self.sim, name) for name in CHECKED}
        for name, tensor in (fields | self._states.of_envs | self._states.shared).items():
            if not tensor.isfinite().all():
                raise UserError(
                    f"{type(self).__name__}: self.{name} is not finite where episodes begin; look "
                    "at what add_state and reset_worlds() write."
                )

    def _known_memory(self) -> set[int]:
        """Return where tensors are that may change: the simulation's, the framework's, state."""
        known = [getattr(self, name, None) for name in self._of_framework]
        known += [*vars(self.sim).values(), *self.sim.expanded.values(), *self._states.buffers()]
        return {address(one) for one in known if isinstance(one, torch.Tensor)}

    def _own(self) -> dict[str, Any]:
        """Return the attributes that the task has made."""
        exempt = self._of_framework | self._cached
        return {name: value for name, value in vars(self).items() if name not in exempt}
