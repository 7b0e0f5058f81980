"""Writes a page for a browser, complete in one file, by the template in page/.

In the browser, curves are drawn by the copy of uPlot in page/: https://github.com/leeoniya/uPlot
"""

import os
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from mjfleet.config import by_dotted_name
from mjfleet.errors import UserError
from mjfleet.runs.config_yaml import CONFIG_FILE, read_config
from mjfleet.runs.metrics_csv import METRICS_FILE
from mjfleet.runs.run_json import GROUP_FILE, RECORD_FILE, now
from mjfleet.runs.run_lookup import failure_files, is_group, members_of, record_of
from mjfleet.runs.run_summary import Summary, summarise, summarise_group
from mjfleet.tools.report.curves import INTERVAL, by_heading, changing, curves_of
from mjfleet.tools.report.logged_run import MINUTES, LoggedRun, Row, read_named
from mjfleet.tools.report.results import as_cell, as_typed, reward_differences, summaries, tables
from mjfleet.utils.atomic_write import write_atomically
from mjfleet.utils.console import in_a_line
from mjfleet.utils.safe_read import read_json

PAGE_FOLDER = Path(__file__).with_name("page")
MAX_VIDEOS = 3
MAX_EMBEDDED_BYTES = 4_000_000  # Larger videos are linked instead of embedded.


def write_page(
    output: Path, folders: Mapping[str, Path], chosen: Callable[[Sequence[Row]], Sequence[str]]
) -> None:
    """Write a page about run directories and groups, by the names that the user gave them.

    Of a single one, what cannot be read is listed as a problem. `chosen` returns the columns to
    draw; where there are none, all that change are drawn.

    Raises:
        UserError: a folder is no run directory, one of several cannot be read, or the page cannot
            be written.
    """
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(PAGE_FOLDER),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.ChainableUndefined,  # What an older run has not recorded is left out.
    )
    filters = {"cell": as_cell, "took": _duration, "when": _local_time, "plain": as_typed}
    environment.filters |= filters
    environment.globals["file"] = lambda name: (PAGE_FOLDER / name).read_text(encoding="utf-8")
    template = environment.get_template("page.html")
    text = template.render(_contents(folders, output.parent, chosen), written=now())
    data = text.encode(errors="backslashreplace")
    try:
        write_atomically(output, lambda file: file.write(data))
    except OSError as error:
        raise UserError(f"--output {output}: {error.strerror}.") from None


def _contents(
    folders: Mapping[str, Path],
    page_folder: Path,
    chosen: Callable[[Sequence[Row]], Sequence[str]],
) -> dict[str, Any]:
    """Return the variables of the template. Links are relative to `page_folder`."""
    runs = [run for folder in folders.values() for run in members_of(folder) or [folder]]
    runs = {run: summarise(run.resolve())[1] for run in runs}
    files: dict[str, Any] = {}
    if len(folders) == 1:
        (folder,) = folders.values()
        files = _files(folder, list(runs.values()), page_folder)
    rows: list[Row] = []
    try:
        rows = read_named(folders)
    except UserError as error:
        if len(folders) > 1:
            raise
        files["problems"] += [str(error)] * bool(files["summary"].iterations)
    numbers = {run.folder: number for number, row in enumerate(rows, 1) for run in row.runs}
    curves = curves_of(rows)
    if len(rows) == 1:
        keys = ("first", "last", "min", "max")
        files["numbers"] = {c: summaries(rows[0], c, keys) for c in curves[0].columns}
        files |= _time_spent(rows[0].runs[0])
    return {
        "tasks": sorted({str(run.record.get("task")) for row in rows for run in row.runs}),
        "rows": [row.name for row in rows],
        "runs": [(numbers.get(run), summary, run) for run, summary in runs.items()],
        "tables": tables(rows) if rows else {},
        "note": reward_differences(rows),
        "interval": INTERVAL,
        "headings": by_heading(chosen(rows) or changing(curves)),
        "entries": [{"along": _plain(c.along), "columns": _plain(c.columns)} for c in curves],
        **files,
    }


