"""Tables of all flags of `train`, from the configuration dataclasses, for the site's reference.

A flag's text is the string below its field, the same that `train <task> --help` prints.
"""

import types
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from mjfleet.config import AgentConfig, EnvConfig, LaunchConfig
from mjfleet.config.flags import field_texts

TYPES = {int: "integer", float: "number", str: "text", type(None): "`None`"}


def flag_tables() -> Iterator[str]:
    """Yield, for each group of flags, the lines of a heading and a table."""
    shown: dict[tuple[str, str], str] = {}
    yield from section(LaunchConfig, "", shown)
    yield from section(EnvConfig, "env.", shown)
    yield from section(AgentConfig, "agent.", shown)


def section(
    group: type[Any], prefix: str, shown: dict[tuple[str, str], str], remark: str = ""
) -> Iterator[str]:
    """Yield the table of one dataclass, then those of the dataclasses nested in it.

    `shown` has, by name and text, the group of flags in which a field has its row already.
    """
    title = f"`--{flag_name(prefix)}*`" if prefix else "Flags that every task shares"
    intro = one_line(f"{group.__doc__} {remark}")
    yield from (f"## {title}", "", intro, "")
    docs, hints = field_texts(group), get_type_hints(group)
    rows, before = list[str](), dict[str, list[str]]()
    nested: list[tuple[type[Any], str, str]] = []
    for field in fields(group):
        hint, name, doc = hints[field.name], prefix + field.name + ".", docs[field.name]
        optional = [option for option in get_args(hint) if is_group(option)]
        if is_group(hint):
            nested.append((hint, name, ""))
        elif optional:
            nested.append((optional[0], name, "Unset unless a task or a file sets it."))
        elif (first := shown.setdefault((field.name, doc), prefix)) != prefix:
            before.setdefault(first, []).append(f"`{flag_name(field.name)}`")
        else:
            cells = (flags(prefix, field, hint), values(hint), default(field))
            rows.append("| " + " | ".join((*cells, doc.replace("|", "\\|"))) + " |")
    if rows:
        yield from ("| flag | value | default | meaning |", "|---|---|---|---|", *rows, "")
    for first, names in before.items():
        yield from (f"As those of `--{flag_name(first)}*`: {', '.join(names)}.", "")
    for kind, name, note in nested:
        yield from section(kind, name, shown, note)


def is_group(kind: Any) -> bool:
    """Return whether a type is a nested configuration, whose fields are flags of their own."""
    return isinstance(kind, type) and is_dataclass(kind)


def flag_name(name: str) -> str:
    """Return `env.num_envs` as it is typed: `env.num-envs`."""
    return name.replace("_", "-")


def flags(prefix: str, field: Field[Any], hint: Any) -> str:
    """Return a field's flag; of a bool, the one that switches it on and the one that does not."""
    prefixes = ("", "no-") if hint is bool else ("",)
    return ", ".join(f"`--{flag_name(prefix + no + field.name)}`" for no in prefixes)


def values(hint: Any) -> str:
    """Return what a flag of this type takes, in words."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is bool:
        return ""
    if origin is Literal:
        return " or ".join(f"`{choice}`" for choice in arguments)
    if origin in (Union, types.UnionType):
        return " or ".join(values(option) for option in arguments)
    if origin is tuple and arguments[-1] is not Ellipsis:
        return " ".join(values(argument) for argument in arguments)
    if origin in (list, tuple):
        return f"{values(arguments[0])} ..."
    return TYPES[hint]


def default(field: Field[Any]) -> str:
    """Return a field's default as it would be typed."""
    if field.default is not MISSING:
        value = field.default
    elif field.default_factory is not MISSING:
        value = field.default_factory()
    else:
        return ""
    words = value if isinstance(value, (tuple, list)) else [value]
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"`{' '.join(str(word) for word in words)}`" if words and value != "" else "none"


def one_line(text: str) -> str:
    """Return a text without line breaks, which end a table's row."""
    return " ".join(text.split())
