"""`mjfleet report RUN`: one HTML page about a run or a group, complete in one file.

Runs in the process that the user started and imports nothing heavy. In the browser, curves are
drawn by the copy of uPlot in page/: https://github.com/leeoniya/uPlot
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import tyro

from mjfleet.cli.flags import parse_flags
from mjfleet.config.validation import Checked, Folder
from mjfleet.errors import UserError
from mjfleet.runs.run_lookup import find_run, is_group
from mjfleet.tools.output_file import check_output
from mjfleet.tools.report.group_contents import read_group_contents
from mjfleet.tools.report.report_contents import read_contents
from mjfleet.utils.atomic_write import write_atomically
from mjfleet.utils.console import print_line
from mjfleet.utils.safe_read import path_in

PAGE_FOLDER = Path(__file__).with_name("page")


@dataclass(frozen=True, kw_only=True)
class ReportArguments(Checked):
    """Write an HTML page about a run or a group of runs, complete in one file, with curves."""

    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """Run directory, group, part of its name, or `latest`."""
    output: str | None = None
    """File to write; `None`: report.html in the folder of the run or group."""
    log_root: Folder = "logs"
    """Folder that holds the run directories."""


def report(arguments: Sequence[str]) -> int:
    parsed = parse_flags(ReportArguments, arguments, "mjfleet report")
    run_dir = find_run(parsed.run, parsed.run, Path(parsed.log_root), may_be_group=True)
    if parsed.output is None:
        output = path_in(run_dir, "report.html")
    else:
        output = check_output("--output", parsed.output)
    if is_group(run_dir):
        page = render(read_group_contents(run_dir))
    else:
        page = render(read_contents(run_dir, output.parent))
    try:
        # What the user names may be a link, such as /dev/stdout; one in a run is replaced.
        target = output.resolve() if parsed.output else output
        data = page.encode(errors="backslashreplace")
        write_atomically(target, lambda file: file.write(data))
    except OSError as error:
        raise UserError(f"--output {output}: {error.strerror}.") from None
    print_line(f"wrote {output}")
    return 0


def render(contents: Mapping[str, Any]) -> str:
    """Return the page, by the template page/page.html."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(PAGE_FOLDER),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.ChainableUndefined,  # What an older run has not recorded is left out.
    )
    filters = {"number": _number, "took": _duration, "when": _local_time, "plain": _as_typed}
    environment.filters |= filters
    environment.globals["file"] = lambda name: (PAGE_FOLDER / name).read_text(encoding="utf-8")
    return environment.get_template("page.html").render(contents)


def _number(value: Any) -> str:
    """Return a number with four digits, or a dash for anything else."""
    if not isinstance(value, int | float):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


def _duration(seconds: Any) -> str:
    """Return seconds as hours, minutes and seconds, or a dash for anything else."""
    return str(timedelta(seconds=round(seconds))) if isinstance(seconds, int | float) else "-"


def _local_time(moment: Any) -> str:
    """Return a time of run.json in this machine's time zone; anything else as text."""
    try:
        return f"{datetime.fromisoformat(moment).astimezone():%Y-%m-%d %H:%M:%S}"
    except (OverflowError, TypeError, ValueError):
        return str(moment)


def _as_typed(value: Any) -> str:
    """Return a value of the configuration as it is typed on the command line."""
    if isinstance(value, list):
        return " ".join(map(_as_typed, value))
    return str(value) if value != "" else '""'