def _files(folder: Path, runs: Sequence[Summary], page_folder: Path) -> dict[str, Any]:
    """Return what the files of a run or a group say, except metrics.csv."""
    if not any(os.path.lexists(folder / n) for n in (RECORD_FILE, METRICS_FILE, GROUP_FILE)):
        raise UserError(
            f"{folder} is not a run directory: it has neither {RECORD_FILE} nor {METRICS_FILE}."
        )
    of_group = is_group(folder)
    summary = summarise_group(folder.resolve(), runs)[1] if of_group else runs[0]
    problems = [summary.problem] if summary.problem else []
    record, settings = dict[str, Any](), dict[str, Any]()
    with suppress(UserError):  # The summary contains it.
        record = record_of(folder, GROUP_FILE if of_group else RECORD_FILE)
    try:
        settings = by_dotted_name(read_config(str(folder / CONFIG_FILE), CONFIG_FILE))
    except UserError as error:
        problems.append(str(error))
    failures = []
    for path in sorted(failure_files(folder, "rank*.json")):
        try:
            failures.append((path.relative_to(folder / "failures"), read_json(path)))
        except (OSError, ValueError) as error:
            problems.append(f"{path.relative_to(folder)}: {in_a_line(error)}.")
    return {
        "summary": summary,
        "record": record,
        "problems": problems,
        "all_settings": settings,
        "videos": _videos(folder / "videos", page_folder),
        "failures": failures,
        "dumps": sorted(map(str, failure_files(folder, "nan_rank*.npz"))),
    }


def _videos(folder: Path, page_folder: Path) -> list[dict[str, str]]:
    """Return the newest videos with their names and sources: data URIs, or paths of large ones."""
    found = [] if folder.is_symlink() else folder.glob("[!.]*.mp4")
    files = [path for path in found if path.is_file() and not path.is_symlink()]
    videos = []
    for path in sorted(files, key=lambda path: path.stat().st_mtime, reverse=True)[:MAX_VIDEOS]:
        source = quote(os.path.relpath(path, page_folder))
        if path.stat().st_size <= MAX_EMBEDDED_BYTES:
            source = f"data:video/mp4;base64,{b64encode(path.read_bytes()).decode()}"
        videos.append({"name": path.stem.replace("_", " "), "source": source})
    return videos


def _time_spent(run: LoggedRun) -> dict[str, Any]:
    """Return the steps and seconds of a run, where the time of an iteration went, and who waited.

    `time_spent` has mean seconds and the share from 0 to 1. `slowest` has by rank the share of
    iterations in which it was slowest, and the mean seconds that each other rank then waited.
    """
    none = np.zeros(len(run.along[MINUTES]))
    names = ("collect_seconds", "learn_seconds", "wait_seconds", "world_size", "total_steps")
    of = {name: np.nan_to_num(run.columns.get(name, none)) for name in names}
    seconds = 60 * run.along[MINUTES][-1]
    whole = seconds / len(none)
    parts = {"collecting": of["collect_seconds"].mean(), "learning": of["learn_seconds"].mean()}
    parts["everything else"] = max(0.0, whole - sum(parts.values()))
    ranks = run.columns.get("slowest_rank", none)
    counted = (of["world_size"] > 1) & ~np.isnan(ranks)
    ranks, waits = ranks[counted], of["wait_seconds"][counted]
    slowest = {int(r): ((ranks == r).mean(), waits[ranks == r].mean()) for r in np.unique(ranks)}
    return {
        "total_steps": of["total_steps"][-1],
        "seconds": seconds,
        "time_spent": [(name, s, s / whole) for name, s in parts.items()] if whole else [],
        "slowest": slowest,
    }


def _plain(columns: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return numbers as JSON has them: seven digits, None for NaN."""

    def plain(values: Any) -> Any:
        if isinstance(values, list):
            return [plain(v) for v in values]
        return None if np.isnan(values) else float(f"{values:.7g}")

    return {name: plain(values.tolist()) for name, values in columns.items()}


def _duration(seconds: Any) -> str:
    """Return seconds as hours, minutes and seconds, or a dash for anything else."""
    return str(timedelta(seconds=round(seconds))) if isinstance(seconds, int | float) else "-"


def _local_time(moment: Any) -> str:
    """Return a time of run.json in this machine's time zone; anything else as text."""
    try:
        return f"{datetime.fromisoformat(moment).astimezone():%Y-%m-%d %H:%M:%S}"
    except (OverflowError, TypeError, ValueError):
        return str(moment)
