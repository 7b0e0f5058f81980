"""Writes config.yaml into a run directory, and reads it and other files for `--config`."""

import shlex
from pathlib import Path
from typing import Any

from mjfleet.cli.flag_table import as_flag
from mjfleet.config import TrainConfig, by_dotted_name, to_dict
from mjfleet.errors import UserError
from mjfleet.runs.foreign_files import (
    CLASS,
    IsGiven,
    leave_out_placement,
    placement_of,
    remember,
    remember_placement,
)
from mjfleet.utils.atomic_write import write_atomically
from mjfleet.utils.console import printable
from mjfleet.utils.safe_read import read_bytes

CONFIG_FILE = "config.yaml"
CONFIG_BYTES = 2**16
TEACHER_CONFIG = "agent.teacher."
TASK_ENTRY = "task"  # Names the task whose configuration the file holds.
# Flags of one command, not of the run.
NOT_RECORDED = (
    "resume", "teacher", "config", "dry_run", "run_dir", "seeds", "per_run",
)  # fmt: skip


def read_config(
    path: str,
    name: str | None = None,
    task: str | None = None,
    is_given: IsGiven | None = None,
    as_written: bool = False,
) -> dict[str, Any]:
    """Return the content of a YAML or JSON file, which may be a part of a configuration.

    Args:
        path: the file.
        name: how messages name the file. None: `--config` and its path.
        task: the task that the configuration is wanted for; None: the one that it is of.
        is_given: see `leave_out_placement`.
        as_written: whether to keep what does not count in a file.

    Raises:
        UserError: the file cannot be read, is not a mapping of names, or is of another task; or
            the command line has to say what does not count in it.
    """
    is_typed = name is None
    name = name or f"--config {path}"
    if not path:
        raise UserError("--config is ''; it must be the name of a file.")
    data = _read(path, name, is_typed)
    its_task = data.pop(TASK_ENTRY, None)
    if None not in (task, its_task) and its_task != task:
        raise UserError(
            f"{name} is of the task {its_task}, not of {task}: train {shlex.quote(str(its_task))} "
            f"with it, or remove its line `{TASK_ENTRY}` to use its values for {task} anyway."
        )
    if not as_written:
        leave_out_placement(data, name, is_given)
    return data


def task_of(path: str) -> str:
    """Return the task of the file of `--config`; UserError if it cannot be read or names none."""
    data = _read(path, f"--config {path}", is_typed=True)
    task = data.get(TASK_ENTRY)
    if not isinstance(task, str):
        raise UserError(
            f"--config {path} names no task: add a line such as `task: cartpole-balance`, or name "
            f"the task first: train <task> --config {path}"
        )
    return task


def write_config(
    path: Path, task: str, config: TrainConfig, final_path: Path | None = None
) -> None:
    """Write the task and every value of a configuration, as `--config` reads them.

    The file names itself by its `final_path`, if it is to be moved there.
    """
    import yaml

    # Nothing in the path may end the comment.
    place = printable(str((final_path or path).resolve())).replace("\n", "\\n")
    header = f"# Train again with: train --config {place}\n"
    values = _recorded(config)
    remember_placement(values)
    for reference in config.agent.class_paths.values():
        remember(CLASS, reference)
    text = header + yaml.safe_dump({TASK_ENTRY: task, **values}, sort_keys=False)
    write_atomically(path, lambda file: file.write(text.encode(errors="backslashreplace")))


def placement_flags(config: TrainConfig) -> list[str]:
    """Return the flags that give a command what does not count in a file; not the teacher's."""
    values = placement_of(_recorded(config)) | config.agent.class_paths
    return [as_flag(n, value) for n, value in values.items() if not n.startswith(TEACHER_CONFIG)]


def config_of_attempt(run_dir: Path, attempt: int, attempts: int) -> Path:
    """Return the file of the configuration of one of a run's attempts; the first has number 1."""
    if attempt == attempts:
        return run_dir / CONFIG_FILE
    return run_dir / "configs" / f"attempt_{attempt}.yaml"


def differences(config: TrainConfig, other: TrainConfig) -> dict[str, tuple[Any, Any]]:
    """Return the values of both where the recorded ones differ, by dotted name."""
    ours, theirs = by_dotted_name(_recorded(config)), by_dotted_name(_recorded(other))
    pairs = {name: (ours.get(name), theirs.get(name)) for name in ours | theirs}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _read(path: str, name: str, is_typed: bool) -> dict[str, Any]:
    """Return the mapping that a YAML or JSON file holds."""
    import yaml  # It takes a while.

    try:
        text = read_bytes(Path(path), CONFIG_BYTES, may_link=is_typed)
        # YAML includes JSON, but for the tabs that indent some files.
        data = yaml.safe_load(text.expandtabs() if path.endswith(".json") else text)
    except OSError as error:
        raise UserError(f"{name}: {error.strerror}.") from None
    except (yaml.YAMLError, ValueError) as error:
        raise UserError(f"{name}: not YAML: {error}") from None
    except RecursionError:
        raise UserError(f"{name}: it is nested too deeply.") from None
    if not isinstance(data, dict):
        raise UserError(f"{name}: must hold a mapping such as `agent: {{seed: 2}}`.")
    return data


def _recorded(config: TrainConfig) -> dict[str, Any]:
    return {name: value for name, value in to_dict(config).items() if name not in NOT_RECORDED}
