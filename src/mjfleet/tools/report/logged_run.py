"""Reads what runs have logged, and groups the runs that differ in their seed alone."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from mjfleet.config import by_dotted_name
from mjfleet.errors import UserError
from mjfleet.runs.config_yaml import CONFIG_FILE, read_config
from mjfleet.runs.metrics_csv import METRICS_FILE, read_rows, seconds_spent, value
from mjfleet.runs.run_lookup import is_group, members_of, record_of
from mjfleet.utils.console import print_error

STEPS, MINUTES, ITERATION = "million steps", "minutes", "iteration"
NO_DIFFERENCE = (
    "agent.seed", "agent.run_name", "agent.experiment_name", "agent.logger", "agent.wandb",
    "agent.save_interval",
)  # fmt: skip
"""Settings in which the runs of a row may differ."""
HASH_LENGTH = 8
Columns = Mapping[str, np.ndarray]
"""Numbers by name, one for each iteration or point; NaN where there is none."""


@dataclass(frozen=True, eq=False)
class LoggedRun:
    """A run's metrics, and what they depend on."""

    folder: Path
    columns: Columns  # Of metrics.csv.
    along: Columns  # Values for the x-axis: STEPS, MINUTES and ITERATION.
    record: Mapping[str, Any]  # Entries of run.json; none if it cannot be read.

    @cached_property
    def settings(self) -> Mapping[str, Any]:
        """What decides how well it learns, except the seed; UserError if that cannot be read."""
        name = str(self.folder / CONFIG_FILE)
        config = read_config(name, name)  # Only compared.
        workers = self.columns["world_size"][-1] if "world_size" in self.columns else None
        settings = {"task": self.record.get("task"), "workers": workers}
        known = {key: config[key] for key in ("env", "agent", "engine") if key in config}
        values = by_dotted_name(known).items()
        settings |= {key: v for key, v in values if not key.startswith(NO_DIFFERENCE)}
        match self.record.get("attempts"):
            case [*_, {"code": {"hash": str() as code}}]:
                settings["code"] = code[:HASH_LENGTH]
        return settings


@dataclass(frozen=True)
class Row:
    """A run, or several that differ in their seed alone: a line of a table, a curve."""

    name: str
    runs: Sequence[LoggedRun]


def read_named(folders: Mapping[str, Path]) -> list[Row]:
    """Read run directories and groups, by the names that the user gave them.

    There is a row for each setting; where only seeds differ, one for each name. Rows of the same
    name, such as those of a sweep, are told apart by their settings.

    Raises:
        UserError: two names mean the same run, or a run cannot be read.
    """
    named = {name: read_runs(folder) for name, folder in folders.items()}
    names: dict[Path, str] = {}
    for name, runs in named.items():
        for place in [run.folder.resolve() for run in runs]:
            if (other := names.setdefault(place, name)) != name:
                raise UserError(f"{name} and {other} mean the same run; name it once.")
    runs = [run for some in named.values() for run in some]
    differing = differences(runs)
    if not differing:
        return [Row(name, some) for name, some in named.items()]
    groups: dict[str, list[LoggedRun]] = {}
    for run in runs:
        settings = (f"{key.rpartition('.')[2]} {run.settings.get(key)}" for key in differing)
        groups.setdefault(", ".join(settings), []).append(run)
    joined = [
        ", ".join(dict.fromkeys(names[run.folder.resolve()] for run in some))
        for some in groups.values()
    ]
    return [
        Row(name if joined.count(name) == 1 else f"{name} ({label})", some)
        for name, (label, some) in zip(joined, groups.items(), strict=True)
    ]


def differences(runs: Sequence[LoggedRun]) -> list[str]:
    """Return the names of the settings that are not the same in all runs."""
    if len(runs) == 1:
        return []
    names = dict.fromkeys(name for run in runs for name in run.settings)
    return [name for name in names if len({str(run.settings.get(name)) for run in runs}) > 1]


def read_runs(folder: Path) -> list[LoggedRun]:
    """Read a run directory, or those of a group's runs that have metrics and have not failed.

    If all have failed, all are read. UserError if it is no run, or none has metrics.
    """
    folders = members_of(folder) if is_group(folder) else [folder]
    runs = [run for run in map(_read, folders) if len(run.columns)]
    if not runs:
        raise UserError(f"{folder}: there are no iterations in {METRICS_FILE} yet.")
    failed = [run for run in runs if run.record.get("status") == "failed"]
    if len(failed) == len(runs):
        return runs
    for run in failed:
        print_error(f"{run.folder} is left out, since it has failed")
    return [run for run in runs if run not in failed]


def _read(folder: Path) -> LoggedRun:
    """Read a run directory, which has no columns as long as there are no metrics."""
    try:
        names, rows = read_rows(folder / METRICS_FILE)
    except OSError as error:
        raise UserError(f"{folder}: its {METRICS_FILE}: {error.strerror}.") from None
    columns = {n: np.array([value(row, n) for row in rows], dtype=float) for n in names if rows}
    record: Mapping[str, Any] = {}
    with suppress(UserError):  # The metrics tell enough.
        record = record_of(folder)
    if not rows:
        return LoggedRun(folder, {}, {}, record)
    steps = np.nan_to_num(columns.get("total_steps", np.zeros(len(rows))))
    along = {
        STEPS: np.maximum.accumulate(steps) / 1e6,
        MINUTES: np.array(seconds_spent(rows)) / 60,
        ITERATION: columns["iteration"],
    }
    return LoggedRun(folder, columns, along, record)
