"""A run's report as an HTML page that needs nothing besides itself. jinja2 is imported to write it.

Curves are drawn in the browser by uPlot, of which a copy is here: https://github.com/leeoniya/uPlot
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent


def render(contents: Mapping[str, Any]) -> str:
    """The page.

    Args:
        contents: what page.html names: the fields of `mjfleet.tools.report.report_contents.Report`.
    """
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.ChainableUndefined,  # What an older run did not record is not shown.
    )
    environment.filters |= {"number": _number, "took": _took, "when": _when, "plain": _plain}
    environment.globals["file"] = lambda name: (FOLDER / name).read_text()
    return environment.get_template("page.html").render(contents)


def _number(value: Any) -> str:
    """A number as people write it, or a dash."""
    if not isinstance(value, int | float):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


def _took(seconds: Any) -> str:
    """A time span in hours, minutes and seconds, or a dash."""
    return str(timedelta(seconds=round(seconds))) if isinstance(seconds, int | float) else "-"


def _when(moment: str) -> str:
    """A time of run.json as a clock here would show it; as it is where it is none."""
    try:
        return f"{datetime.fromisoformat(moment).astimezone():%Y-%m-%d %H:%M:%S}"
    except ValueError:
        return moment


def _plain(value: Any) -> str:
    """A value of the configuration as it is typed."""
    if isinstance(value, list):
        return " ".join(map(_plain, value))
    return str(value) if value != "" else '""'
