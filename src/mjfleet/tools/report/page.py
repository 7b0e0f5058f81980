"""Writes a page for a browser, complete in one file, by the template in page/.

In the browser, curves are drawn by the copy of uPlot in page/: https://github.com/leeoniya/uPlot
"""

import math
from base64 import b64encode
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from mjfleet.runs.find_run import failure_files, members_of
from mjfleet.runs.run_json import is_group, now
from mjfleet.runs.run_summary import summarise, summarise_group
from mjfleet.tools.output_file import write_output
from mjfleet.tools.report.curves import INTERVAL, by_heading, changing, curves_of
from mjfleet.tools.report.logged_run import AXES, Rows, read_run
from mjfleet.tools.report.results import as_cell, as_typed, numbers, tables
from mjfleet.utils.console import in_a_line
from mjfleet.utils.safe_read import open_regular, read_json

PAGE_FOLDER = Path(__file__).with_name("page")
MAX_VIDEOS, MAX_VIDEO_BYTES = 3, 4_000_000


def write_page(output: Path, folders: Sequence[Path], rows: Rows, columns: Sequence[str]) -> None:
    """Write a page about run directories and groups, and the rows of their runs with iterations.

    Where no columns are named, all that change are drawn. All files of a single folder are shown.
    UserError if the page cannot be written.
    """
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(PAGE_FOLDER),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.ChainableUndefined,  # What an older run has not recorded is left out.
    )
    environment.filters |= {"cell": as_cell, "plain": as_typed, "took": _duration}
    environment.globals["file"] = lambda name: (PAGE_FOLDER / name).read_text(encoding="utf-8")
    environment.globals["enumerate"] = enumerate
    template = environment.get_template("page.html")
    text = template.render(_contents(folders, rows, columns), written=now())
    data = text.encode(errors="backslashreplace")
    write_output(output, lambda file: file.write(data))


def _contents(folders: Sequence[Path], rows: Rows, columns: Sequence[str]) -> dict[str, Any]:
    """Return the variables of the template."""
    runs = [run for one in folders for run in (members_of(one) if is_group(one) else [one])]
    found = {run: summarise(run.resolve())[1] for run in runs}
    places = {run.folder: place for place, row in enumerate(rows.values(), 1) for run in row}
    curves = curves_of(rows)
    contents: dict[str, Any] = {
        "tasks": sorted({str(run.record.get("task")) for row in rows.values() for run in row}),
        "rows": list(rows),
        "runs": [(places.get(run), summary, run) for run, summary in found.items()],
        "tables": tables(rows) if rows else {},
        "interval": INTERVAL,
        "axes": AXES,
        "headings": by_heading(columns or changing(curves.values())),
        "entries": [
            {n: _plain(lines.tolist()) for n, lines in row.items()} for row in curves.values()
        ],
    }
    if len(rows) == 1:
        (row,), (curve,) = rows.values(), curves.values()
        contents["numbers"] = {name: numbers(row, name) for name in curve}
    if len(folders) == 1:
        (folder,) = folders
        is_one = not is_group(folder)
        summary = (
            found[folder] if is_one else summarise_group(folder.resolve(), [*found.values()])[1]
        )
        contents |= {"summary": summary, **_files(folder)}
        contents["problems"] = filter(None, (summary.problem, contents["problem"]))
    return contents


def _files(folder: Path) -> dict[str, Any]:
    """Return what the files of a run or a group hold, except metrics.csv."""
    run, failures, videos = read_run(folder), dict[str, Any](), dict[str, str]()
    for path in sorted(failure_files(folder, "rank*.json")):
        try:
            failures[str(path.relative_to(folder))] = read_json(path)
        except (OSError, ValueError) as error:
            failures[str(path.relative_to(folder))] = {"message": in_a_line(error)}
    found = [] if (folder / "videos").is_symlink() else (folder / "videos").glob("[!.]*.mp4")
    for path in sorted(found, key=lambda path: path.lstat().st_mtime)[: -MAX_VIDEOS - 1 : -1]:
        with suppress(OSError), open_regular(path, MAX_VIDEO_BYTES) as file:
            videos[path.stem.replace("_", " ")] = b64encode(file.read()).decode()
    return {
        "record": run.record,
        "problem": run.problem,
        "all_settings": run.config,
        "videos": videos,
        "failures": failures,
        "dumps": sorted(map(str, failure_files(folder, "nan_rank*.npz"))),
    }


def _plain(lines: Sequence[Sequence[float]]) -> list[list[float | None]]:
    """Return numbers as JSON has them: seven digits, None for NaN."""
    return [[None if math.isnan(v) else float(f"{v:.7g}") for v in line] for line in lines]


def _duration(seconds: float | None) -> str:
    """Return seconds as hours, minutes and seconds."""
    return "-" if seconds is None else str(timedelta(seconds=round(seconds)))
