"""Environment variables of workers on other hosts: which go there, and how they stay secret."""

import fnmatch
from collections.abc import Mapping, MutableMapping, Sequence

from mjfleet.errors import UserError
from mjfleet.launch.restart_policy import VARIABLE
from mjfleet.utils.parent_death import PARENT_VARIABLE

TRAVELLING = (
    "PATH", "LD_LIBRARY*", "LIBRARY_PATH", "PYTHON*", "CUDA*", "TORCH*", "PYTORCH*", "NCCL*",
    "MUJOCO_*", "WANDB_*", "OMP_*", "GLOO_*", "WARP_*", "MJFLEET_*",
)  # fmt: skip
"""Environment variables that a worker may need, on whatever host."""
STAYING = (VARIABLE, PARENT_VARIABLE)
"""Those of them that say something of a process of this host."""


def take_variables(asked: Sequence[str], environ: MutableMapping[str, str]) -> list[str]:
    """Set NAME=VALUE of --env-var in this process's environment; returns the names.

    Raises:
        UserError: a variable that is to be taken from here is not set.
    """
    names = []
    for item in asked:
        name, equals, value = item.partition("=")
        if equals:
            environ[name] = value
        elif name not in environ:
            raise UserError(f"--env-var {name}: it is not set here; {name}=VALUE sets it.")
        names.append(name)
    return names


def without_values(arguments: Sequence[str]) -> list[str]:
    """Command-line arguments, less the values of variables in --env-var, which may be secret."""
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
    """The environment variables that go to every host: those of TRAVELLING, and some by name."""
    patterns = (*TRAVELLING, *names)
    return {
        name: value
        for name, value in environ.items()
        if name not in STAYING and any(fnmatch.fnmatchcase(name, one) for one in patterns)
    }
