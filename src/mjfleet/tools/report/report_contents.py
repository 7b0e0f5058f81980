"""What a run's page shows, read from the files of its directory. Imports nothing heavy."""

import os
import stat
from base64 import b64encode
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import Any
from urllib.parse import quote

from mjfleet.config import by_dotted_name
from mjfleet.errors import UserError
from mjfleet.runs.config_yaml import CONFIG_FILE, read_config
from mjfleet.runs.metrics_csv import METRICS_FILE, Rows, read_rows, seconds_spent, value
from mjfleet.runs.run_json import RECORD_FILE
from mjfleet.runs.run_lookup import failure_files, record_of
from mjfleet.runs.run_summary import summarise
from mjfleet.tools.report.curves import curves_of
from mjfleet.utils.console import in_a_line
from mjfleet.utils.safe_read import read_bytes, read_json

MAX_VIDEOS = 3
MAX_EMBEDDED_BYTES = 4_000_000  # Larger videos are linked instead of embedded.
FAILURE = {
    "rank": int, "iteration": int, "kind": str, "message": str, "traceback": str, "log": list,
    "is_secondary": bool, "time": float,
}  # fmt: skip
"""What the page shows of a failure record."""


def read_contents(run_dir: Path, page_folder: Path) -> dict[str, Any]:
    """Return the variables of page.html, whose links are relative to `page_folder`.

    What cannot be read is left out and listed as a problem.

    Raises:
        UserError: it is not a run directory.
    """
    if not any(os.path.lexists(run_dir / name) for name in (RECORD_FILE, METRICS_FILE)):
        raise UserError(
            f"{run_dir} is not a run directory: it has neither {RECORD_FILE} nor {METRICS_FILE}."
        )
    _, summary = summarise(run_dir.resolve())
    problems = [summary.problem] if summary.problem else []
    record = {}
    with suppress(UserError):  # The summary contains it.
        record = record_of(run_dir)
    settings, unreadable = read_settings(run_dir)
    columns, rows = [], []
    with suppress(OSError):  # The summary contains it.
        columns, rows = read_rows(run_dir / METRICS_FILE)
    curves = curves_of(columns, rows)
    failures, unread = _failures(run_dir, max(1, len(record.get("attempts", ()))))
    return {
        "command": "report",
        "summary": summary,
        "record": record,
        "problems": problems + unreadable + unread,
        "settings": settings,
        "changed": _changed(record, "default"),
        "changed_from_parent": _changed(record.get("parent") or {}, "parent"),
        "total_steps": value(rows[-1], "total_steps") if rows else None,
        **curves,
        "entries": [{"along": curves["along"], "columns": curves["columns"]}],
        "time_spent": _time_spent(rows),
        "slowest": _slowest_ranks(rows),
        "videos": _videos(run_dir / "videos", page_folder),
        "failures": failures,
        "dumps": sorted(map(str, failure_files(run_dir, "nan_rank*.npz"))),
    }


def read_settings(folder: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the flags and values of a run's or group's configuration, and why there are none."""
    try:
        file = str(folder / CONFIG_FILE)
        config = by_dotted_name(read_config(file, CONFIG_FILE))
    except UserError as error:
        return [], [str(error)]
    return [{"flag": _flag(name), "value": given} for name, given in config.items()], []


def _flag(name: object) -> str:
    return "--" + str(name).replace("_", "-")


def _changed(record: Mapping[str, Any], other: str) -> list[dict[str, Any]] | None:
    """Return what differed from a `default` or the `parent` at the start; None: not recorded."""
    changed = record.get("changed")
    if not isinstance(changed, dict):
        return None
    some = ((name, both) for name, both in changed.items() if isinstance(both, dict))
    return [{"flag": _flag(n), "value": b.get("value"), "other": b.get(other)} for n, b in some]


def _failures(run_dir: Path, last: int) -> tuple[dict[int, list[dict[str, Any]]], list[str]]:
    """Return the failure records by attempt, causes first, and why some cannot be read.

    Those of the attempt number `last` have no folder of their own.
    """
    found: dict[int, list[dict[str, Any]]] = {}
    problems = []
    for path in sorted(failure_files(run_dir, "rank*.json")):
        number = path.parent.name.removeprefix("attempt_")
        try:
            data = read_json(path)
        except OSError as error:
            problems.append(f"{path.relative_to(run_dir)}: {error.strerror}.")
        except ValueError as error:
            problems.append(f"{path.relative_to(run_dir)}: {in_a_line(error)}.")
        else:
            data = data if isinstance(data, dict) else {}
            failure = {n: data[n] for n, kind in FAILURE.items() if isinstance(data.get(n), kind)}
            attempt = int(number) if number.isdecimal() and len(number) < 9 else last
            found.setdefault(attempt, []).append({"is_secondary": False, "time": 0.0} | failure)
    for records in found.values():
        records.sort(key=lambda failure: (failure["is_secondary"], failure["time"]))
    return found, problems


def _videos(folder: Path, page_folder: Path) -> list[dict[str, str]]:
    """Return the newest videos with their names and sources: data URIs, or paths of large ones."""
    files = [] if folder.is_symlink() else folder.glob("[!.]*.mp4")
    found = {path: path.lstat() for path in files}
    found = {path: about for path, about in found.items() if stat.S_ISREG(about.st_mode)}
    videos = []
    for path in sorted(found, key=lambda path: found[path].st_mtime, reverse=True)[:MAX_VIDEOS]:
        source = quote(os.path.relpath(path, page_folder))
        if found[path].st_size <= MAX_EMBEDDED_BYTES:
            content = b64encode(read_bytes(path, MAX_EMBEDDED_BYTES)).decode()
            source = f"data:video/mp4;base64,{content}"
        videos.append({"name": path.stem.replace("_", " "), "source": source})
    return videos


def _time_spent(rows: Rows) -> list[dict[str, Any]]:
    """Return where the time of an iteration went: mean seconds, and the share from 0 to 1."""
    if not rows or not (whole := seconds_spent(rows)[-1] / len(rows)):
        return []
    columns = {"collecting": "collect_seconds", "learning": "learn_seconds"}
    parts = {n: fmean(value(row, c) or 0.0 for row in rows) for n, c in columns.items()}
    parts["everything else"] = max(0.0, whole - sum(parts.values()))
    return [{"name": n, "seconds": s, "share": s / whole} for n, s in parts.items()]


def _slowest_ranks(rows: Rows) -> dict[int, tuple[float, float]]:
    """Return by rank its share of the iterations in which it was slowest, and the others' wait.

    The wait is in seconds, a mean over those iterations and the other ranks.
    """
    waits: dict[int, list[float]] = {}
    for row in rows:
        if (value(row, "world_size") or 1) > 1 and (rank := value(row, "slowest_rank")) is not None:
            waits.setdefault(int(rank), []).append(value(row, "wait_seconds") or 0.0)
    count = sum(map(len, waits.values()))
    return {rank: (len(some) / count, fmean(some)) for rank, some in sorted(waits.items())}
