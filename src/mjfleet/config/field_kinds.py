"""What a field of a configuration is: a marker in its `Annotated`, where it is declared.

A field without a marker decides what is learned, as a task's own fields do: any file may set it,
and a run that is resumed with another value becomes one of its own.
"""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, get_args, get_type_hints


class Kind(Enum):
    """A marker of a field."""

    PLACEMENT = "where, as whom and with whose tasks a run is trained"
    """A file does not set it, unless this installation's note of the run has the same value. A run
    that is resumed with another value continues in place, as with OPERATION."""
    SOURCE = "a file that is learned from"
    """A file does not set it, as with PLACEMENT, and it decides what is learned."""
    CODE = "a class that is learned with, if it is `module:Class`"
    """A file sets it to a class of the task; to others as with SOURCE."""
    OPERATION = "how long, on what and how exactly the same is computed; what is logged and kept"
    NAME = "what a run is called"
    """A run that is resumed with another value becomes one of its own."""


SHORT = {
    "env.num_envs": "num_envs",
    "agent.seed": "seed",
    "agent.max_iterations": "max_iterations",
    "agent.run_name": "run_name",
}
"""Fields whose flags also have a short name: `--seed` is `--agent.seed`."""


def kinds_in(config: type[Any], prefix: str = "") -> Iterator[tuple[str, Kind | None]]:
    """Yield the dotted name of each field of a dataclass, nested ones included, and its kind."""
    hints = get_type_hints(config, include_extras=True)
    for field in fields(config):
        hint, name = hints[field.name], prefix + field.name
        types = [one for one in (hint, *get_args(hint)) if isinstance(one, type)]
        if nested := [one for one in types if is_dataclass(one)]:
            yield from kinds_in(nested[0], f"{name}.")
        else:
            markers = getattr(hint, "__metadata__", ())
            yield name, next((one for one in markers if isinstance(one, Kind)), None)
