"""Parses the flags of every command. Runs in the process that the user started."""

import ast
import inspect
import re
import shlex
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from difflib import get_close_matches
from enum import EnumType
from functools import cache
from itertools import pairwise
from types import NoneType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import tyro

from mjfleet.config.field_kinds import Leaf, leaves
from mjfleet.errors import UserError

Arguments = TypeVar("Arguments")
PARSERS = tyro.constructors.ConstructorRegistry()
HELP = frozenset({"-h", "--help", "--help-all"})
LIST_FLAGS = "--list-flags"
"""Makes any command print its flags and the words that each may have, for completion."""
OTHER_STACKS = "docs/migrate.md says what replaces the flags of mjlab, Isaac Lab and others."
SHORT = {
    "env.num_envs": "num_envs",
    "agent.seed": "seed",
    "agent.max_iterations": "max_iterations",
    "agent.run_name": "run_name",
}
"""Fields whose flags also have a short name: `--seed` is `--agent.seed`."""
NEGATION = re.compile(r"(?<![^.])no_(?=[^.]*$)")
TRUTH = {"True": True, "False": False, "true": True, "false": False}
BLOCKS = "body", "orelse", "handlers", "finalbody"
"""Where a statement of Python holds others."""
MOST_LISTED = 12
"""How many flags the message about an unknown one lists at most; of more it names similar ones."""


def parse_flags(
    kind: type[Arguments],
    flags: Sequence[str],
    prog: str,
    default: Any = None,
    description: str | None = None,
) -> Arguments:
    """Parse flags into the dataclass `kind`, whose fields' docstrings are the help.

    `--help` and values of another type print a text and exit. `prog` is the command as the user
    types it, `default` an instance of `kind` for the flags that are not given.

    Raises:
        UserError: a flag is unknown, a value not allowed, or a field given two that differ.
    """
    _refuse_differing(flags)
    if LIST_FLAGS in flags:
        for leaf in _flags(kind, default):
            values = _allowed_values(leaf.hint)
            for name in flags_of(leaf.name):
                print(name, *values)
            if leaf.is_switch:
                print(*as_words(leaf.name, False))
        sys.exit()
    arguments = ["--help"] if HELP & set(flags) else _as_switches(kind, default, flags)
    try:
        parsed, unknown = tyro.cli(
            kind, prog=prog, description=description, args=arguments, default=default,
            registry=PARSERS, config=(tyro.conf.AvoidSubcommands,), return_unknown_args=True,
        )  # fmt: skip
    except SystemExit as end:
        if end.code and prog.startswith(("train ", "play ")):
            print(OTHER_STACKS, file=sys.stderr)
        raise
    if unknown:
        raise _unknown(kind, default, unknown, prog, flags)
    return parsed


def parse_known(
    kind: type[Arguments], flags: Sequence[str], prog: str | None = None, default: Any = None
) -> tuple[Arguments, list[str]]:
    """Parse the flags of `kind` that are among others; return them, and the other arguments.

    UserError as for `parse_flags`, also for fields of another kind that are given twice.
    """
    _refuse_differing(flags)
    return tyro.cli(
        kind, prog=prog, args=_as_switches(kind, default, flags), default=default,
        return_unknown_args=True, add_help=False, registry=PARSERS,
    )  # fmt: skip


def _flags(kind: type[Any], default: Any) -> Iterator[Leaf]:
    """Yield the fields that are flags, without positional arguments."""
    for leaf in leaves(kind, default):
        if not {*getattr(leaf.hint, "__metadata__", ())} & {*get_args(tyro.conf.Positional[str])}:
            yield leaf


def _switches(kind: type[Any], default: Any) -> dict[str, str]:
    """Return the fields of flags that are on or off, by the flags that turn them on."""
    switches = [leaf.name for leaf in leaves(kind, default) if leaf.is_switch]
    return {flag: name for name in switches for flag in flags_of(name)}


def _as_switches(kind: type[Any], default: Any, arguments: Sequence[str]) -> Sequence[str]:
    """Return the arguments with `--x` for `--x True`, and `--no-x` for `--x=False`."""
    if not any(word.rpartition("=")[2] in TRUTH for word in arguments):
        return arguments
    switches, written = _switches(kind, default), list[str]()
    for word in arguments:
        flag, equals, value = word.partition("=")
        if not equals:
            flag, value = (written or [""])[-1], word
        name = switches.get(flag.replace("_", "-"))
        if name and value in TRUTH:
            del written[len(written) - (not equals) :]
            written += as_words(name, TRUTH[value])
        else:
            written.append(word)
    return written


