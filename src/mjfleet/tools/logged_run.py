"""Reads what runs have logged, and groups them by what differs between them. Imports no torch."""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mjfleet.config import by_dotted_name
from mjfleet.errors import UserError
from mjfleet.runs.config_yaml import CONFIG_FILE, read_config
from mjfleet.runs.metrics_csv import METRICS_FILE, completed_iterations, read_rows
from mjfleet.runs.run_lookup import is_group, members_of, name_of, record_of
from mjfleet.utils.console import print_error

NO_DIFFERENCE = (
    "agent.seed", "agent.run_name", "agent.experiment_name", "agent.logger", "agent.wandb",
    "agent.save_interval",
)  # fmt: skip
"""Settings in which the runs of a group may differ."""
MAX_DIFFERENCES = 3  # Settings in a group's name.
HASH_LENGTH = 8


@dataclass(frozen=True)
class LoggedRun:
    """A run's metrics, and what they depend on."""

    folder: Path
    columns: Sequence[str]
    rows: Sequence[dict[str, str]]  # At least one.
    settings: Mapping[str, Any]  # What decides how well it learns, except the seed.
    has_failed: bool = False

    @property
    def name(self) -> str:
        """The run's name, after its group's if it is a member of one."""
        return name_of(self.folder.resolve()).partition("/")[2]


def read_runs(folder: Path) -> list[LoggedRun]:
    """Read a run directory, or those of a group's runs that have metrics and have not failed.

    If all have failed, all are read. UserError if it is none, or none has metrics.
    """
    if not is_group(folder):
        return [read_run(folder)]
    runs = {run: read_run(run) for run in members_of(folder) if completed_iterations(run)}
    if not runs:
        raise UserError(f"{folder}: none of its runs has metrics yet.")
    sound = {run: read for run, read in runs.items() if not read.has_failed}
    for run in runs.keys() - (sound or runs).keys():
        print_error(f"{run} is left out, since it has failed")
    return list((sound or runs).values())


def read_run(folder: Path) -> LoggedRun:
    """Read a run directory; UserError if it is none, or has no metrics."""
    file = folder / METRICS_FILE
    if not os.path.lexists(file):
        raise UserError(f"{folder} is not a run directory: it has no {METRICS_FILE}.")
    try:
        columns, rows = read_rows(file)
    except OSError as error:
        raise UserError(f"{folder}: its {METRICS_FILE}: {error.strerror}.") from None
    if not rows:
        raise UserError(f"{folder}: its {METRICS_FILE} has no rows yet.")
    name = str(folder / CONFIG_FILE)
    config = read_config(name, name)  # Only compared.
    record: dict[str, Any] = {}
    with suppress(UserError):  # The rest tells enough.
        record = record_of(folder)
    settings = {"task": record.get("task"), "workers": rows[-1].get("world_size")}
    values = by_dotted_name(
        {key: config[key] for key in ("env", "agent", "engine") if key in config}
    )
    settings |= {key: v for key, v in values.items() if not key.startswith(NO_DIFFERENCE)}
    match record.get("attempts"):
        case [*_, {"code": {"hash": str() as code}}]:
            settings["code"] = code[:HASH_LENGTH]
    return LoggedRun(folder, columns, rows, settings, record.get("status") == "failed")


def group_runs(runs: Sequence[LoggedRun]) -> dict[str, list[LoggedRun]]:
    """Return the runs of each group by what makes it differ from the others.

    A group of runs that have nothing to differ from has the name of its first run.
    """
    differing = differences([run.settings for run in runs])
    groups: dict[tuple[str, ...], list[LoggedRun]] = {}
    for run in runs:
        groups.setdefault(tuple(str(run.settings.get(k)) for k in differing), []).append(run)
    if len(groups) == 1:
        return {runs[0].name: list(runs)}
    names = {values: _label(dict(zip(differing, values, strict=True))) for values in groups}
    is_clear = len(set(names.values())) == len(groups)
    return {
        name if is_clear else f"{name} ({groups[values][0].name})": groups[values]
        for values, name in names.items()
    }


def differences(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of the settings that are not the same everywhere."""
    names = dict.fromkeys(name for each in settings for name in each)
    return [name for name in names if len({str(each.get(name)) for each in settings}) > 1]


def _label(differing: Mapping[str, str]) -> str:
    """Return the first differences in words: the task, then `name value`."""
    named = {key: value for key, value in differing.items() if key != "task"}
    shown = [f"{key.rpartition('.')[2]} {value}" for key, value in named.items()][:MAX_DIFFERENCES]
    if len(named) > MAX_DIFFERENCES:
        shown = [] if "task" in differing else [*shown, "..."]
    return ", ".join([differing["task"], *shown] if "task" in differing else shown)
