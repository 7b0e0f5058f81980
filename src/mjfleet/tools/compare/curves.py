"""Where the curves of a comparison are: on the page, and on the terminal. Imports nothing heavy."""

import math
from collections.abc import Sequence

from mjfleet.loggers.live_terminal import SPARKS
from mjfleet.runs.bootstrap import Line, common_x, mean_curve
from mjfleet.tools.compare.comparison import RETURN, Table
from mjfleet.tools.report.mean_curves import STEPS, Curves, points_of
from mjfleet.tools.report.page_file import number
from mjfleet.tools.report.report_contents import headings_of

BARS = 40  # Of a curve on the terminal.


def columns_by_heading(entries: Sequence[Curves]) -> dict[str, list[str]]:
    """Return the columns that any of the entries has, below the headings of a report."""
    found: dict[str, list[str]] = {}
    known = list(dict.fromkeys(column for curves in entries for column in curves["columns"]))
    for column, heading in headings_of(known).items():
        found.setdefault(heading, []).append(column)
    return found


def sparklines(names: Sequence[str], entries: Sequence[Curves]) -> list[Table]:
    """Return a table of returns as rows of bars, on the same axes; none if there are none."""
    lines = [points_of(each["along"][STEPS], each["columns"].get(RETURN, [])) for each in entries]
    known = [v for _, values in lines for v in values]
    if not known:
        return []
    low, high = min(known), max(known)
    x = common_x([each["along"][STEPS] for each in entries], BARS)

    def bars(line: Line) -> str:
        values = mean_curve([line], x)[1] if line[0] else [math.nan] * BARS
        shares = ((v - low) / ((high - low) or 1) for v in values)
        return "".join(" " if math.isnan(share) else SPARKS[int(7.999 * share)] for share in shares)

    title = f"{RETURN} from {number(low)} to {number(high)}"
    rows = [(name, [bars(line)]) for name, line in zip(names, lines, strict=True)]
    return [Table(title, [f"over {number(x[-1])} {STEPS}"], rows)]
