"""`mjfleet report RUN`: one HTML page about a run or a group, complete in one file.

Runs in the process that the user started and imports nothing heavy.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from mjfleet.cli.flags import parse_flags
from mjfleet.config.validation import Checked, Folder
from mjfleet.runs.run_lookup import find_run, is_group
from mjfleet.tools.output_file import check_output
from mjfleet.tools.report.group_contents import read_group_contents
from mjfleet.tools.report.page_file import write_page
from mjfleet.tools.report.report_contents import read_contents
from mjfleet.utils.console import print_line


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
        output = run_dir / "report.html"
    else:
        output = check_output("--output", parsed.output)
    # What the user names may be a link, such as /dev/stdout; one in a run is replaced.
    target = output.resolve() if parsed.output else output
    is_of_one = not is_group(run_dir)
    contents = read_contents(run_dir, output.parent) if is_of_one else read_group_contents(run_dir)
    write_page(target, "page.html", contents)
    print_line(f"wrote {output}")
    return 0
