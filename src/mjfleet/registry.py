"""Finds task folders and loads objects from them. Reads each config.py, imports no environment."""

import difflib
import importlib
import importlib.machinery
import importlib.util
import os
import sys
import traceback
import zlib
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import MISSING, dataclass, field, fields, replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from mjfleet.config import (
    AlgorithmConfig,
    PPOConfig,
    SACConfig,
    Task,
    TrainConfig,
    from_dict,
    to_dict,
)
from mjfleet.config.dict_conversion import nested, value_at
from mjfleet.config.train_config import ALGORITHM
from mjfleet.config.validation import FOLDER_NAME, is_class_path
from mjfleet.errors import UserError
from mjfleet.utils.packages import need_extra
from mjfleet.utils.same_folder import same_folder

TASKS_VARIABLE = "MJFLEET_TASKS"
FRAMEWORKS = "mjfleet", "rsl_rl"
MOST_LISTED = 5  # Tasks that have a part of a name in theirs.


@dataclass(frozen=True, kw_only=True)
class FoundTask:
    """A task and the folder it was found in."""

    name: str
    folder: Path
    task: Task
    beside: tuple[Path, ...] = ()
    """Folders of tasks, in which modules of classes may be that the configuration names."""

    def defaults(self, algorithm: str | None = None) -> TrainConfig:
        """Return the task's configuration before files and flags, with its name as experiment.

        With another `algorithm`, `module:Class` or one of ours, its configuration is that class's.

        Raises:
            UserError: the task's configuration is wrong, or the class cannot be loaded.
        """
        agent = self.task.agent
        name = agent.experiment_name or self.name
        config = TrainConfig(env=self.task.env, agent=replace(agent, experiment_name=name))
        try:
            config = from_dict(config, to_dict(config))
        except UserError as error:
            raise UserError(f"{self.folder / 'config.py'}, task {self.name}: {error}") from None
        return config if algorithm is None else self.with_algorithm(config, algorithm)

    def with_values(self, data: Mapping[str, Any]) -> TrainConfig:
        """Return the configuration whose data `to_dict` returned; UserError if it does not fit."""
        return from_dict(self.defaults(value_at(data, ALGORITHM)), data)

    def with_algorithm(self, config: TrainConfig, name: str) -> TrainConfig:
        """Return a configuration with another algorithm, `module:Class` or one of ours.

        The class's own configuration keeps the values that have been set, if it is of the same
        class as before or derived from that. UserError if the class cannot be loaded.
        """
        kind: Any = SACConfig if name == "sac" else PPOConfig
        usual = config.agent.algorithm
        if usual.name == name:
            return config
        if is_class_path(name):
            kind = getattr(self.load(name, object), "Config", PPOConfig)
            if not (isinstance(kind, type) and issubclass(kind, AlgorithmConfig)):
                must = "a subclass of mjfleet.config.AlgorithmConfig"
                raise UserError(f"{name}: its `Config` is {kind!r}; it must be {must}.")
        for one in fields(kind):
            if one.default is MISSING and one.default_factory is MISSING:
                raise UserError(f"{name}: {kind.__name__}.{one.name} needs a default.")
        if isinstance(usual, kind):
            chosen = replace(usual, name=name)
        else:
            chosen = kind(**kind.values_of_task(usual) | {"name": name})
        config = replace(config, agent=replace(config.agent, algorithm=chosen))
        return from_dict(config, nested(kind.usual))

    def with_usual_on_gpu(self, config: TrainConfig, given: Collection[str]) -> TrainConfig:
        """Return the configuration of a run that begins on GPUs.

        An algorithm that is not the task's own brings its numbers for GPUs, of all but the fields
        that are `given`, by their dotted names.
        """
        algorithm = config.agent.algorithm
        is_own = algorithm.name == self.task.agent.algorithm.name
        usual = {} if is_own else algorithm.usual_on_gpu
        return from_dict(config, nested({n: usual[n] for n in usual if n not in given}))

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
        if self.place_of(module) == self.folder:
            return True
        spec = _find_package(module)
        places = (spec and spec.submodule_search_locations) or ()
        return any(map(self.folder.is_relative_to, places))

    def place_of(self, module: str) -> Path | None:
        """Return the task's folder, or the first of `beside`, if a module is in it."""
        parts = module.split(".")
        if not all(map(str.isidentifier, parts)):
            return None
        if self.folder.joinpath(*parts).with_suffix(".py").is_file():
            return self.folder
        return next((place for place in self.beside if (place / f"{module}.py").is_file()), None)

    def modules(self, references: Iterable[str]) -> dict[str, Path]:
        """Return the Python files of classes `module:Class` that are not in the task's folder.

        These are all that are in the same folder as the module, by their paths in a copy of the
        task's code. Those of mjfleet and rsl_rl are left out, since a run records their versions.
        """
        found = dict[str, Path]()
        for module in {one.partition(":")[0] for one in references if is_class_path(one)}:
            place, prefix, parts = self.place_of(module), "", module.split(".")
            if place is None and parts[0] not in FRAMEWORKS:
                spec = _find_package(module)
                if spec and (places := spec.submodule_search_locations):
                    if not Path(places[0], *parts[1:]).is_dir():
                        parts.pop()
                    place, prefix = Path(places[0], *parts[1:]), "/".join((*parts, ""))
                elif spec and spec.origin and spec.has_location:  # Python's own may be frozen.
                    found[f"{module}.py"] = Path(spec.origin)
            if place not in (None, self.folder):
                found |= {f"{prefix}{file.name}": file for file in place.glob("*.py")}
        return found

    @same_folder()
    def load(self, reference: str, base: type | tuple[type, ...] | None = None) -> Any:
        """Return the object `module:name` of the task folder, such as `env:CartpoleEnv`.

        With a `base` it must be a subclass of that, and its module may also be in a folder of
        tasks, or an installed one, if the task's folder has none of that name.

        Raises:
            UserError: the reference is malformed, or its module cannot be imported or lacks it, or
                it is no subclass of `base`.
        """
        module_name, _, attribute = reference.partition(":")
        place = self.place_of(module_name)
        if place != self.folder and base is None:
            raise UserError(
                f"task {self.name}: `{reference}` must be `module:name` with a module of the "
                f"folder {self.folder}; there is no {module_name}.py in it."
            )
        searched = ", ".join(map(str, (self.folder, *self.beside)))
        package, what = "", f"`{module_name}`, which is not in {searched},"
        if place:
            package, what = f"{_import_package(place)}.", f"{module_name}.py"
        try:
            module = importlib.import_module(f"{package}{module_name}")
        except Exception as error:
            why = _last_own_line(error, place or self.folder)
            raise UserError(f"task {self.name}: {what} cannot be imported:\n{why}") from error
        if not hasattr(module, attribute):
            near = difflib.get_close_matches(attribute, vars(module))
            hint = f" Did you mean {' or '.join(near)}?" * bool(near)
            where = getattr(module, "__file__", None) or module_name  # Python's own have no file.
            raise UserError(f"task {self.name}: {where} has no `{attribute}`.{hint}")
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
    roots: tuple[Path, ...] = ()

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
                is_text = isinstance(name, str) and name and not name.startswith("-")
                if not (is_text and FOLDER_NAME.holds(name)):
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
            self.tasks[name] = FoundTask(name=name, folder=folder, task=task, beside=self.roots)


