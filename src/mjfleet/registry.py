"""Finds task folders and loads objects from them. Reads each config.py, imports no environment."""

import difflib
import importlib
import importlib.machinery
import importlib.util
import os
import sys
import traceback
import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from mjfleet.config import Task, TrainConfig, from_dict, to_dict
from mjfleet.config.validation import FOLDER_NAME
from mjfleet.errors import UserError
from mjfleet.utils.packages import need_extra
from mjfleet.utils.same_folder import same_folder

TASKS_VARIABLE = "MJFLEET_TASKS"
MOST_LISTED = 5  # Tasks that have a part of a name in theirs.


@dataclass(frozen=True)
class FoundTask:
    """A task and the folder it was found in."""

    name: str
    folder: Path
    task: Task

    def defaults(self) -> TrainConfig:
        """Return the task's configuration before files and flags, with its name as experiment."""
        agent = self.task.agent
        name = agent.experiment_name or self.name
        config = TrainConfig(env=self.task.env, agent=replace(agent, experiment_name=name))
        try:
            return from_dict(config, to_dict(config))
        except UserError as error:
            raise UserError(f"{self.folder / 'config.py'}, task {self.name}: {error}") from None

    def check_packages(self) -> None:
        """Raise UserError, which says how to install them, if packages are missing."""
        need_extra(self.task.extra, f"task {self.name}", self.task.packages)

    def check_groups(self, config: TrainConfig, known: Collection[str]) -> None:
        """Raise UserError if a network is to observe a group that is not `known`."""
        groups = to_dict(config.agent.obs_groups)
        observed = {f"--agent.obs-groups.{n.replace('_', '-')}": groups[n] for n in groups}
        if teacher := config.agent.teacher:
            observed[f"the teacher {teacher.checkpoint}"] = teacher.obs_groups
        for what, names in observed.items():
            if lacking := [name for name in names if name not in known]:
                raise UserError(
                    f"{what} observes the group {lacking[0]!r}; task {self.name} has: "
                    f"{', '.join(known)}."
                )

    def owns(self, reference: str) -> bool:
        """Return whether `module:Class` is of the task's folder, or of its installed package."""
        module = reference.partition(":")[0]
        if module.isidentifier() and (self.folder / f"{module}.py").is_file():
            return True
        spec = importlib.util.find_spec(module.partition(".")[0])
        places = spec.submodule_search_locations if spec else None
        return any(self.folder.is_relative_to(place) for place in places or ())

    @same_folder()
    def load(self, reference: str, base: type | tuple[type, ...] | None = None) -> Any:
        """Return the object `module:name` of the task folder, such as `env:CartpoleEnv`.

        With a `base` it must be a subclass of that, and its module may also be an installed one, if
        the folder has none of that name.

        Raises:
            UserError: the reference is malformed, or its module cannot be imported or lacks it, or
                it is no subclass of `base`.
        """
        module_name, _, attribute = reference.partition(":")
        file = self.folder / f"{module_name}.py"
        is_own = module_name.isidentifier() and file.is_file()
        if not is_own and base is None:
            raise UserError(
                f"task {self.name}: `{reference}` must be `module:name` with a module of the "
                f"folder {self.folder}; there is no {file.name} in it."
            )
        package, what = f"{_import_package(self.folder)}.", file.name
        if not is_own:
            package, what = "", f"`{module_name}`, which is not in {self.folder},"
        try:
            module = importlib.import_module(f"{package}{module_name}")
        except Exception as error:
            why = _last_own_line(error, self.folder)
            raise UserError(f"task {self.name}: {what} cannot be imported:\n{why}") from error
        if not hasattr(module, attribute):
            near = difflib.get_close_matches(attribute, vars(module))
            hint = f" Did you mean {' or '.join(near)}?" * bool(near)
            raise UserError(f"task {self.name}: {module.__file__} has no `{attribute}`.{hint}")
        found = getattr(module, attribute)
        if base and not (isinstance(found, type) and issubclass(found, base)):
            bases = base if isinstance(base, tuple) else (base,)
            must = " or ".join(f"{one.__module__}.{one.__qualname__}" for one in bases)
            raise UserError(f"task {self.name}: `{reference}` must be a subclass of {must}.")
        return found


