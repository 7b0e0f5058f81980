"""Makes a task of an environment class that a script or a notebook defines.

This process uses the class itself. Workers are other processes, perhaps on other hosts: what they
need of the script is pickled by value into a folder, which is then a task folder like any other.
"""

import inspect
import pickle
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from mjfleet.config import EnvConfig
from mjfleet.errors import UserError
from mjfleet.registry import FoundTask

ENV = "env:Env"  # Where a task folder has the class.
CONFIG_PY = '''"""The task {name}, of a class. mjfleet wrote this folder for its workers."""

from mjfleet.api.task_by_value import load

TASKS = {{{name!r}: load(__file__, "task.pkl")}}
'''
ENV_PY = '''"""The environment of the task {name}."""

from mjfleet.api.task_by_value import load

Env = load(__file__, "environment.pkl")
'''


@dataclass(frozen=True, kw_only=True)
class ClassTask(FoundTask):
    """A task whose environment is a class of this program, without a folder."""

    env_class: type

    def load(self, reference: str, base: type | tuple[type, ...] | None = None) -> Any:
        """Return the class, or what FoundTask returns."""
        return self.env_class if reference == ENV else super().load(reference, base)

    def files(self) -> dict[str, bytes]:
        """Return the files of a folder `tasks` by path; UserError if the class has no pickle."""
        class_name = self.env_class.__name__
        files = {
            "config.py": CONFIG_PY.format(name=self.name).encode(),
            "env.py": ENV_PY.format(name=self.name).encode(),
            "task.pkl": _pickled(self.task, class_name),
            "environment.pkl": _pickled(self.env_class, class_name),
        }
        return {f"tasks/{self.name}/{name}": content for name, content in files.items()}


def load(place: str, file: str) -> Any:
    """Return the object in a pickle beside a module, which is as trusted as the module."""
    return pickle.loads(Path(place).with_name(file).read_bytes())


def config_class(env_class: type) -> type[EnvConfig]:
    """Return the class of configuration that `class MyEnv(Env[MyConfig])` names."""
    for base in env_class.__mro__:
        for generic in vars(base).get("__orig_bases__", ()):
            for argument in getattr(generic, "__args__", ()):
                if isinstance(argument, type) and issubclass(argument, EnvConfig):
                    return argument
    return EnvConfig


def with_whole_path(env_class: type) -> type:
    """Return the class, with the whole path of its model."""
    model = getattr(env_class, "model_file", None)
    if not isinstance(model, (str, Path)) or ":" in str(model):
        return env_class
    owner = next(base for base in env_class.__mro__ if "model_file" in vars(base))
    try:
        folder = Path(inspect.getfile(owner)).parent
    except (TypeError, OSError):  # A notebook's.
        folder = Path()
    own = {"model_file": str((folder / model).absolute()), "__module__": env_class.__module__}
    return type(env_class.__name__, (env_class,), own)


def _pickled(thing: object, name: str) -> bytes:
    """Return the pickle, with modules that are not installed, which workers could not import."""
    import cloudpickle

    for module in filter(_is_local, [*sys.modules.values()]):
        cloudpickle.register_pickle_by_value(module)
    try:
        return cloudpickle.dumps(thing)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise UserError(
            f"{name} cannot be sent to workers: {error}. What it uses of the script must be "
            "functions, classes and plain values."
        ) from error


def _is_local(module: ModuleType) -> bool:
    """Return whether a module is part of the user's program, and not installed."""
    file, name = getattr(module, "__file__", None), getattr(module, "__name__", "")
    if not isinstance(file, str) or sys.modules.get(name) is not module:
        return False
    if f"{name}.".startswith(("__main__.", "__mp_main__.", "mjfleet.", "mjfleet_task_")):
        return False
    path = Path(file).absolute()
    if any(path.is_relative_to(place) for place in sysconfig.get_paths().values()):
        return False
    return not {"site-packages", "dist-packages"} & {*path.parts}
