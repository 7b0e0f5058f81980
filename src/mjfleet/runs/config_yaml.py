"""Writes config.yaml into a run directory, and reads it and other files for `--config`."""

import copy
import shlex
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from mjfleet.config import PPOConfig, SACConfig, TrainConfig, by_dotted_name, from_dict, to_dict
from mjfleet.config.dict_conversion import value_at
from mjfleet.config.field_kinds import Kind
from mjfleet.config.flags import as_words
from mjfleet.config.train_config import ALGORITHM, field_kinds
from mjfleet.config.unused_fields import unused_fields
from mjfleet.config.validation import is_class_path
from mjfleet.errors import UserError
from mjfleet.registry import FoundTask
from mjfleet.runs.own_runs import Note, note_of
from mjfleet.runs.run_json import record_file
from mjfleet.runs.task_snapshot import is_snapshot
from mjfleet.utils.atomic_write import write_atomically
from mjfleet.utils.console import printable
from mjfleet.utils.safe_read import open_regular

CONFIG_BYTES = 2**16
TEACHER = "agent.teacher.checkpoint"
TASK_ENTRY = "task"  # Names the task whose configuration the file holds.
IsGiven = Callable[[str], bool]
"""Whether the command line gives a field, by its dotted name."""
# Flags of one command, not of the run.
NOT_RECORDED = (
    "resume", "fork", "teacher", "config", "dry_run", "run_dir", "as_trained", "seeds", "per_run",
)  # fmt: skip


def read_config(path: str, name: str | None = None, task: str | None = None) -> dict[str, Any]:
    """Return the content of a YAML or JSON file, which may be a part of a configuration.

    Messages call it `name`, or `--config` and its path. UserError if it cannot be read, is not a
    mapping of names, or is of another task than `task`.
    """
    name, is_typed = name or f"--config {path}", name is None
    return without_task(_read(path, name, is_typed), name, task)


def without_task(data: Any, name: str, task: str | None = None) -> dict[str, Any]:
    """Return a configuration without its task; UserError as for `read_config`."""
    if not isinstance(data, dict):
        raise UserError(f"{name}: must hold a mapping such as `agent: {{seed: 2}}`.")
    data = dict(data)
    its_task = data.pop(TASK_ENTRY, None)
    if None not in (task, its_task) and its_task != task:
        raise UserError(
            f"{name} is of the task {its_task}, not of {task}: train {shlex.quote(str(its_task))} "
            f"with it, or remove its lines `{TASK_ENTRY}` and `experiment_name` to use its values."
        )
    return data


def task_of(path: str) -> str:
    """Return the task that the file of `--config` names, or ""; UserError as for `read_config`."""
    task = value_at(_read(path, f"--config {path}", is_typed=True), TASK_ENTRY)
    return task if isinstance(task, str) else ""


def from_file(
    found: FoundTask,
    data: Mapping[str, Any],
    name: str,
    note: Note | None = None,
    is_given: IsGiven | None = None,
    default: TrainConfig | None = None,
) -> TrainConfig:
    """Return a task's configuration with the data of a file, which decides what is learned.

    Hosts, folders, loggers, accounts, teachers and classes of other packages count only if the
    task's config.py or the note says the same; see `Kind`.

    Args:
        data: what `read_config` has read.
        name: how messages name the file.
        note: this installation's note of the run whose file it is; None: there is none.
        is_given: whether the command line gives a field. None: the command trains nothing.
        default: the configuration that the file changes, with the algorithm that is given. None:
            the task's.

    Raises:
        UserError: a value is not allowed, or one is needed that does not count.
    """
    default = default or found.defaults()
    usual, needed = by_dotted_name(to_dict(default)), dict[str, Any]()

    def counts(dotted: str, value: Any) -> bool:
        is_own = field_kinds()[dotted] is Kind.CODE and found.owns(value)
        return value == usual.get(dotted) or is_own or bool(note and note.has(dotted, value))

    try:
        algorithm = None if is_given and is_given(ALGORITHM) else value_at(data, ALGORITHM)
        if algorithm is not None and (not is_class_path(algorithm) or counts(ALGORITHM, algorithm)):
            default = found.with_algorithm(default, algorithm)
        data = of_algorithm(default, data)
        counting = copy.deepcopy(data)
        for dotted, value in _placement_in(from_dict(default, data)).items():
            if counts(dotted, value):
                continue
            is_class = field_kinds()[dotted] is Kind.CODE
            folder, _, last = dotted.rpartition(".")
            del (value_at(counting, folder) if folder else counting)[last]
            if (is_class or is_given) and not (is_given and is_given(dotted)):
                needed[dotted] = value
        config = from_dict(default, counting)
    except UserError as error:
        raise UserError(f"{name}: {error}") from None
    needed.pop(TEACHER, None)  # --teacher is asked for where it is needed.
    for field in unused_fields(config.agent, list(needed)):
        if not (is_given and is_given(field.decider)):  # What is given may make it count.
            del needed[field.name]
    folder = needed.get("tasks_dir")
    has_code = is_snapshot(found.folder)  # Which is the run's own.
    if folder and (has_code or not Path(folder).is_dir() or found.folder.parent.samefile(folder)):
        del needed["tasks_dir"]  # It is another machine's, or the task has been found anyway.
    if needed:
        flags = shlex.join(word for one in needed.items() for word in as_words(*one))
        raise UserError(
            f"{name} does not decide {', '.join(needed)}, since no run that was begun here has "
            "it. Give what you want by flags of `train`, or in the task's config.py; the file "
            f"has {flags}"
        )
    return config