def _unknown(
    kind: type[Any], default: Any, unknown: Sequence[str], prog: str, flags: Sequence[str]
) -> UserError:
    """Return the message about arguments that are no flags of a command, nor values of any."""
    flag, chosen, decider = next((word for word in unknown if word.startswith("-")), ""), "", ""
    known = [one for leaf in _flags(kind, default) for one in flags_of(leaf.name)]
    arguments = [part for word in flags for part in word.split("=", 1)]
    before = {word: last for last, word in pairwise(("", *arguments))}.get(unknown[0], "")
    if not flag and before.replace("_", "-") in _switches(kind, default):
        text = f"{before} may be followed by True or False, not by `{unknown[0]}`."
    elif not flag:
        text = f"`{unknown[0]}` is one word too many."
    else:
        flag = flag.partition("=")[0].replace("_", "-")
        kinds = {flags_of(leaf.name)[0]: leaf.value for leaf in _flags(kind, default)}
        decider = f"{flag.rpartition('.')[0]}.name"
        chosen = f" with {decider} {kinds[decider]}" if decider in kinds else ""
        text = f"there is no flag {flag}{chosen}."
    usual = {one: leaf for leaf in leaves(kind) for one in flags_of(leaf.name)}
    if flag in usual:
        name = flag.removeprefix("--").rpartition(".")[0].replace("-", "_")
        how = f"if {name} is set, in the task's configuration or in a file"
        if chosen:
            how = f"with {decider} {usual[decider].owner.name}"
        text += f" There is one {how}."
    elif len(known) <= MOST_LISTED:
        text += f" Flags: {', '.join(known)}."
    elif flag:
        last = flag.rpartition(".")[2].removeprefix("--")
        near = [one for one in known if one.rpartition(".")[2].removeprefix("--") == last]
        near = near or get_close_matches(flag, known)
        text += f" Similar: {', '.join(near)}." * bool(near)
    more = f" {OTHER_STACKS}" if prog.startswith(("train ", "play ")) else ""
    return UserError(f"{prog}: {text} `{prog} --help` says more.{more}")


def typed_fields(arguments: Sequence[str]) -> frozenset[str]:
    """Return the dotted names of the fields that flags give, also by `--group.no-name`."""
    return frozenset(name for name, _ in _by_field(arguments) if name)


def typed_text(arguments: Sequence[str], name: str) -> str | None:
    """Return the text that flags give the field with this dotted name; None: they give none."""
    found = [part for field, part in _by_field(arguments) if field == name]
    value = _values(found[-1])[-1] if found else None
    return value if isinstance(value, str) else None


def without_fields(arguments: Sequence[str], names: Collection[str]) -> list[str]:
    """Return the arguments without the flags, and their values, of the fields with these dotted
    names."""
    parts = [part for name, part in _by_field(arguments) if name not in names]
    return [word for part in parts for word in part]


