"""Writes a page for a browser, complete in one file, by the templates in page/.

Runs in the process that the user started. In the browser, curves are drawn by the copy of uPlot in
page/: https://github.com/leeoniya/uPlot
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from mjfleet.errors import UserError
from mjfleet.runs.run_json import now
from mjfleet.utils.atomic_write import write_atomically

PAGE_FOLDER = Path(__file__).with_name("page")


def write_page(output: Path, template: str, contents: Mapping[str, Any]) -> None:
    """Write a page by a template of page/ and its variables.

    The variable `entries` has the curves of all that is drawn in the same charts: each entry's
    `along`, values for the x-axis by its name, and `columns`, a list of as many numbers or None by
    the column's name. `low` and `high` may have more such lists, between which a band is drawn.

    Raises:
        UserError: the file cannot be written.
    """
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(PAGE_FOLDER),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.ChainableUndefined,  # What an older run has not recorded is left out.
    )
    filters = {"number": number, "took": duration, "when": _local_time, "plain": as_typed}
    environment.filters |= filters
    environment.globals["file"] = lambda name: (PAGE_FOLDER / name).read_text(encoding="utf-8")
    page = environment.get_template(template).render(contents, written=now())
    data = page.encode(errors="backslashreplace")
    try:
        write_atomically(output, lambda file: file.write(data))
    except OSError as error:
        raise UserError(f"--output {output}: {error.strerror}.") from None


def number(value: Any) -> str:
    """Return a number with four digits, or a dash for anything else."""
    if not isinstance(value, int | float):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


def duration(seconds: Any) -> str:
    """Return seconds as hours, minutes and seconds, or a dash for anything else."""
    return str(timedelta(seconds=round(seconds))) if isinstance(seconds, int | float) else "-"


def _local_time(moment: Any) -> str:
    """Return a time of run.json in this machine's time zone; anything else as text."""
    try:
        return f"{datetime.fromisoformat(moment).astimezone():%Y-%m-%d %H:%M:%S}"
    except (OverflowError, TypeError, ValueError):
        return str(moment)


def as_typed(value: Any) -> str:
    """Return a value of the configuration as it is typed on the command line."""
    if isinstance(value, list):
        return " ".join(map(as_typed, value))
    return str(value) if value != "" else '""'
