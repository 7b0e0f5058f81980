"""Environment variables that travel to other hosts, and how they stay secret. In the launcher."""

from collections.abc import Mapping, MutableMapping, Sequence
from fnmatch import fnmatchcase

from mjfleet.errors import UserError
from mjfleet.utils.parent_death import PARENT_VARIABLE

TRAVELLING = (
    "PATH", "LD_LIBRARY*", "LIBRARY_PATH", "PYTHON*", "CUDA*", "TORCH*", "PYTORCH*", "NCCL*",
    "MUJOCO_*", "WANDB_*", "OMP_*", "GLOO_*", "WARP_*", "MJFLEET_*",
)  # fmt: skip
"""Patterns of the variables that a worker may need on any host."""


def take_variables(asked: Sequence[str], environ: MutableMapping[str, str]) -> list[str]:
    """Set each NAME=VALUE of --env-var in this process's environment; return the names.

    Raises:
        UserError: a variable that is to be taken from here is not set, or one is given twice.
    """
    names = [item.partition("=")[0] for item in asked]
    for item in asked:
        name, equals, value = item.partition("=")
        if names.count(name) > 1:
            raise UserError(f"--env-var {name} is given {names.count(name)} times; give it once.")
        if equals:
            environ[name] = value
        elif name not in environ:
            raise UserError(f"--env-var {name}: it is not set here; write {name}=VALUE instead.")
    return names


def without_values(arguments: Sequence[str]) -> list[str]:
    """Return command-line arguments without the values of --env-var, which may be secret."""
    shown, is_variable = [], False
    for argument in arguments:
        first, *rest = argument.split("=")
        if argument.startswith("--"):
            is_variable = first.replace("_", "-") == "--env-var"
            shown.append("=".join([first, *rest[:1]]) if is_variable else argument)
        else:
            shown.append(first if is_variable else argument)
    return shown


def travelling(environ: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    """Return the variables that go to every host: those of TRAVELLING and those of the names."""
    patterns = (*TRAVELLING, *names)
    found = {name for name in environ if any(fnmatchcase(name, one) for one in patterns)}
    # PARENT_VARIABLE stays: it names a process of this host.
    return {name: environ[name] for name in found - {PARENT_VARIABLE}}
