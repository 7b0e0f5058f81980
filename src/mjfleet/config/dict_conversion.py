"""Converts a configuration to plain data, for config.yaml and for workers, and back."""

import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from mjfleet.errors import UserError

T = TypeVar("T")


def to_dict(config: Any) -> dict[str, Any]:
    """Return a configuration as nested dictionaries, lists and scalars, in the order of fields."""
    return {f.name: _plain(getattr(config, f.name)) for f in fields(config)}


def by_dotted_name(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of nested mappings by names such as `agent.algorithm.gamma`."""
    found: dict[str, Any] = {}
    for name, value in data.items():
        if isinstance(value, Mapping) and value:
            found |= by_dotted_name(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found


def value_at(data: Any, name: str, default: Any = None) -> Any:
    """Return what nested mappings hold under a dotted name, or the default where one is missing."""
    for part in name.split("."):
        if not isinstance(data, Mapping) or part not in data:
            return default
        data = data[part]
    return data


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return to_dict(value)
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def from_dict(default: T, data: Mapping[str, Any]) -> T:
    """Return `default` with the values of `data`, which may be partial.

    Raises:
        UserError: a key is unknown or a value has the wrong type. Named by its dotted path.
    """
    return _build(type(default), default, data, "")


def _build(kind: type[T], default: T | None, data: Mapping[str, Any], path: str) -> T:
    declared = fields(kind)  # pyright: ignore[reportArgumentType]
    known = [f.name for f in declared]
    for key in data:
        if key not in known:
            raise UserError(f"unknown key `{path}{key}`; known here: {', '.join(known)}.")
    values = {} if default is None else {name: getattr(default, name) for name in known}
    hints = get_type_hints(kind)
    for key, value in data.items():
        values[key] = _convert(hints[key], value, values.get(key), path + key)
    for f in declared:
        if f.name not in values and f.default is MISSING and f.default_factory is MISSING:
            raise UserError(f"`{path}{f.name}` is missing.")
    return kind(**values)


def _convert(hint: Any, value: Any, default: Any, path: str) -> Any:
    """Return `value` as the type `hint`. Nested configurations start from `default`."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        for option in args:
            try:
                return _convert(option, value, default, path)
            except _WrongTypeError:
                if is_dataclass(option) and isinstance(value, Mapping):
                    raise
    elif origin is Literal:
        if value in args and not isinstance(value, bool):
            return value
    elif is_dataclass(hint):
        if isinstance(value, Mapping):
            # The class of the default may be a subclass of the declared one: a task's EnvConfig.
            kind = type(default) if is_dataclass(default) else cast(type[Any], hint)
            return _build(kind, default, value, path + ".")
    elif origin in (list, tuple):
        # As on the command line, one value alone means a list of one.
        items = value if isinstance(value, (list, tuple)) else [value]
        fixed = origin is tuple and args[-1] is not Ellipsis
        if not fixed or len(args) == len(items):
            kinds = args if fixed else args[:1] * len(items)
            return origin(_convert(k, v, None, path) for k, v in zip(kinds, items, strict=True))
    elif _is_scalar(value, hint):
        return float(value) if hint is float else value
    raise _WrongTypeError(f"`{path}` is {value!r}; it must be {_words(hint)}.")


class _WrongTypeError(UserError):
    """A value does not fit its field's type."""


def _is_scalar(value: Any, hint: Any) -> bool:
    """Return whether `value` has the type `hint`. YAML 1.1 reads a number such as 1e-3 as text."""
    if isinstance(value, bool) or hint is bool:
        return isinstance(value, bool) and hint is bool
    if hint is not float:
        return isinstance(value, hint)
    try:
        return isinstance(value, (int, float, str)) and isinstance(float(value), float)
    except (ValueError, OverflowError):
        return False


def _words(hint: Any) -> str:
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(_words(option) for option in args)
    if origin is Literal:
        return " or ".join(repr(option) for option in args)
    if origin in (list, tuple):
        many = f" of {len(args)}" if origin is tuple and args[-1] is not Ellipsis else ""
        return f"a list{many}, each item {_words(args[0])}"
    if is_dataclass(hint):
        return "a mapping"
    plain = {int: "an integer", float: "a number", str: "text", bool: "true or false"}
    return plain.get(hint, "null")