def discover(environ: Mapping[str, str], tasks_dir: str | None = None) -> Registry:
    """Read every task folder's config.py: of --tasks-dir, MJFLEET_TASKS, ./tasks, packages, ours.

    Raises:
        UserError: a requested folder does not exist, or two tasks have the same name.
    """
    registry = Registry(roots=tuple(_roots(environ, tasks_dir)))
    for root in registry.roots:
        for file in sorted(root.glob("*/config.py")):
            registry.read(file.parent)
    return registry


def find_task(name: str, folder: Path, tasks_dir: str | None = None) -> FoundTask:
    """Return the task with a name in one folder, for a worker that was given both.

    Classes of its configuration may also be in `tasks_dir`.
    """
    registry = Registry(roots=(Path(tasks_dir),) if tasks_dir else ())
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
        spec, (_, *inner) = _find_package(entry.module), entry.module.split(".")
        places = (spec and spec.submodule_search_locations) or ()
        roots += [Path(place, *inner) for place in places]
    roots.append(bundled_tasks())
    return list(dict.fromkeys(root.resolve() for root in roots if root.is_dir()))


def _find_package(module: str) -> importlib.machinery.ModuleSpec | None:
    """Return where the outermost package of a module is installed; None: it is not.

    Looking for `robots.tasks` by its whole name would import `robots`.
    """
    with suppress(ValueError):  # It is a program, `__main__`, or made by one.
        return importlib.util.find_spec(module.partition(".")[0])
    return None


def bundled_tasks() -> Path:
    """Return the folder of mjfleet's own tasks: in the package, or beside src/ in a clone."""
    package = Path(__file__).resolve().parent
    inside = package / "tasks"
    return inside if inside.is_dir() else package.parents[1] / "tasks"


def _import_package(folder: Path) -> str:
    """Make `folder` importable as a package; return its name, which depends on the whole path.

    It also depends on when its files have changed: a notebook uses them as they are.
    Bundled tasks are packages in it, from which a task can derive: `from .go1.env import FlatEnv`.
    """
    folder = folder.resolve()
    stem = "".join(c if c.isalnum() else "_" for c in folder.name)
    changed = max((file.stat().st_mtime_ns for file in folder.glob("*.py")), default=0)
    name = f"mjfleet_task_{stem}_{zlib.crc32(b'%b%d' % (os.fsencode(folder), changed)):08x}"
    if name not in sys.modules:
        spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [str(folder), str(bundled_tasks())]
        sys.modules[name] = importlib.util.module_from_spec(spec)
    return name
