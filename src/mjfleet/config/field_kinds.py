"""The fields of a configuration, and the kind of each: a marker in its `Annotated`.

A field without one decides what is learned: any file may set it, and a fork alone may change it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
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


@dataclass(frozen=True)
class Leaf:
    """A field of a dataclass, or of one inside it, that is no dataclass itself."""

    name: str  # Dotted: agent.max_iterations.
    owner: type[Any]  # The dataclass that has it.
    hint: Any  # Its type, with annotations.
    value: Any  # None without a default instance.

    @property
    def is_switch(self) -> bool:
        """Whether it is a `bool`, with or without annotations, whose flag has no value."""
        return bool in (self.hint, getattr(self.hint, "__origin__", None))

    @property
    def kind(self) -> Kind | None:
        markers = getattr(self.hint, "__metadata__", ())
        return next((one for one in markers if isinstance(one, Kind)), None)


def leaves(owner: type[Any], default: Any = None, prefix: str = "") -> Iterator[Leaf]:
    """Yield the fields of a dataclass.

    With a `default`, an instance that may be of a subclass, an optional dataclass is left out where
    it has none. Without, fields are those of the dataclass that is there by default.
    """
    owner = owner if default is None else type(default)
    hints = get_type_hints(owner, include_extras=True)
    for field in fields(owner):
        hint, name = hints[field.name], prefix + field.name
        value = None if default is None else getattr(default, field.name)
        types = [one for one in (hint, *get_args(hint)) if isinstance(one, type)]
        inner = [one for one in (field.default_factory, *types) if is_dataclass(one)]
        if not inner or not (value is None or is_dataclass(value)):  # Such as a dict of them.
            yield Leaf(name, owner, hint, value)
        elif default is None or value is not None:
            yield from leaves(inner[0], value, f"{name}.")
