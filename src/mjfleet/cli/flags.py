"""How flags are read where tyro's own way is not enough."""

import ast
import gc
import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from types import ModuleType
from typing import Any

import tyro

from mjfleet.config.train_config import GpuRequest, NumEnvs
from mjfleet.errors import UserError


def _import_typeguard() -> None:
    """Import what tyro checks defaults by, without what that takes longest for.

    It would look for plug-ins in all installed packages; and to let mocks pass it imports their
    class, and with it asyncio.
    """
    os.environ.setdefault("TYPEGUARD_DISABLE_PLUGIN_AUTOLOAD", "1")
    mocks = "unittest.mock"
    if mocks in sys.modules:
        return
    sys.modules[mocks] = stand_in = ModuleType(mocks)
    vars(stand_in).update(Mock=type("Mock", (), {}), patch=None)
    with suppress(ImportError):  # Another version may want more; tyro then imports it as it is.
        importlib.import_module("typeguard")
    del sys.modules[mocks]


_import_typeguard()
# What has been imported stays: it is not searched for garbage, as it would be when help ends.
gc.freeze()


@contextmanager
def parsing_once() -> Iterator[None]:
    """Have the standard library parse a source file once, and not for each class in it of whose
    documentation tyro makes help."""
    module: Any = ast
    parse = module.parse
    module.parse = cache(parse)
    try:
        yield
    finally:
        module.parse = parse


STYLE = (tyro.conf.AvoidSubcommands,)
PARSERS = tyro.constructors.ConstructorRegistry()


@PARSERS.primitive_rule
def _gpu_ids(kind: tyro.constructors.PrimitiveTypeInfo) -> Any:
    """How --gpu-ids is read: tyro's own way with unions ends in an error that few understand."""
    if kind.type != GpuRequest:
        return None
    words: dict[str, GpuRequest] = {"auto": "auto", "all": "all", "None": None}

    def read(texts: list[str]) -> GpuRequest:
        if len(texts) == 1 and texts[0] in words:
            return words[texts[0]]
        try:
            return [int(text) for text in texts]
        except ValueError:
            given = " ".join(texts)
            raise UserError(
                f"--gpu-ids {given}: it must be GPU indices such as `0 1`, `all`, `auto`, or "
                "`None` for the CPU."
            ) from None

    def write(value: GpuRequest) -> list[str]:
        return [str(item) for item in (value if isinstance(value, list) else [value])]

    return tyro.constructors.PrimitiveConstructorSpec(
        nargs="*",
        metavar="{auto,all,None}|INT [INT ...]",
        instance_from_str=read,
        is_instance=lambda value: value is None or isinstance(value, str | list),
        str_from_instance=write,
    )


@PARSERS.primitive_rule
def _num_envs(kind: tyro.constructors.PrimitiveTypeInfo) -> Any:
    """How --env.num-envs is read."""
    if kind.type != NumEnvs:
        return None

    def read(texts: list[str]) -> NumEnvs:
        if texts == ["auto"]:
            return "auto"
        try:
            return int(texts[0])
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
    """The last value of a flag that decides how the rest is parsed."""
    value = None
    for position, argument in enumerate(arguments):
        name, equals, text = argument.partition("=")
        if name.replace("_", "-") == flag:
            if equals:
                value = text
            elif position + 1 < len(arguments):
                value = arguments[position + 1]
    return None if value == "None" else value
