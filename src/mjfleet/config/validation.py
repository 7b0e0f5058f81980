"""Rules for configuration values, and the message for a value that breaks one."""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from inspect import get_annotations
from typing import Annotated, Any, ClassVar, cast

from mjfleet.config.field_kinds import Kind
from mjfleet.errors import UserError

SHOWN_CHARS = 200  # Characters of a wrong value that a message shows.


@dataclass(frozen=True)
class Rule:
    """A condition for a value, and its description in messages."""

    holds: Callable[[Any], bool]
    allowed: str


MAX_COUNT = 2**31 - 1  # The largest value of a count.
MAX_SECONDS = 10**9  # Seconds: 31 years.


def at_least(low: float) -> Rule:
    """Accept finite numbers not below `low`."""
    return Rule(lambda v: low <= v < math.inf, f"at least {low}")


def between(low: float, high: float) -> Rule:
    """Accept numbers from `low` to `high`, both included."""
    return Rule(lambda v: low <= v <= high, f"between {low} and {high}")


def optional(rule: Rule) -> Rule:
    """Accept None and what `rule` accepts."""
    return Rule(lambda v: v is None or rule.holds(v), f"{rule.allowed}, or None")


FOLDER_NAME = Rule(
    lambda v: (
        v.isprintable() and v == v.strip() and v not in (".", "..") and not {*v} & {*'/\\:*?"<>|'}
        and len(v.encode()) <= 100
    ),
    'a plain folder name (at most 100 bytes, no slashes, none of :*?"<>|, no space around it)',
)  # fmt: skip
COUNT = Rule(lambda v: 1 <= v <= MAX_COUNT, f"at least 1, at most {MAX_COUNT}")
NUMBER = Rule(lambda v: not (isinstance(v, float) and math.isnan(v)), "a number")
Count = Annotated[int, COUNT]
OptionalCount = Annotated[int | None, optional(COUNT)]
Positive = Annotated[float, Rule(lambda v: 0 < v < math.inf, "greater than 0 and finite")]
NotNegative = Annotated[float, at_least(0)]
Seconds = Annotated[
    float, Rule(lambda v: 0 < v <= MAX_SECONDS, f"greater than 0, at most {MAX_SECONDS}")
]
Fraction = Annotated[float, between(0, 1)]
ORDERED = Rule(
    lambda v: -math.inf < v[0] <= v[1] < math.inf, "two finite numbers, the lower one first"
)
Range = Annotated[tuple[float, float], ORDERED]
PositiveRange = Annotated[Range, Rule(lambda v: v[0] > 0, "two numbers above 0")]
FolderName = Annotated[str, FOLDER_NAME]


def is_class_path(value: object) -> bool:
    """Return whether a value is a text of the form `module:Class`, such as `robots.nets:Actor`."""
    if not isinstance(value, str):
        return False
    module, colon, name = value.partition(":")
    return bool(colon) and all(part.isidentifier() for part in (*module.split("."), name))


def class_or(*names: str) -> Rule:
    """Accept these names, and `module:Class`."""
    own = "`module:Class` of the task folder or of an installed package"
    return Rule(lambda v: v in names or is_class_path(v), " or ".join((*names, own)))


NAME = Rule(lambda v: v.strip() != "", "the name of a file, run, clip, camera or host, not empty")
Name = Annotated[str, NAME]
OptionalName = Annotated[str | None, optional(NAME)]
FOLDER = Rule(lambda v: v.strip() != "" and "\0" not in v, "the name of a folder")
Folder = Annotated[str, FOLDER, Kind.PLACEMENT]
OptionalFolder = Annotated[str | None, optional(FOLDER), Kind.PLACEMENT]
PathText = Annotated[str | None, optional(NAME), Kind.PLACEMENT]
LayerSizes = Annotated[
    tuple[int, ...],
    Rule(
        lambda v: len(v) > 0 and all(size == -1 or 0 < size <= MAX_COUNT for size in v),
        "one or more positive layer sizes (-1: the size of the input)",
    ),
]


class Checked:
    """A dataclass whose fields are flags, each with the rules in its annotation.

    `class EnvConfig(Checked, flags="env.")` names the prefix of the flags. Rules also hold where a
    subclass declares the field again.

    Raises:
        UserError: a value breaks a rule; of a class, a field's name begins with `no_`.
    """

    flags: ClassVar[str] = ""

    def __init_subclass__(cls, flags: str | None = None) -> None:
        # In a file with `from __future__ import annotations` they are texts, which have no rules.
        cls.__annotations__ = get_annotations(cls, eval_str=True)
        for name in cls.__annotations__:
            if name.startswith("no_"):
                text = "a name must not begin with `no_`, as flags that turn others off do"
                raise UserError(f"{cls.__name__}.{name}: {text}.")
        if flags is not None:
            cls.flags = flags

    def __post_init__(self) -> None:
        names = {field.name for field in fields(cast(Any, self))}
        for owner in type(self).__mro__:
            hints = get_annotations(owner)
            if hints and is_dataclass(owner) and "__dataclass_fields__" not in vars(owner):
                text = "@dataclass(frozen=True, kw_only=True), or its values do not count"
                raise UserError(f"{owner.__name__} needs {text}.")
            for name in names & vars(owner).keys() - hints.keys():
                text = f"a type, `{name}: ... = ...`, or it does not count"
                raise UserError(f"{owner.__name__}.{name} needs {text}.")
            for name, hint in hints.items():
                if isinstance(hint, type) and is_dataclass(hint):
                    must = Rule(lambda v, kind=hint: isinstance(v, kind), f"{hint.__name__}(...)")
                    check(self, **{name: must})
                for rule in getattr(hint, "__metadata__", ()):
                    if isinstance(rule, Rule):
                        check(self, **{name: rule})
        check(self, **{field.name: NUMBER for field in fields(cast(Any, self))})


def check_kind(what: str, value: object, kinds: type | tuple[type, ...], allowed: str) -> None:
    """Raise UserError, which calls the value `what`, if it is of none of these types."""
    if not isinstance(value, kinds) or isinstance(value, bool):
        raise UserError(f"{what} is {value!r}; it must be {allowed}.")


def check(owner: Any, **rules: Rule) -> None:
    """Raise UserError for the first field of `owner` that breaks its rule.

    `owner.flags` is the prefix of its fields' flags: "env." for `--env.num-envs`.
    """
    for name, rule in rules.items():
        value, flag = getattr(owner, name), f"{owner.flags}{name}".replace("_", "-")
        try:
            holds = rule.holds(value)
        # The type is wrong, such as a number for a range, or a class for its name.
        except (TypeError, LookupError, AttributeError):
            holds = False
        if not holds:
            shown = repr(value)
            if len(shown) > SHOWN_CHARS:
                shown = f"{shown[:SHOWN_CHARS]}..."
            raise UserError(f"--{flag} is {shown}; it must be {rule.allowed}.")