def from_typed_file(
    found: FoundTask,
    path: str,
    data: Mapping[str, Any],
    name: str,
    is_given: IsGiven,
    default: TrainConfig,
) -> TrainConfig:
    """Return what `from_file` does of a file that the user names, with the note of its run.

    UserError also if its `tasks_dir` is not there, unless a run's file names another machine's.
    """
    place = Path(path).parent
    config = from_file(found, data, name, note_of(place), is_given, default)
    folder = None if is_given("tasks_dir") else data.get("tasks_dir")
    if folder and not Path(folder).is_dir() and not record_file(place).exists():
        raise UserError(f"{name}: its tasks_dir, {folder}, is no folder.")
    return config


def of_algorithm(config: TrainConfig, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a file's data without fields that belong to another algorithm than that of `config`.

    These are PPO's and SAC's and, where the file names another class, all that are not known.
    """
    data, algorithm = copy.deepcopy(dict(data)), config.agent.algorithm
    values, known = value_at(data, "agent.algorithm"), {f.name for f in fields(algorithm)}
    if isinstance(values, dict):
        name = str(values.get("name", algorithm.name))
        is_other = name != algorithm.name and is_class_path(name)
        ours = {f.name for kind in (PPOConfig, SACConfig) for f in fields(kind)}
        for other in (values.keys() if is_other else ours) - known:
            values.pop(other, None)
    return data


def classes_in(data: Mapping[str, Any]) -> list[str]:
    """Return the names of classes in a file's data; some have the form `module:Class`."""
    names = {name for name, kind in field_kinds().items() if kind is Kind.CODE}
    return [x for name, x in by_dotted_name(data).items() if name in names and isinstance(x, str)]


def recorded_in(found: FoundTask, data: Mapping[str, Any], algorithm: str) -> TrainConfig:
    """Return a run's configuration, of its file's data, with the fields of an algorithm."""
    default = found.defaults(algorithm)
    return from_dict(default, of_algorithm(default, data))


def write_config(
    path: Path, task: str, config: TrainConfig, final_path: Path | None = None
) -> None:
    """Write the task and every value of a configuration, as `--config` reads them.

    The file names itself by its `final_path`, if it is to be moved there.
    """
    import yaml

    # Nothing in the path may end the comment.
    place = printable(str((final_path or path).resolve())).replace("\n", "\\n")
    values = yaml.safe_dump({TASK_ENTRY: task, **_recorded(config)}, sort_keys=False)
    text = f"# Train again with: train --config {place}\n{values}"
    write_atomically(path, lambda file: file.write(text.encode(errors="backslashreplace")))


def placement_of(config: TrainConfig) -> dict[str, Any]:
    """Return what a run's note keeps of its configuration, since no file decides it."""
    values = _placement_in(config)
    return {name: value for name, value in values.items() if name not in NOT_RECORDED}


def placement_flags(config: TrainConfig, defaults: TrainConfig) -> list[str]:
    """Return the flags that give a command what does not count in a file and has an effect; not
    the teacher's.

    `defaults` are the task's.
    """
    usual, values = placement_of(defaults), placement_of(config)
    unused = {field.name for field in unused_fields(config.agent, values)}
    return [
        word
        for name, value in values.items()
        if value != usual.get(name) and name not in unused and not name.startswith("agent.teacher.")
        for word in as_words(name, value)
    ]


def differences(config: TrainConfig, other: TrainConfig) -> dict[str, tuple[Any, Any]]:
    """Return the values of both where the recorded ones differ, by dotted name."""
    ours, theirs = by_dotted_name(_recorded(config)), by_dotted_name(_recorded(other))
    pairs = {name: (ours.get(name), theirs.get(name)) for name in ours | theirs}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _read(path: str, name: str, is_typed: bool) -> Any:
    """Return what a YAML or JSON file holds."""
    import yaml  # It takes a while.

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            counts = Counter(str(key.value) for key, _ in node.value)
            if twice := [name for name, count in counts.items() if count > 1]:
                raise yaml.YAMLError(f"`{twice[0]}` stands there twice\n{node.start_mark}")
            return super().construct_mapping(node, deep=True)  # Refuses what holds itself.

    try:
        with open_regular(Path(path), CONFIG_BYTES, may_link=is_typed) as file:
            text = file.read()
        # YAML includes JSON, but for the tabs that indent some files.
        data = yaml.load(text.expandtabs() if path.endswith(".json") else text, Loader)
        if _count(data, {}) > CONFIG_BYTES:
            raise ValueError("its aliases stand for too many values")
        return data
    except OSError as error:
        raise UserError(f"{name}: {error.strerror}.") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UserError(f"{name}: not YAML: {error}") from None


def _count(value: Any, known: dict[int, int]) -> int:
    """Return how many values there are in one, what aliases stand for counted each time."""
    if isinstance(value, dict | list) and id(value) not in known:
        parts = value.values() if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_count(part, known) for part in parts)
    return known.get(id(value), 1)


def _placement_in(config: TrainConfig) -> dict[str, Any]:
    """Return the values that count in no file, by dotted name."""
    found = {}
    for name, value in by_dotted_name(to_dict(config)).items():
        kind = field_kinds().get(name)
        is_class = kind is Kind.CODE and is_class_path(value)
        if is_class or kind in (Kind.PLACEMENT, Kind.SOURCE):
            found[name] = value
    return found


def _recorded(config: TrainConfig) -> dict[str, Any]:
    return {name: value for name, value in to_dict(config).items() if name not in NOT_RECORDED}