@dataclass
class Registry:
    """All tasks by name, and a text about each folder that could not be read."""

    tasks: dict[str, FoundTask] = field(default_factory=dict)
    broken: dict[Path, str] = field(default_factory=dict)

    def find(self, name: str) -> FoundTask:
        """Return the task with a name; a UserError suggests similar names, or lists all."""
        if why := self.why_missing(name):
            raise UserError(why)
        return self.tasks[name]

    def why_missing(self, name: str) -> str:
        """Return that there is no task of a name, with similar ones; empty if there is one."""
        if name in self.tasks:
            return ""
        near = [task for task in self.tasks if name and name in task][:MOST_LISTED]
        near = near or difflib.get_close_matches(name, self.tasks, n=3, cutoff=0.5)
        hint = f"Did you mean {' or '.join(near)}?" if near else f"Tasks: {', '.join(self.tasks)}."
        return "\n".join([f"there is no task `{name}`. {hint}", *self.broken.values()])

    @same_folder()
    def read(self, folder: Path) -> None:
        """Add the tasks of a folder; one that cannot be read hides no other.

        Raises:
            UserError: a task of the same name has been found before.
        """
        try:
            module = importlib.import_module(f"{_import_package(folder)}.config")
            tasks = getattr(module, "TASKS", None)
            if not isinstance(tasks, dict) or not all(isinstance(t, Task) for t in tasks.values()):
                raise TypeError("TASKS must be a dict of names to mjfleet.config.Task")
            for name in tasks:
                if not name or name.startswith("-") or not FOLDER_NAME.holds(name):
                    raise ValueError(f"the task name {name!r} must be {FOLDER_NAME.allowed}")
        except (Exception, SystemExit) as error:
            why = _last_own_line(error, folder)
            self.broken[folder] = f"{folder} could not be read:\n{why}"
            return
        for name, task in tasks.items():
            if name in self.tasks:
                raise UserError(
                    f"two tasks are named `{name}`: one in {self.tasks[name].folder}, one in "
                    f"{folder}. Rename one of them."
                )
            self.tasks[name] = FoundTask(name, folder, task)


def discover(environ: Mapping[str, str], tasks_dir: str | None = None) -> Registry:
    """Read every task folder's config.py: of --tasks-dir, MJFLEET_TASKS, ./tasks, packages, ours.

    Raises:
        UserError: a requested folder does not exist, or two tasks have the same name.
    """
    registry = Registry()
    for root in _roots(environ, tasks_dir):
        for file in sorted(root.glob("*/config.py")):
            registry.read(file.parent)
    return registry


def find_task(name: str, folder: Path) -> FoundTask:
    """Return the task with a name in one folder, for a worker that was given both."""
    registry = Registry()
    registry.read(folder)
    return registry.find(name)


def _last_own_line(error: BaseException, folder: Path) -> str:
    """Return an exception with the last line of a folder's own code that led to it."""
    hint = ""
    if isinstance(error, ModuleNotFoundError) and error.name:
        module = error.name.partition(".")[0]
        if (folder / f"{module}.py").is_file() or (folder / module).is_dir():
            hint = f"\n{module} is in the task's folder: write `from .{module} import ...`"
    shown = traceback.TracebackException.from_exception(error)
    own = [frame for frame in shown.stack if Path(frame.filename).is_relative_to(folder)]
    place = [] if isinstance(error, SyntaxError) else traceback.format_list(own[-1:])
    return "".join([*place, *shown.format_exception_only()]).rstrip() + hint


def _roots(environ: Mapping[str, str], tasks_dir: str | None) -> list[Path]:
    asked = [(tasks_dir, "--tasks-dir")] if tasks_dir else []
    listed = environ.get(TASKS_VARIABLE, "").split(":")
    asked += [(folder, TASKS_VARIABLE) for folder in listed if folder]
    for folder, source in asked:
        if not Path(folder).is_dir():
            raise UserError(f"{source} names {folder!r}, which is not a folder.")
        if (Path(folder) / "config.py").is_file():
            raise UserError(
                f"{source} names {folder!r}, which is a task folder; name the folder that holds it."
            )
    roots = [Path(folder) for folder, _ in asked]
    roots.append(Path("tasks"))
    for entry in entry_points(group="mjfleet.tasks"):
        # Looking for `robots.tasks` by its whole name would import `robots`.
        package, *inner = entry.module.split(".")
        spec = importlib.util.find_spec(package)
        places = (spec.submodule_search_locations if spec else None) or []
        roots += [Path(place, *inner) for place in places]
    roots.append(bundled_tasks())
    return list(dict.fromkeys(root.resolve() for root in roots if root.is_dir()))


def bundled_tasks() -> Path:
    """Return the folder of mjfleet's own tasks: in the package, or beside src/ in a clone."""
    package = Path(__file__).resolve().parent
    inside = package / "tasks"
    return inside if inside.is_dir() else package.parents[1] / "tasks"


def _import_package(folder: Path) -> str:
    """Make `folder` importable as a package; return its name, which depends on the whole path.

    Bundled tasks are packages in it, from which a task can derive: `from .go1.env import FlatEnv`.
    """
    folder = folder.resolve()
    stem = "".join(c if c.isalnum() else "_" for c in folder.name)
    name = f"mjfleet_task_{stem}_{zlib.crc32(os.fsencode(folder)):08x}"
    if name not in sys.modules:
        spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [str(folder), str(bundled_tasks())]
        sys.modules[name] = importlib.util.module_from_spec(spec)
    return name
