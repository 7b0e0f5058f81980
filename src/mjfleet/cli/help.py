"""The help of `train`: the task's own flags and the common ones, then the names of all others."""

import shutil
import textwrap
from contextlib import suppress
from dataclasses import field, make_dataclass
from enum import Enum
from itertools import groupby
from typing import Annotated

import tyro

from mjfleet.config import EnvConfig, TrainConfig
from mjfleet.config.flag_table import Flag, flags_of
from mjfleet.config.flags import parse_flags

COMMON = (
    "gpu-ids", "cpu-workers", "hosts", "engine", "env.num-envs", "total-envs",
    "agent.max-iterations", "agent.seed", "agent.algorithm.learning-rate", "agent.run-name",
    "agent.logger", "agent.save-interval", "resume", "config", "max-restarts", "eval-interval",
    "video-interval", "log-root", "plain", "dry-run",
)  # fmt: skip
"""The twenty flags that `--help` explains for every task; `--help-all` explains every one."""
MAX_WIDTH = 100  # Of lines, in columns.


def print_help(config: TrainConfig, prog: str, description: str) -> None:
    """Print the help of `train`, whose defaults are those of `config`."""
    flags = {flag.name: flag for flag in flags_of(TrainConfig, config)}
    shared = {flag.name for flag in flags_of(EnvConfig, group="env.")}
    own = [name for name in flags if name.startswith("env.") and name not in shared]
    explained = [*own, *COMMON]
    fields = make_dataclass("Explained", [_as_field(flags[name]) for name in explained])
    with suppress(SystemExit):
        parse_flags(fields, ["--help"], prog, description=description)
    print(f"All others with their values; `{prog} --help-all` explains them:\n")
    wrapper = textwrap.TextWrapper(
        min(shutil.get_terminal_size().columns, MAX_WIDTH), "  ", "      ", break_on_hyphens=False
    )
    others = [flag for flag in flags.values() if flag.name not in explained]
    for group, found in groupby(others, key=lambda flag: flag.group):
        listed = (f"{flag.name.removeprefix(group)}={_typed(flag.default)}" for flag in found)
        print(wrapper.fill(f"--{group}* " + " ".join(listed)))


def _as_field(flag: Flag) -> tuple[str, object, object]:
    """Return a flag as a field of a flat dataclass."""
    shorter = [f"--{name}" for name in flag.names[1:]]
    shown, text = tyro.conf.arg(name=flag.name, aliases=shorter), {"help": flag.text}
    name, default = flag.name.replace(".", "_").replace("-", "_"), flag.default
    return name, Annotated[flag.hint, shown], field(default_factory=lambda: default, metadata=text)


def _typed(value: object) -> str:
    """Return a value as it may be typed after `--flag=`."""
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_typed, value))}]"
    if isinstance(value, Enum):
        return value.name
    return str(value) if value != "" else "''"
