"""`mjfleet report RUN`: all that a run's files tell, as one HTML page."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from mjfleet.cli.flags import parse_flags
from mjfleet.errors import UserError
from mjfleet.runs.run_lookup import find_run
from mjfleet.tools.report.page import render
from mjfleet.tools.report.report_contents import gather
from mjfleet.utils.atomic_write import write_atomically
from mjfleet.utils.console import print_line


@dataclass(frozen=True, kw_only=True)
class ReportArguments:
    """Write a page about a run, for a browser: complete in one file, with curves and videos."""

    run: tyro.conf.Positional[str]
    """Run directory, beginning of a run's name, or `latest`."""
    output: str | None = None
    """File to write; `None`: report.html in the run directory."""
    log_root: str = "logs"
    """Folder under which run directories are."""


def report(arguments: Sequence[str]) -> int:
    """Write the page; returns the exit code."""
    parsed = parse_flags(ReportArguments, arguments, "mjfleet report")
    run_dir = find_run(parsed.run, parsed.run, Path(parsed.log_root))
    output = Path(parsed.output) if parsed.output else run_dir / "report.html"
    page = render(vars(gather(run_dir, output.parent)))
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(output, lambda file: file.write(page.encode()))
    except OSError as error:
        raise UserError(f"--output {output}: {error.strerror}.") from None
    print_line(f"wrote {output}")
    return 0
