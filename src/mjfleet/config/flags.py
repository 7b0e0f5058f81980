"""Parses the flags of every command. Runs in the process that the user started."""

import ast
import os
import shutil
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from functools import partial
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

import tyro

from mjfleet.config.field_kinds import SHORT
from mjfleet.config.flag_table import field_texts, flags_of, short_names
from mjfleet.config.launch_config import GpuRequest
from mjfleet.errors import UserError

Arguments = TypeVar("Arguments")
PARSERS = tyro.constructors.ConstructorRegistry()
GPU_NAMES = {"auto": "auto", "all": "all", "None": None}
"""What --gpu-ids may be instead of indices."""
MIN_COLUMNS = 20  # In a narrower terminal, tyro lays out help for ever.
HELP = frozenset({"-h", "--help", "--help-all"})
LIST_FLAGS = "--list-flags"
"""Makes any command print its flags and the words that each may have, for completion."""
LONG_FIELDS = {short: name for name, short in SHORT.items()}


def parse_flags(
    kind: type[Arguments],
    flags: Sequence[str],
    prog: str,
    default: Any = None,
    description: str | None = None,
) -> Arguments:
    """Parse flags into the dataclass `kind`, whose fields' docstrings are the help.

    `--help` and unknown flags print a text and exit. `prog` is the command as the user types it,
    `default` an instance of `kind` for the flags that are not given.

    Raises:
        UserError: a value is not allowed.
    """
    if shutil.get_terminal_size().columns < MIN_COLUMNS:
        os.environ["COLUMNS"] = str(MIN_COLUMNS)
    table = list(flags_of(kind, default))
    if LIST_FLAGS in flags:
        for flag in table:
            for name in flag.names:
                print(f"--{name}", *flag.choices, *[f"\n--{flag.off}"] * flag.is_switch)
        sys.exit()
    words = ["--help"] if HELP & set(flags) else flags
    return tyro.cli(
        kind, prog=prog, description=description, args=words, default=default, registry=PARSERS,
        config=(tyro.conf.AvoidSubcommands,),
    )  # fmt: skip


def parse_known(
    kind: type[Arguments], flags: Sequence[str], prog: str | None = None, default: Any = None
) -> tuple[Arguments, list[str]]:
    """Parse the flags of `kind` that are among others; return them, and the other words."""
    return tyro.cli(
        kind, prog=prog, args=flags, default=default, return_unknown_args=True, add_help=False,
        registry=PARSERS,
    )  # fmt: skip


@PARSERS.struct_rule
def _configuration(kind: tyro.constructors.StructTypeInfo) -> Any:
    """Give a dataclass's fields their short names, and texts without the source's line breaks."""
    owner = kind.type
    if not is_dataclass(owner):
        return None
    hints, found = get_type_hints(owner, include_extras=True), list[Any]()
    for field in fields(owner):
        aliases = [f"--{name}" for name in short_names(owner, field.name)]
        hint: Any = hints[field.name]
        if aliases:
            hint = Annotated[hint, tyro.conf.arg(aliases=aliases)]
        default, make = field.default, field.default_factory
        if isinstance(kind.default, owner):
            default = getattr(kind.default, field.name)
        elif default is MISSING:
            default = tyro.MISSING_NONPROP if make is MISSING else make()
        text = field.metadata.get("help") or partial(_text_of, owner, field.name)
        found.append(tyro.constructors.StructFieldSpec(field.name, hint, default, text))
    return tyro.constructors.StructConstructorSpec(owner, tuple(found))


def _text_of(owner: type[Any], field: str) -> str | None:
    return field_texts(owner).get(field.rstrip("_"))


@PARSERS.primitive_rule
def _list(kind: tyro.constructors.PrimitiveTypeInfo) -> Any:
    """Parse a list of numbers or texts, of which one word such as `[64, 32]` has all items."""
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


@PARSERS.primitive_rule
def _gpu_ids(kind: tyro.constructors.PrimitiveTypeInfo) -> Any:
    """Parse --gpu-ids, about which tyro's messages are hard to understand."""
    if kind.type != GpuRequest:
        return None

    def read(texts: list[str]) -> Any:
        if len(texts) == 1 and texts[0] in GPU_NAMES:
            return GPU_NAMES[texts[0]]
        try:
            return [int(text) for text in texts]
        except ValueError:
            allowed = "GPU indices such as `0 1`, `all`, `auto`, or `None` for the CPU"
            raise UserError(f"--gpu-ids {' '.join(texts)}: it must be {allowed}.") from None

    return tyro.constructors.PrimitiveConstructorSpec(
        nargs="*",
        metavar="{auto,all,None}|INT [INT ...]",
        instance_from_str=read,
        is_instance=lambda v: v in GPU_NAMES.values() or isinstance(v, list),
        str_from_instance=lambda v: [str(item) for item in (v if isinstance(v, list) else [v])],
    )


def typed_fields(arguments: Sequence[str]) -> frozenset[str]:
    """Return the dotted names of the fields that flags give."""
    words = (word for word in arguments if word.startswith("--"))
    names = (word.partition("=")[0].removeprefix("--").replace("-", "_") for word in words)
    return frozenset(LONG_FIELDS.get(name, name) for name in names)
