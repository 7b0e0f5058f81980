"""Converts a configuration to plain data, for config.yaml and for workers, and back."""

import json
import types
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from numbers import Number
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from mjfleet.errors import UserError

T = TypeVar("T")
_MISFIT: Any = object()  # Instead of a value that does not fit its field's type.


def to_dict(config: Any) -> dict[str, Any]:
    """Return a configuration as nested dictionaries, lists and scalars, in the order of fields.

    A path becomes text, and a member of an enumeration its name, as on the command line.

    Raises:
        UserError: a value cannot be written as any of these.
    """
    return {f.name: plain(getattr(config, f.name), f.name) for f in fields(config)}


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


def plain(value: Any, name: str = "a value") -> Any:
    """Return a value, or a configuration, as `to_dict` returns the values of its fields."""
    if is_dataclass(value):
        return to_dict(value)
    if isinstance(value, Mapping) and not any(isinstance(key, tuple) for key in value):
        return {plain(key, name): plain(item, name) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, name) for item in value]
    return _plain_leaf(value, name)


def _plain_leaf(value: Any, name: str) -> Any:
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, Path):
        return str(value)
    for kind in (bool, int, float, str):  # A subclass, such as NumPy's float64, is no plain data.
        if isinstance(value, kind):
            return kind(value)
    if value is None:
        return None
    if isinstance(value, Number) and hasattr(value, "item"):
        return value.item()  # pyright: ignore[reportAttributeAccessIssue] # A number of NumPy's.
    raise UserError(
        f"`{name}` holds {value!r}, a {type(value).__name__}; a configuration holds numbers, text, "
        "true or false, None, paths, enumerations, and lists, tuples, dicts and dataclasses of "
        "these."
    )


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
    origin, args = get_origin(hint) or hint, get_args(hint)
    found = _MISFIT
    if origin in (Union, types.UnionType):
        found = _convert_option(args, value, default, path)
    elif is_dataclass(hint):
        if isinstance(value, Mapping):
            # The class of the default may be a subclass of the declared one: a task's EnvConfig.
            kind = type(default) if is_dataclass(default) else cast(type[Any], hint)
            found = _build(kind, default, value, path + ".")
    elif _is_subclass(origin, Mapping):
        if isinstance(value, Mapping):
            of_key, of_item = args or (Any, Any)
            found = {
                _convert_key(of_key, key, path): _convert(of_item, item, None, f"{path}.{key}")
                for key, item in value.items()
            }
    elif _is_list(origin):
        # As on the command line, one value alone means a list of one.
        items = value if isinstance(value, (list, tuple)) else [value]
        fixed = origin is tuple and args and args[-1] is not Ellipsis
        if not fixed or len(args) == len(items):
            kinds = args if fixed else (args[:1] or (Any,)) * len(items)
            converted = (_convert(k, v, None, path) for k, v in zip(kinds, items, strict=True))
            found = list(converted) if origin is list else tuple(converted)
    else:
        found = _convert_leaf(hint, value)
    if found is _MISFIT:
        raise _WrongTypeError(f"`{path}` is {value!r}; it must be {_words(hint)}.")
    return found


def _convert_option(options: Sequence[Any], value: Any, default: Any, path: str) -> Any:
    """Return `value` as the first of several types that it fits."""
    # The name of an enumeration's member would also fit where text is allowed.
    for option in sorted(options, key=lambda option: not _is_subclass(option, Enum)):
        try:
            return _convert(option, value, default, path)
        except _WrongTypeError:
            if is_dataclass(option) and isinstance(value, Mapping):
                raise
    return _MISFIT


def _convert_leaf(hint: Any, value: Any) -> Any:
    """Return a value that holds no others as the type `hint`."""
    if get_origin(hint) is Literal:
        options = [plain(option) for option in get_args(hint)]
        same = [one == value and type(one) is type(value) for one in options]
        return get_args(hint)[same.index(True)] if any(same) else _MISFIT
    if (is_enum := _is_subclass(hint, Enum)) or _is_subclass(hint, Path):
        if isinstance(value, hint) or not isinstance(value, str):
            return value if isinstance(value, hint) else _MISFIT
        return hint.__members__.get(value, _MISFIT) if is_enum else hint(value)
    if hint is not Any and not _is_scalar(value, hint):
        return _MISFIT
    return float(value) if hint is float else value


def _convert_key(hint: Any, key: Any, path: str) -> Any:
    """Return a key of a mapping. JSON has made text of a number."""
    try:
        return _convert(hint, key, None, f"{path}, key")
    except _WrongTypeError:
        with suppress(ValueError, TypeError):
            return _convert(hint, json.loads(key), None, f"{path}, key")
        raise


class _WrongTypeError(UserError):
    """A value does not fit its field's type."""


def _is_subclass(hint: Any, kind: type[Any]) -> bool:
    return isinstance(hint, type) and issubclass(hint, kind)


def _is_list(hint: Any) -> bool:
    return _is_subclass(hint, Sequence) and not issubclass(hint, str)


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
    origin, args = get_origin(hint) or hint, get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(_words(option) for option in args)
    if origin is Literal:
        return " or ".join(repr(plain(option)) for option in args)
    if _is_subclass(hint, Enum):
        return " or ".join(repr(name) for name in hint.__members__)
    if is_dataclass(hint) or _is_subclass(origin, Mapping):
        return "a mapping"
    if _is_list(origin):
        many = f" of {len(args)}" if origin is tuple and args and args[-1] is not Ellipsis else ""
        return f"a list{many}" + (f", each item {_words(args[0])}" if args else "")
    kinds = {int: "an integer", float: "a number", str: "text", bool: "true or false"}
    return {**kinds, Path: "the name of a file or folder"}.get(hint, "null")
