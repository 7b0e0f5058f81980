"""Reads what runs have logged; those of a seed group are one row."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from mjfleet.config import by_dotted_name
from mjfleet.config.train_config import decides_learning
from mjfleet.errors import UserError
from mjfleet.runs.attempts import config_of
from mjfleet.runs.config_yaml import read_config
from mjfleet.runs.find_run import members_of
from mjfleet.runs.metrics_csv import METRICS_FILE, read_rows, seconds_spent, value
from mjfleet.runs.run_json import CONFIG_FILE, RECORD_FILE, is_group, record_of
from mjfleet.utils.console import print_error

STEPS, MINUTES, ITERATION = AXES = ("million steps", "minutes", "iteration")


@dataclass(frozen=True, eq=False)
class LoggedRun:
    """What a run, or a group of runs, has logged; empty where there is nothing to read."""

    folder: Path
    columns: Mapping[str, np.ndarray]
    """Those of metrics.csv and AXES: a number for each iteration, NaN where there is none."""
    record: Mapping[str, Any]  # Entries of run.json or group.json.
    config: Mapping[str, Any]  # Values of config.yaml by their dotted names.
    problem: str  # Why config.yaml cannot be read.

    @cached_property
    def settings(self) -> Mapping[str, Any]:
        """Settings that decide what is learned, except the seed; UserError without config.yaml."""
        if self.problem:
            raise UserError(f"{self.folder}: {self.problem}")
        workers = self.columns.get("world_size")
        settings = {name: v for name, v in self.config.items() if decides_learning(name)}
        settings |= {"agent.seed": None, "workers": None if workers is None else f"{workers[-1]:g}"}
        match self.record.get("attempts"):
            case [*_, {"code": {"hash": str() as code}}]:
                settings["code"] = code[:8]
        return settings


Rows = Mapping[str, Sequence[LoggedRun]]
"""By name the runs of a table's line and of a curve: one run, a sweep's trial, a seed group."""


def read_run(folder: Path) -> LoggedRun:
    """Read a run directory, or the folder of a group."""
    record, config, problem = dict[str, Any](), dict[str, Any](), ""
    with suppress(UserError):  # The summary of the run says why.
        record = record_of(folder)
    try:
        config = by_dotted_name(read_config(str(config_of(folder)), CONFIG_FILE))
    except UserError as error:
        problem = str(error)
    names, rows = list[str](), list[dict[str, str]]()
    with suppress(OSError):  # As above.
        names, rows = read_rows(folder / METRICS_FILE)
    columns = {n: np.array([value(row, n) for row in rows], dtype=float) for n in names if rows}
    if rows:
        steps = np.nan_to_num(columns.get("total_steps", np.zeros(len(rows))))
        columns[STEPS] = np.maximum.accumulate(steps) / 1e6
        columns[MINUTES] = np.array(seconds_spent(rows)) / 60
    return LoggedRun(folder, columns, record, config, problem)


def read_named(folders: Mapping[str, Path]) -> Rows:
    """Read run directories and groups, by the names that the user gave them.

    Runs without iterations are left out, and those of a group that have failed. UserError if a
    folder is none of a run or a group, or group.json cannot be read.
    """
    rows: dict[str, list[LoggedRun]] = {}
    for name, folder in folders.items():
        whole, runs, is_one = read_run(folder), list[LoggedRun](), not is_group(folder)
        for run in [whole] if is_one else map(read_run, members_of(folder)):
            if run.record.get("status") == "failed" and not is_one:
                print_error(f"{run.folder} is left out, since it has failed")
            elif run.columns:
                runs.append(run)
        if not runs and not whole.record:
            problem = f"it has no {RECORD_FILE} and no {METRICS_FILE} that can be read"
            raise UserError(f"{name} is no run directory: {problem}.")
        if not is_one and record_of(folder).get("kind") == "sweep":
            rows |= {f"{name}/{run.folder.name}": [run] for run in runs}
        elif runs:
            rows[name] = runs
    return rows
