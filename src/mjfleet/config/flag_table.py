"""Lists the flags of a command, from its dataclass. Imports nothing heavy, and no parser."""

import ast
import inspect
import textwrap
import types
from collections.abc import Iterator
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from enum import EnumType
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from mjfleet.config.field_kinds import SHORT


@dataclass(frozen=True)
class Flag:
    """A field of a dataclass, or of one inside it, as a flag."""

    name: str  # Without dashes: agent.max-iterations.
    group: str  # The same without its last part: "agent.", or "".
    owner: type[Any]  # The dataclass that declares it.
    field: Field[Any]
    hint: Any  # Its type, with annotations.
    default: Any  # MISSING: it has to be given.

    @property
    def text(self) -> str:
        """Return the string below the field, in one line."""
        return field_texts(self.owner).get(self.field.name.rstrip("_"), "")

    @property
    def names(self) -> list[str]:
        """Return its name, and its short name if it has one."""
        return [self.name, *short_names(self.owner, self.field.name)]

    @property
    def is_switch(self) -> bool:
        """Whether it has a negative form instead of a value."""
        return _plain(self.hint) is bool

    @property
    def off(self) -> str:
        """Return the negative form of a switch, such as agent.no-tf32."""
        return f"{self.group}no-{self.name.removeprefix(self.group)}"

    @property
    def item(self) -> Any:
        """Return the type of a list's items, or None if it is no list."""
        for option in (_plain(self.hint), *get_args(_plain(self.hint))):
            if get_origin(option) in (list, tuple):
                return get_args(option)[0]
        return None

    @property
    def choices(self) -> list[str]:
        """Return the words that it may have as values."""
        options = [_plain(self.hint)]
        for option in options:
            if get_origin(option) in (Union, types.UnionType, list, tuple):
                options += get_args(option)
        words = [word for o in options if get_origin(o) is Literal for word in get_args(o)]
        words += [name for o in options if isinstance(o, EnumType) for name in o.__members__]
        return [str(word) for word in words] + ["None"] * bool(words and type(None) in options)


def flags_of(kind: type[Any], default: Any = None, group: str = "") -> Iterator[Flag]:
    """Yield the flags of a dataclass in the order of its fields; nested ones come last.

    `default` is an instance, which may be of a subclass. Without one, the fields' own defaults
    count. An optional dataclass has flags where the default sets it.
    """
    kind = kind if default is None else type(default)
    hints, nested = get_type_hints(kind, include_extras=True), []
    for field in fields(kind):
        if default is not None:
            value = getattr(default, field.name)
        else:
            make = field.default_factory
            value = field.default if make is MISSING else make()
        # A field that would be called like a word of Python ends in `_`.
        name = group + field.name.rstrip("_").replace("_", "-")
        if is_dataclass(value):
            nested.append((type(value), value, name + "."))
        elif not any(map(is_dataclass, get_args(_plain(hints[field.name])))):
            yield Flag(name, group, kind, field, hints[field.name], value)
    for inner in nested:
        yield from flags_of(*inner)


def short_names(owner: type[Any], field: str) -> list[str]:
    """Return the short name of a dataclass's field as a flag, such as `seed`, or none."""
    name = SHORT.get(f"{getattr(owner, 'flags', '')}{field}")
    return [name.replace("_", "-")] if name else []


def as_words(name: str, value: Any) -> list[str]:
    """Return the words that give a field, by its dotted name, a value."""
    group, _, last = name.replace("_", "-").rpartition(".")
    group = f"--{group}." if group else "--"
    if isinstance(value, bool):
        return [f"{group}{last}" if value else f"{group}no-{last}"]
    if isinstance(value, (list, tuple)):
        return [f"{group}{last}", *map(str, value)]
    return [f"{group}{last}={value}"]


@cache
def field_texts(kind: type[Any]) -> dict[str, str]:
    """Return the string below each field in the source of a dataclass and its bases, one line."""
    found = {}
    for owner in reversed(kind.__mro__[:-1]):
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
        assert isinstance(body, ast.ClassDef)
        for field, text in zip(body.body, body.body[1:], strict=False):
            match field, text:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(words))),
                ):
                    found[name.rstrip("_")] = " ".join(words.split())
    return found


def _plain(hint: Any) -> Any:
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint
