"""Summarises a run in a few numbers for `mjfleet runs`. Reads each file once, imports no torch."""

import os
import reprlib
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import fmean
from typing import Any

from mjfleet.errors import UserError
from mjfleet.runs.find_run import name_of
from mjfleet.runs.metrics_csv import METRICS_FILE, read_rows, value
from mjfleet.runs.run_json import RECORD_FILE, record_of, started_at
from mjfleet.runs.run_lock import is_locked
from mjfleet.utils.console import in_a_line

MEAN, EVALUATED = "mean_return", "eval/return"  # Columns of metrics.csv.


@dataclass(kw_only=True)
class Summary:
    """A run, or a group of runs. None: its files do not tell."""

    run: str  # Experiment and name of the run: its folder relative to the log root.
    members: int | None = None  # Runs of a group, also those that have not begun.
    finished_members: int | None = None
    task: str | None = None
    # The status in run.json. died: recorded as running, but no process runs it. damaged: run.json
    # cannot be read.
    status: str = "damaged"
    iterations: int = 0  # Completed.
    max_iterations: int | None = None
    seed: int | None = None
    last_mean_return: float | None = None
    best_mean_return: float | None = None  # The greatest of any iteration.
    best_eval_return: float | None = None  # The greatest of any evaluation.
    workers: int | None = None
    devices: list[str] | None = None  # The workers' devices, each once.
    parent: str | None = None  # The run from whose checkpoint it began, and at which iteration.
    started: str | None = None  # Time of the first start, with its zone.
    seconds: float | None = None  # Running time without the pauses between attempts.
    bytes: int = 0  # Size of all files.
    problem: str | None = None  # What is wrong with the files.


def summarise(run_dir: Path) -> tuple[float, Summary]:
    """Return the start of a run in seconds since the epoch, and its summary."""
    summary = Summary(run=name_of(run_dir))
    started, problems = 0.0, []
    try:
        started = run_dir.stat().st_mtime
        summary.bytes = bytes_in(run_dir)
        record = record_of(run_dir)
        started = started_at(record) or started
        _read_record(summary, run_dir, record)
    except (UserError, OSError) as error:
        problems.append(str(error))
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        why = reprlib.repr(in_a_line(error))
        problems.append(f"{run_dir / RECORD_FILE} is incomplete: {type(error).__name__}: {why}.")
    try:
        _, rows = read_rows(run_dir / METRICS_FILE, only=("iteration", MEAN, EVALUATED))
        if rows:
            summary.iterations = int(rows[-1]["iteration"])
            summary.last_mean_return = value(rows[-1], MEAN)
        best = (
            max((number for row in rows if (number := value(row, name)) is not None), default=None)
            for name in (MEAN, EVALUATED)
        )
        summary.best_mean_return, summary.best_eval_return = best
    except OSError as error:
        problems.append(f"{run_dir / METRICS_FILE}: {error.strerror}.")
    summary.problem = " ".join(problems) or None
    return started, summary


def summarise_group(group: Path, members: Sequence[Summary]) -> tuple[float, Summary]:
    """Return the start of a group in seconds since the epoch, and the summary of its members.

    Returns are means over the members that have any.
    """
    summary = Summary(run=name_of(group), members=len(members))
    started = 0.0
    try:
        started = group.stat().st_mtime
        record = record_of(group)
        started = started_at(record) or started
        summary.task, summary.status = record["task"], _status(group, record)
        summary.started = record.get("started") if started_at(record) else None
        summary.members = max(len(members), len(record.get("members", {})))
        summary.iterations = sum(member.iterations for member in members)
        lengths = [member.max_iterations or 0 for member in members]
        waiting = summary.members - len(members)
        summary.max_iterations = sum(lengths) + max(lengths, default=0) * waiting
    except (UserError, OSError) as error:
        summary.problem = str(error)
    summary.finished_members = sum(member.status == "finished" for member in members)
    for name in ("last_mean_return", "best_mean_return", "best_eval_return"):
        found = [number for one in members if (number := getattr(one, name)) is not None]
        setattr(summary, name, fmean(found) if found else None)
    summary.bytes = sum(member.bytes for member in members)
    return started, summary


def _read_record(summary: Summary, run_dir: Path, record: dict[str, Any]) -> None:
    summary.task = record["task"]
    summary.iterations = _count(record.get("iterations", 0))
    summary.seed = _count(record["seed"]) if "seed" in record else None
    if parent := record.get("parent"):
        summary.parent = str(parent.get("run") or parent.get("checkpoint"))
        if parent.get("iteration") is not None:
            summary.parent += f" at iteration {parent['iteration']}"
        if parent.get("networks_only"):
            summary.parent += ", its networks only"
    if _seconds(record["started"]):
        summary.started = record["started"]
    plan, attempts, status = record["plan"], record["attempts"], _status(run_dir, record)
    summary.max_iterations = _count(plan["max_iterations"])
    summary.workers = _count(plan["world_size"])
    summary.devices = list(dict.fromkeys(str(worker["device"]) for worker in plan["workers"]))
    # After an attempt that was killed, only the times of its files tell when it ended.
    files = [path for name in (RECORD_FILE, METRICS_FILE) if (path := run_dir / name).exists()]
    until = max(path.stat().st_mtime for path in files) if status == "died" else time.time()
    ends = [_seconds(attempt["ended"]) for attempt in attempts[:-1]]
    ends.append(_seconds(attempts[-1]["ended"]) or until)
    begins = [_seconds(attempt["started"]) for attempt in attempts]
    spans = zip(begins, ends, strict=True)
    seconds = sum(max(0.0, end - begin) for begin, end in spans if begin and end)
    summary.seconds, summary.status = round(seconds, 1), status


def _status(folder: Path, record: dict[str, Any]) -> str:
    """Return the recorded status of a run or a group; `died` if nobody trains what is running."""
    died = record.get("status") == "running" and not is_locked(folder)
    return "died" if died else str(record.get("status"))


def bytes_in(*places: Path) -> int:
    """Return the size of files, and of all files in folders, which may come and go meanwhile; one
    with two names counts once."""
    sizes = dict[int, int]()
    for place in places:
        inside = (Path(here, name) for here, _, names in os.walk(place) for name in names)
        for file in inside if place.is_dir() else [place]:
            with suppress(FileNotFoundError):
                about = file.lstat()
                sizes[about.st_ino] = about.st_size
    return sum(sizes.values())


def _count(number: Any) -> int:
    if type(number) is not int or number < 0:
        raise ValueError(f"{reprlib.repr(number)} is not a number of things")
    return number


def _seconds(when: str | None) -> float | None:
    """Return a time of run.json in seconds since the epoch."""
    return None if when is None else datetime.fromisoformat(when).astimezone().timestamp()
