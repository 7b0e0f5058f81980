"""Rules for configuration values, and the message for a value that breaks one."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mjfleet.errors import UserError


@dataclass(frozen=True)
class Rule:
    """A condition for a value, and its description in messages."""

    holds: Callable[[Any], bool]
    allowed: str


def at_least(low: float) -> Rule:
    """Accept finite numbers not below `low`."""
    return Rule(lambda v: low <= v < math.inf, f"at least {low}")


def above(low: float) -> Rule:
    """Accept finite numbers greater than `low`."""
    return Rule(lambda v: low < v < math.inf, f"greater than {low} and finite")


def between(low: float, high: float) -> Rule:
    """Accept numbers from `low` to `high`, both included."""
    return Rule(lambda v: low <= v <= high, f"between {low} and {high}")


def optional(rule: Rule) -> Rule:
    """Accept None and what `rule` accepts."""
    return Rule(lambda v: v is None or rule.holds(v), f"{rule.allowed}, or None")


LAYER_SIZES = Rule(
    lambda v: len(v) > 0 and all(size == -1 or size > 0 for size in v),
    "one or more positive layer sizes (-1: the size of the input)",
)
FOLDER_NAME = Rule(
    lambda v: (
        v not in (".", "..")
        and not set(v) & set('/\\\0\n:*?"<>|')
        and v == v.strip()
        and len(v) <= 100
    ),
    'a plain folder name (at most 100 letters, no slashes, none of :*?"<>|, no space around it)',
)


def flag(name: str) -> str:
    """Return the flag of a field's dotted name: `env.num_envs` -> `--env.num-envs`."""
    return "--" + name.replace("_", "-")


def check(owner: Any, **rules: Rule) -> None:
    """Raise UserError for the first field of `owner` that breaks its rule.

    `owner.flags` is the prefix of its fields' flags: "env." for `--env.num-envs`.
    """
    for name, rule in rules.items():
        value = getattr(owner, name)
        if not rule.holds(value):
            raise UserError(f"{flag(owner.flags + name)} is {value!r}; it must be {rule.allowed}.")
