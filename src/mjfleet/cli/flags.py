"""Parses the flags of every command. Runs in the process that the user started."""

import os
import shutil
from collections.abc import Sequence
from typing import Any, TypeVar

import tyro

from mjfleet.config.launch_config import GpuRequest
from mjfleet.config.train_config import NumEnvs
from mjfleet.errors import UserError

Arguments = TypeVar("Arguments")
PARSERS = tyro.constructors.ConstructorRegistry()
MIN_COLUMNS = 20
"""In a terminal that is narrower than its columns, tyro lays out help for ever."""


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
    style = (tyro.conf.AvoidSubcommands,)
    return tyro.cli(
        kind, prog=prog, description=description, args=flags, default=default, config=style,
        registry=PARSERS,
    )  # fmt: skip


@PARSERS.primitive_rule
def _gpu_ids(kind: tyro.constructors.PrimitiveTypeInfo) -> Any:
    """Parse --gpu-ids; tyro's message for a wrong value of a union is hard to understand."""
    if kind.type != GpuRequest:
        return None
    words: dict[str, GpuRequest] = {"auto": "auto", "all": "all", "None": None}

    def read(texts: list[str]) -> GpuRequest:
        if len(texts) == 1 and texts[0] in words:
            return words[texts[0]]
        try:
            return [int(text) for text in texts]
        except ValueError:
            raise UserError(
                f"--gpu-ids {' '.join(texts)}: it must be GPU indices such as `0 1`, `all`, "
                "`auto`, or `None` for the CPU."
            ) from None

    return tyro.constructors.PrimitiveConstructorSpec(
        nargs="*",
        metavar="{auto,all,None}|INT [INT ...]",
        instance_from_str=read,
        is_instance=lambda value: value is None or isinstance(value, str | list),
        str_from_instance=lambda v: [str(item) for item in (v if isinstance(v, list) else [v])],
    )


@PARSERS.primitive_rule
def _num_envs(kind: tyro.constructors.PrimitiveTypeInfo) -> Any:
    """Parse --env.num-envs."""
    if kind.type != NumEnvs:
        return None

    def read(texts: list[str]) -> NumEnvs:
        try:
            return "auto" if texts == ["auto"] else int(texts[0])
        except ValueError:
            raise UserError(
                f"--env.num-envs {texts[0]}: it must be a whole number from 1 up, or `auto`."
            ) from None

    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="INT|auto",
        instance_from_str=read,
        is_instance=lambda value: value == "auto" or isinstance(value, int),
        str_from_instance=lambda value: [str(value)],
    )


def peek(arguments: Sequence[str], flag: str) -> str | None:
    """Return the last value of a flag that decides how the rest is parsed; None: not given."""
    value = None
    for argument, following in zip(arguments, [*arguments[1:], None], strict=False):
        name, equals, text = argument.partition("=")
        if name.replace("_", "-") == flag and (equals or following is not None):
            value = text if equals else following
    return None if value == "None" else value
