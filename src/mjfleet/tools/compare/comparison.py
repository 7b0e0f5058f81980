"""Compares runs: their results, when each reached a threshold, and what differs between them.

Runs in the process that the user started and imports nothing heavy.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from mjfleet.loggers.live_terminal import SPARKS
from mjfleet.runs.metrics_csv import seconds_spent, value
from mjfleet.tools.bootstrap import Estimate, Line, common_x, mean_curve
from mjfleet.tools.logged_run import LoggedRun, differences
from mjfleet.tools.report.curves import STEPS, Curves, points_of
from mjfleet.tools.report.page_file import as_typed, number
from mjfleet.tools.threshold import WINDOW, Threshold, reached, window_mean

GOOD = 0.9  # Share of the best return, which the runs are to reach if nothing else is asked for.
OF: Mapping[str, Callable[[Sequence[float]], float]] = {
    "last": itemgetter(-1), "best": max, "min": min, "max": max,
}  # fmt: skip
"""What a column of metrics.csv is summarised to."""
RETURN = "mean_return"
RETURNS = {RETURN: ("last", "best"), "eval/return": ("best",)}
REWARD_SETTINGS = {"task": "the task", "code": "the task's code"}
REWARDS = re.compile(r"task|code|env\..*(weight|reward|penalty|cost).*")
"""Settings that decide what a return is the sum of, by their names."""
METRIC = ("last", "min", "max")  # Whether less or more is better is not known.
UNTIL = (STEPS, "minutes")
BARS = 40  # Of a curve on the terminal.
Results = Mapping[str, Mapping[str, Estimate | None]]


@dataclass(frozen=True)
class Row:
    """A run, or several that differ in their seed alone."""

    name: str
    runs: Sequence[LoggedRun]
    results: Results  # By column of metrics.csv and a key of OF. None: the column has no values.
    until: Mapping[str, Estimate | None]  # By UNTIL, of the runs that reached the threshold.

    def as_dict(self, differing: Sequence[str]) -> dict[str, Any]:
        """Return what --json prints."""
        return {
            "name": self.name,
            "runs": [str(run.folder) for run in self.runs],
            "iterations": self.iterations,
            "results": self.results,
            "until": self.until,
            "settings": {name: self.runs[0].settings.get(name) for name in differing},
        }

    @property
    def iterations(self) -> list[int]:
        """Return the number of the last iteration of each run."""
        return [int(run.rows[-1]["iteration"]) for run in self.runs]


@dataclass(frozen=True)
class Table:
    """A table for the terminal and the page."""

    title: str
    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[str]]]  # Their names, and a cell for each column.
    of_runs: bool = True  # Whether the rows are those of the comparison; else they are settings.


def compare_groups(
    groups: Mapping[str, Sequence[LoggedRun]], metrics: Sequence[str], until: Sequence[Threshold]
) -> list[Row]:
    """Return a row for each group of runs; `metrics` are columns that it summarises too."""
    wanted = {**RETURNS, **{m: (*RETURNS.get(m, ()), *METRIC) for m in metrics}}

    def results(runs: Sequence[LoggedRun]) -> Results:
        return {
            metric: {key: Estimate.of(_each(runs, metric, key)) for key in keys}
            for metric, keys in wanted.items()
        }

    return [Row(n, runs, results(runs), _until(runs, until)) for n, runs in groups.items()]


def reward_differences(runs: Sequence[LoggedRun]) -> str | None:
    """Return why the runs' returns are not of the same rewards; None: they are, as far as known."""
    settings = [run.settings for run in runs]
    names = {frozenset(c for c in run.columns if c.startswith("reward/")) for run in runs}
    known = [REWARD_SETTINGS.get(n, n) for n in differences(settings) if REWARDS.fullmatch(n)]
    known += ["the reward terms"] * (len(names) > 1)
    if not known:
        return None
    return f"Returns may be of different rewards, since these differ: {', '.join(known)}."


def share_of_best(runs: Sequence[LoggedRun]) -> list[Threshold]:
    """Return the threshold for which nobody asked; none if no run is long enough to reach one."""
    windows = (run.rows[i - WINDOW : i] for run in runs for i in range(WINDOW, len(run.rows) + 1))
    means = [mean for rows in windows if math.isfinite(mean := window_mean(RETURN, rows))]
    # A tenth worse, below zero too.
    goods = [max(means) - (1 - GOOD) * abs(max(means))] if means else []
    return [Threshold(RETURN, ">", float(f"{good:.4g}")) for good in goods]


def _each(runs: Sequence[LoggedRun], column: str, key: str) -> list[float]:
    """Return a column's last, best, min or max value of each run that has some."""
    known = ([v for row in run.rows if (v := value(row, column)) is not None] for run in runs)
    return [OF[key](values) for values in known if values]


def _until(runs: Sequence[LoggedRun], until: Sequence[Threshold]) -> Mapping[str, Estimate | None]:
    found = [(run.rows, reached(until, run.rows)) for run in runs] if until else []
    ends = [(rows, end) for rows, end in found if end is not None]
    steps = [(value(rows[end], "total_steps") or 0.0) / 1e6 for rows, end in ends]
    minutes = [seconds_spent(rows)[end] / 60 for rows, end in ends]
    return dict(zip(UNTIL, map(Estimate.of, (steps, minutes)), strict=True))


def tables(rows: Sequence[Row], metrics: Sequence[str], title: str) -> list[Table]:
    """Return the tables of a comparison; `title` is that of the threshold's."""
    names = [f"{place} {row.name}" for place, row in enumerate(rows, 1)]

    def table(title: str, columns: Sequence[str], cells: Callable[[Row], list[str]]) -> Table:
        return Table(title, columns, list(zip(names, map(cells, rows), strict=True)))

    def returns(row: Row) -> list[str]:
        ends = sorted({min(row.iterations), max(row.iterations)})
        some = [_text(row.results[m][key], row) for m, keys in RETURNS.items() for key in keys]
        return [f"{len(row.runs)}", " to ".join(map(str, ends)), *some]

    columns = [f"{key} {metric}" for metric, keys in RETURNS.items() for key in keys]
    shown = [table("Returns", ["runs", "iterations", *columns], returns)]
    for m in metrics:
        shown.append(table(m, METRIC, lambda r, of=m: [_text(r.results[of][k], r) for k in METRIC]))
    if title:
        shown.append(table(title, UNTIL, lambda row: [_text(row.until[k], row) for k in UNTIL]))
    settings = [row.runs[0].settings for row in rows]
    if differing := differences(settings):
        found = [(n, [as_typed(s[n]) if n in s else "-" for s in settings]) for n in differing]
        numbers = [name.partition(" ")[0] for name in names]
        shown.append(Table("What differs in the configuration", numbers, found, of_runs=False))
    return shown


def _text(found: Estimate | None, row: Row) -> str:
    """Return a cell: the mean, its interval, and of how many of the runs it is if not of all."""
    if found is None:
        return "-"
    words = [number(found.mean)]
    if found.low is not None:
        words.append(f"[{number(found.low)}, {number(found.high)}]")
    words += [f"({found.runs} of {len(row.runs)})"] * (found.runs < len(row.runs))
    return " ".join(words)


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
