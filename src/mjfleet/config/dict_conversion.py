"""Converts a configuration to plain data, for config.yaml and for workers, and back."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum, EnumType
from numbers import Number
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from mjfleet.errors import UserError

T = TypeVar("T")
WORDS = {
    int: "an integer",
    float: "a number",
    str: "text",
    bool: "true or false",
    Path: "the name of a file or folder",
    NoneType: "null",
}


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


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values that have names such as `agent.algorithm.gamma` as nested dictionaries."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        *parents, last = name.split(".")
        place = found
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = value
    return found


def value_at(data: Any, name: str, default: Any = None) -> Any:
    """Return what nested mappings hold under a dotted name, or the default where one is missing."""
    for part in name.split("."):
        if not isinstance(data, Mapping) or part not in data:
            return default
        data = data[part]
    return data


def plain(value: Any, name: str = "") -> Any:
    """Return a value, or a configuration, as `to_dict` returns the values of its fields.

    Messages call it by its `name`, if it has one, and what is in it by dotted names.
    """
    if is_dataclass(value) and not isinstance(value, type):
        return to_dict(value)
    if isinstance(value, Mapping):
        inside = f"{name}." if name else ""
        return {_plain_leaf(key, name): plain(value[key], f"{inside}{key}") for key in value}
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
        f"`{name or 'a value'}` holds {value!r}, a {type(value).__name__}; a configuration holds "
        "numbers, text, true or false, None, paths, enumerations, and lists, tuples, dicts and "
        "dataclasses of these."
    )


def from_dict(default: T, data: Mapping[str, Any]) -> T:
    """Return `default` with the values of `data`, which may be partial.

    Raises:
        UserError: a key is unknown or a value has the wrong type. Named by its dotted path.
    """
    return _build(type(default), default, data, "")


class _WrongTypeError(UserError):
    """A value does not fit its field's type."""


def _build(kind: type[T], default: T | None, data: Mapping[str, Any], path: str) -> T:
    declared = fields(kind)  # pyright: ignore[reportArgumentType]
    known = [f.name for f in declared]
    for key in data:
        if key not in known:
            names = by_dotted_name({} if default is None else to_dict(default))
            last = str(key).replace("-", "_")
            similar = " or ".join(f"`{path}{n}`" for n in names if n.rpartition(".")[2] == last)
            hint = f"did you mean {similar}?" if similar else f"known here: {', '.join(known)}."
            raise UserError(f"unknown key `{path}{key}`; {hint}")
    values = {} if default is None else {name: getattr(default, name) for name in known}
    hints = get_type_hints(kind)
    for key, value in data.items():
        values[key] = convert(hints[key], value, values.get(key), path + key)
    for f in declared:
        if f.name not in values and f.default is MISSING and f.default_factory is MISSING:
            raise UserError(f"`{path}{f.name}` is missing.")
    return kind(**values)


def convert(hint: Any, value: Any, default: Any, path: str) -> Any:
    """Convert plain data to the type `hint`; UserError, which calls it `path`, if it does not fit.

    A dictionary changes the fields of the `default`, if that is a dataclass.
    """
    for found in _fits(hint, value, default, path):
        return found
    raise _WrongTypeError(f"`{path}` is {value!r}; it must be {_words(hint)}.")


def _fits(hint: Any, value: Any, default: Any, path: str) -> Iterator[Any]:
    origin, args = get_origin(hint) or hint, get_args(hint)
    if origin in (Union, UnionType):
        # The name of an enumeration's member would also fit where text is allowed.
        for option in sorted(args, key=lambda option: not isinstance(option, EnumType)):
            try:
                yield convert(option, value, default, path)
            except _WrongTypeError:
                if is_dataclass(option) and isinstance(value, Mapping):
                    raise
    elif is_dataclass(hint) and isinstance(value, Mapping):
        # The class of the default may be a subclass of the declared one: a task's EnvConfig.
        kind = type(default) if is_dataclass(default) else cast(type[Any], hint)
        yield _build(kind, default, value, path + ".")
    elif origin in (dict, Mapping) and isinstance(value, Mapping):
        of_key, of_item = args or (Any, Any)
        yield {
            _convert_key(of_key, key, path): convert(of_item, item, None, f"{path}.{key}")
            for key, item in value.items()
        }
    elif origin in (list, tuple, Sequence):
        # As on the command line, one value alone means a list of one.
        items = value if isinstance(value, list) else [value]
        kinds = args if _is_fixed(origin, args) else (args[:1] or (Any,)) * len(items)
        if len(kinds) == len(items):
            pairs = zip(kinds, items, strict=True)
            made = list if origin is list else tuple
            yield made(convert(kind, item, None, path) for kind, item in pairs)
    else:
        yield from _fitting_leaf(hint, value)


def _fitting_leaf(hint: Any, value: Any) -> Iterator[Any]:
    """Yield a value that holds no others as the type `hint`; nothing if it is of another one."""
    if get_origin(hint) is Literal:
        for option in get_args(hint):
            if (type(value), value) == (type(plain(option)), plain(option)):
                yield option
    elif isinstance(hint, EnumType):
        if isinstance(value, str) and value in hint.__members__:
            yield hint[value]
    elif hint is Path:
        if isinstance(value, str):
            yield Path(value)
    elif hint is float:
        # YAML 1.1 reads a number such as 1e-3 as text.
        with suppress(ValueError, TypeError, OverflowError):
            if not isinstance(value, bool):
                yield float(value)
    elif hint is Any or type(value) is hint:
        yield value


def _convert_key(hint: Any, key: Any, path: str) -> Any:
    """Return a mapping's key, which JSON may have turned into text."""
    with suppress(ValueError):
        if isinstance(key, str) and hint in (int, float):
            key = hint(key)
    return convert(hint, key, None, f"{path}, key")


def _is_fixed(origin: Any, args: tuple[Any, ...]) -> bool:
    return origin is tuple and bool(args) and args[-1] is not Ellipsis


def _words(hint: Any) -> str:
    origin, args = get_origin(hint) or hint, get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join(map(_words, args))
    if origin is Literal:
        return " or ".join(repr(plain(option)) for option in args)
    if isinstance(hint, EnumType):
        return " or ".join(map(repr, hint.__members__))
    if origin in (list, tuple, Sequence):
        many = f" of {len(args)}" if _is_fixed(origin, args) else ""
        return f"a list{many}" + (f", each item {_words(args[0])}" if args else "")
    return WORDS.get(hint, "a mapping")