def _by_field(arguments: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Return pairs of a field's dotted name and its flag with values; first, what is before any."""
    long, found = {short: name for name, short in SHORT.items()}, [("", list[str]())]
    for word in arguments:
        if word.startswith("--"):
            name = word.partition("=")[0].removeprefix("--").replace("-", "_")
            found.append((long.get(name, NEGATION.sub("", name)), []))
        found[-1][1].append(word)
    return found


def _refuse_differing(arguments: Sequence[str]) -> None:
    """Raise UserError if two flags give one field different values, of which one would have no
    effect, as would flags behind `--`."""
    if "--" in arguments:
        raise UserError("leave out `--`: flags follow without it.")
    given = dict[str, list[str]]()
    for name, last in _by_field(arguments) if not {*HELP, LIST_FLAGS} & {*arguments} else ():
        first = given.setdefault(name, last)
        if name and last is not first and _values(last) != _values(first):
            one, two = shlex.join(first), shlex.join(last)
            raise UserError(f"{one} and {two} set one field to different values: give one of them.")


def _values(arguments: Sequence[str]) -> list[str | float]:
    """Return the values of a flag, in one form for all spellings."""
    flag, equals, value = arguments[0].partition("=")
    texts = [value, *arguments[1:]] if equals else list(arguments[1:])
    if len(texts) == 1 and texts[0].startswith("["):
        texts = [text.strip() for text in texts[0].strip("[]").split(",")]
    if not texts:  # The flag is a switch.
        return [not NEGATION.search(flag.removeprefix("--").replace("-", "_"))]
    return list(map(_value, texts))


def _value(text: str) -> str | float:
    with suppress(ValueError):
        return TRUTH[text] if text in TRUTH else text if text.isdigit() else float(text)
    return text


def flags_of(name: str) -> list[str]:
    """Return the flag of a field, by its dotted name, and its short form if it has one."""
    names = [name, *filter(None, [SHORT.get(name)])]
    # A field that would be called like a word of Python ends in `_`.
    return [f"--{name.rstrip('_').replace('_', '-')}" for name in names]


def as_words(name: str, value: Any) -> list[str]:
    """Return the words that give a field, by its dotted name, a value."""
    flag = flags_of(name)[0]
    if value is False:
        group, dot, last = flag.removeprefix("--").rpartition(".")
        return [f"--{group}{dot}no-{last}"]
    if isinstance(value, (list, tuple)):
        return [flag, *(map(str, value) if value else ["[]"])]
    return [flag if value is True else f"{flag}={value}"]


@cache
def field_texts(kind: type[Any]) -> dict[str, str]:
    """Return the string below each field in the source of a dataclass and its bases, one line."""
    found = {}
    for owner in reversed(kind.__mro__[:-1]):
        with suppress(LookupError, OSError):  # A run's copy of a program's class has no source.
            source = inspect.getsource(sys.modules[owner.__module__])
            for field, below in pairwise(_classes(source)[owner.__qualname__].body):
                match field, below:
                    case ast.AnnAssign(target), ast.Expr(ast.Constant(str(text))):
                        found[ast.unparse(target)] = " ".join(text.split())
    return found


@cache
def _classes(source: str) -> dict[str, ast.ClassDef]:
    """Return the classes that a module's source declares, by their qualified names."""

    def inside(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.ClassDef]]:
        for child in (part for block in BLOCKS for part in getattr(node, block, ())):
            inner = prefix
            if isinstance(child, ast.ClassDef):
                yield f"{prefix}{child.name}", child
                inner += f"{child.name}."
            elif isinstance(child, ast.FunctionDef):
                inner += f"{child.name}.<locals>."
            yield from inside(child, inner)

    return dict(inside(ast.parse(source)))


def _allowed_values(hint: Any) -> list[str]:
    """Return the values that a flag of a type may have, if it is no number or text."""
    options = get_args(hint)
    if get_origin(hint) is Literal:
        return list(map(str, options))
    if isinstance(hint, EnumType):
        return list(hint.__members__)
    values = [value for option in options for value in _allowed_values(option)]
    return values + ["None"] * bool(values and NoneType in options)


@PARSERS.struct_rule
def _configuration(kind: tyro.constructors.StructTypeInfo) -> Any:
    """Give a dataclass's fields their short names, and texts without the source's line breaks."""
    owner, found = kind.type, list[Any]()
    if not is_dataclass(owner):
        return None
    hints = get_type_hints(owner, include_extras=True)
    for field in fields(owner):
        hint: Any = hints[field.name]
        if aliases := flags_of(f"{getattr(owner, 'flags', '')}{field.name}")[1:]:
            hint = Annotated[hint, tyro.conf.arg(aliases=aliases)]
        default, make = field.default, field.default_factory
        if isinstance(kind.default, owner):
            default = getattr(kind.default, field.name)
        elif default is MISSING:
            default = tyro.MISSING_NONPROP if make is MISSING else make()
        text = field.metadata.get("help", lambda name=field.name: field_texts(owner).get(name))
        found.append(tyro.constructors.StructFieldSpec(field.name, hint, default, text))
    return tyro.constructors.StructConstructorSpec(owner, tuple(found))


@PARSERS.primitive_rule
def _list(kind: tyro.constructors.PrimitiveTypeInfo) -> Any:
    """Parse a list of numbers or texts; one word such as `[64, 32]` may hold all items."""
    item, *others = get_args(kind.type) or (None,)
    if kind.type_origin not in (list, tuple) or item not in (int, float, str):
        return None
    if others not in ([], [Ellipsis]):
        return None

    def read(texts: list[str]) -> Any:
        if len(texts) == 1 and texts[0].startswith("[") and texts[0].endswith("]"):
            with suppress(ValueError, SyntaxError):
                texts = list(map(str, ast.literal_eval(texts[0])))
        return (kind.type_origin or list)(map(item, texts))

    return tyro.constructors.PrimitiveConstructorSpec(
        nargs="*",
        metavar=f"[{item.__name__.upper()} ...]",
        instance_from_str=read,
        is_instance=lambda v: isinstance(v, (list, tuple)) and all(type(i) is item for i in v),
        str_from_instance=lambda v: list(map(str, v)),
    )
