"""What a report of a run shows, gathered from the files of its directory. Imports nothing heavy."""

import json
import os
from base64 import b64encode
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mjfleet.config import to_dict
from mjfleet.errors import UserError
from mjfleet.registry import discover, find_task
from mjfleet.runs.config_yaml import CONFIG_FILE, read_config
from mjfleet.runs.metrics_csv import METRICS_FILE, read_rows, value
from mjfleet.runs.run_json import RECORD_FILE, now
from mjfleet.runs.run_lookup import record_of
from mjfleet.runs.run_summary import Summary, summarise
from mjfleet.tools.report.measured import Curves, Spent, curves, slowest, time_spent
from mjfleet.utils.console import in_a_line

VIDEOS = 3
"""How many are shown, the newest ones."""
LARGEST_VIDEO_BYTES = 4_000_000
"""A larger one is linked, not embedded."""


@dataclass(frozen=True)
class Setting:
    """A number of the configuration, under the name of its flag."""

    flag: str
    value: Any
    default: Any = None
    """The task's, where that is known."""


@dataclass(frozen=True)
class Video:
    """A video of the run."""

    name: str
    source: str
    """Where a page finds it: the video itself as a data URI, or a path."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """A run, as a page tells of it."""

    written: str
    """When this was gathered."""
    summary: Summary
    record: dict[str, Any]
    """run.json, of which everything may be missing."""
    problems: list[str]
    """What is wrong with the run's files."""
    settings: list[Setting]
    """The whole configuration."""
    changed: list[Setting] | None
    """Those that are not the task's defaults; None: the task's folder is not here any more."""
    total_steps: float | None
    """Environment steps of all worlds."""
    curves: Curves
    time_spent: list[Spent]
    slowest: dict[int, tuple[float, float]]
    videos: list[Video]
    failures: dict[int, list[dict[str, Any]]]
    """By attempt, counted from 1, what its workers wrote: the causes first."""
    dumps: list[str]
    """Files for `mjfleet inspect`."""


def gather(run_dir: Path, page_folder: Path) -> Report:
    """Read a run's files. What cannot be read is left out, and named as a problem.

    Args:
        run_dir: the run's directory.
        page_folder: the folder of the page, from where links lead.

    Raises:
        UserError: it is no run directory.
    """
    if not any((run_dir / name).is_file() for name in (RECORD_FILE, METRICS_FILE)):
        raise UserError(
            f"{run_dir} is no run directory: it has neither {RECORD_FILE} nor {METRICS_FILE}."
        )
    _, summary = summarise(run_dir.resolve())
    problems = [summary.problem] if summary.problem else []
    record, config = {}, {}
    with suppress(UserError):  # The summary says so.
        record = record_of(run_dir)
    try:
        config = read_config(str(run_dir / CONFIG_FILE), CONFIG_FILE)
    except UserError as error:
        problems.append(str(error))
    defaults = _defaults(record)
    settings = [
        Setting(flag, given, (defaults or {}).get(flag)) for flag, given in _flat(config).items()
    ]
    columns, rows = read_rows(run_dir / METRICS_FILE)
    failures, unread = _failures(run_dir, max(1, len(record.get("attempts") or [])))
    return Report(
        written=now(),
        summary=summary,
        record=record,
        problems=problems + unread,
        settings=settings,
        changed=[s for s in settings if s.value != s.default] if defaults else None,
        total_steps=value(rows[-1], "total_steps") if rows else None,
        curves=curves(columns, rows),
        time_spent=time_spent(rows),
        slowest=slowest(rows),
        videos=_videos(run_dir / "videos", page_folder),
        failures=failures,
        dumps=sorted(map(str, run_dir.glob("failures/**/nan_rank*.npz"))),
    )


def _defaults(record: Mapping[str, Any]) -> dict[str, Any] | None:
    """The flags of the run's task with their defaults, as its folder has them today."""
    name, folder = str(record.get("task")), (record.get("plan") or {}).get("task_folder")
    with suppress(UserError):
        try:
            found = find_task(name, Path(str(folder)))
        except UserError:  # The run comes from another machine.
            found = discover(os.environ).find(name)
        return _flat(to_dict(found.defaults()))
    return None


def _flat(config: Mapping[str, Any], prefix: str = "--") -> dict[str, Any]:
    """Values by the names of their flags."""
    found: dict[str, Any] = {}
    for name, given in config.items():
        flag = f"{prefix}{str(name).replace('_', '-')}"
        found |= _flat(given, f"{flag}.") if isinstance(given, Mapping) else {flag: given}
    return found


def _failures(run_dir: Path, last: int) -> tuple[dict[int, list[dict[str, Any]]], list[str]]:
    """Records of failures by attempt, and why some cannot be read."""
    found: dict[int, list[dict[str, Any]]] = {}
    problems = []
    for path in sorted(run_dir.glob("failures/**/rank*.json")):
        number = path.parent.name.removeprefix("attempt_")
        try:
            failure = dict(json.loads(path.read_text()))
        except (OSError, ValueError, TypeError) as error:
            problems.append(f"{path.relative_to(run_dir)}: {in_a_line(error)}.")
        else:
            failure.setdefault("is_secondary", failure.pop("echo", False))  # Records of before.
            found.setdefault(int(number) if number.isdecimal() else last, []).append(failure)
    for some in found.values():
        some.sort(key=lambda failure: (failure["is_secondary"], failure.get("time", 0.0)))
    return found, problems


def _videos(folder: Path, page_folder: Path) -> list[Video]:
    """The newest videos, the newest first."""
    paths = sorted(folder.glob("[!.]*.mp4"), key=lambda path: path.stat().st_mtime, reverse=True)
    videos = []
    for path in paths[:VIDEOS]:
        if path.stat().st_size <= LARGEST_VIDEO_BYTES:
            source = f"data:video/mp4;base64,{b64encode(path.read_bytes()).decode()}"
        else:
            source = os.path.relpath(path, page_folder)
        videos.append(Video(path.stem.replace("_", " "), source))
    return videos
