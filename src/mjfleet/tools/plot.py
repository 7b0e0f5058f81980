"""`mjfleet plot RUN [RUN ...]`: curves of runs as PNG, SVG or PDF; `draw` also serves benchmarks.

Runs in the process that the user started; matplotlib is imported once something is drawn.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from mjfleet.cli.flags import parse_flags
from mjfleet.config.validation import Checked, Folder
from mjfleet.errors import UserError
from mjfleet.runs.metrics_csv import columns_of, seconds_spent, value
from mjfleet.runs.run_lookup import find_run
from mjfleet.tools.bootstrap import INTERVAL, Line, common_x, mean_curve
from mjfleet.tools.logged_run import LoggedRun, group_runs, read_runs
from mjfleet.tools.output_file import check_output
from mjfleet.utils.atomic_write import write_atomically
from mjfleet.utils.console import print_line, printable

MAX_SIDE_BY_SIDE, MAX_PANELS = 4, 100
POINTS = 500  # Of a mean.
LONGEST = 100  # Characters of a name in a picture.
SUFFIXES = (".png", ".svg", ".pdf")
X_LABELS = {"steps": "million environment steps", "minutes": "minutes"}
DEFAULT_COLUMNS = (
    "mean_return", "mean_episode_length", "mean_reward", "task/", "reward/", "loss/value",
    "action_std", "learning_rate", "global_steps_per_second",
)  # fmt: skip
EVALUATED = {"mean_return": "eval/return", "mean_episode_length": "eval/length"}
"""Columns whose evaluations are drawn as dots beside them."""


@dataclass(frozen=True, kw_only=True)
class PlotArguments(Checked):
    """Draw curves of runs, grouped and named by what differs between them. Runs that differ only in
    their seed are drawn as a mean and its 95% bootstrap interval."""

    runs: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="RUN ...")]
    """Run directories, groups, parts of their names, or `latest`."""
    x: Literal["steps", "minutes"] = "steps"
    """The x-axis: environment steps of all workers, or minutes of training."""
    columns: tuple[str, ...] = DEFAULT_COLUMNS
    """Columns of metrics.csv; one that ends in a slash selects all that begin with it. By default
    columns whose values never change are left out."""
    output: str | None = None
    """File to write, PNG, SVG or PDF; `None`: plots/curves.png in the last run or group."""
    log_root: Folder = "logs"
    """Folder that holds the run directories."""


@dataclass(frozen=True)
class Panel:
    """One plot: its axes, and the lines of each label, which share a colour."""

    x: str
    y: str
    lines: Mapping[str, Sequence[Line]]
    is_count: bool = False  # Whether x is a whole number.
    of_runs: bool = False
    """Whether several lines of a label are drawn as their mean within its interval, and the y-axis
    may begin above zero."""
    dots: Mapping[str, Sequence[Line]] = field(default_factory=dict)  # Single points, by label.

    @property
    def changes(self) -> bool:
        """Whether there are different values in it."""
        lines = [
            line for some in (self.lines, self.dots) for each in some.values() for line in each
        ]
        return len({y for _, values in lines for y in values}) > 1


def plot(arguments: Sequence[str]) -> int:
    parsed = parse_flags(PlotArguments, arguments, "mjfleet plot")
    if not parsed.runs:
        raise UserError("name one run directory or more: mjfleet plot logs/<experiment>/<run>")
    root = Path(parsed.log_root)
    folders = [find_run(name, name, root, may_be_group=True) for name in parsed.runs]
    runs = [run for folder in folders for run in read_runs(folder)]
    if parsed.output is None:
        output = folders[-1] / "plots" / "curves.png"
    else:
        output = check_output("--output", parsed.output, SUFFIXES)
    known = list(dict.fromkeys(column for run in runs for column in run.columns))
    groups, panels = group_runs(runs), []
    for wanted in parsed.columns:
        found = columns_of(wanted, known)
        if not found and parsed.columns is not DEFAULT_COLUMNS:
            raise UserError(f"--columns {wanted}: there is no such column; of these: {known}.")
        panels += [panel for column in found if (panel := _panel(groups, column, parsed.x)).lines]
    if parsed.columns is DEFAULT_COLUMNS:
        panels = [panel for panel in panels if panel.changes] or panels
    if not panels:
        raise UserError("the runs have no values in these columns yet.")
    if len(panels) > MAX_PANELS:
        raise UserError(f"--columns: these are {len(panels)}; at most {MAX_PANELS} can be drawn.")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        draw(output, panels)
    except OSError as error:
        raise UserError(f"--output {output}: {error.strerror}.") from None
    print_line(f"wrote {output}")
    return 0


def _panel(groups: Mapping[str, list[LoggedRun]], column: str, x: str) -> Panel:
    """Return the curves of a column, and its evaluations as dots beside them."""
    lines, evaluated = _lines(groups, column, x), EVALUATED.get(column, "")
    found = _lines(groups, evaluated, x)
    dots = {name: found[name] for name in lines if name in found}
    label = f"{column} (dots: {evaluated})" if dots else column
    return Panel(X_LABELS[x], label, lines, of_runs=True, dots=dots)


def _lines(groups: Mapping[str, list[LoggedRun]], column: str, x: str) -> dict[str, list[Line]]:
    """Return a column of the runs that have values of it, over million steps or minutes."""
    lines: dict[str, list[Line]] = {}
    for name, runs in groups.items():
        for rows in (run.rows for run in runs):
            minutes = (seconds / 60 for seconds in seconds_spent(rows))
            steps = ((value(row, "total_steps") or 0.0) / 1e6 for row in rows)
            along = minutes if x == "minutes" else steps
            values = [(at, value(row, column)) for at, row in zip(along, rows, strict=True)]
            if some := [(at, number) for at, number in values if number is not None]:
                lines.setdefault(name, []).append(([at for at, _ in some], [v for _, v in some]))
    return lines


def draw(path: Path, panels: Sequence[Panel]) -> None:
    """Draw panels side by side into a file, PNG, SVG or PDF by its name."""
    from matplotlib import rc_context

    with rc_context({"text.parse_math": False}):  # Names of columns and runs are no formulas.
        _draw(path, panels)


def _draw(path: Path, panels: Sequence[Panel]) -> None:
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    columns = min(MAX_SIDE_BY_SIDE, len(panels))
    labels = list(dict.fromkeys(label for panel in panels for label in panel.lines))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(5 * columns, 3.6 * rows), layout="constrained")
    for place, panel in enumerate(panels, start=1):
        _draw_panel(figure.add_subplot(rows, columns, place), panel, labels)
    if max(len(panel.lines) for panel in panels) > 1:
        # One legend is enough: a label has the same colour in all panels.
        handles = [
            Line2D([], [], color=f"C{i}", label=_shown(name)) for i, name in enumerate(labels)
        ]
        figure.legend(handles=handles, loc="outside upper center", ncols=min(columns, 2))
    numbers = {len(lines) for p in panels if p.of_runs for lines in p.lines.values()} - {1}
    if numbers:
        some = " to ".join(map(str, sorted({min(numbers), max(numbers)})))
        figure.supxlabel(f"mean of {some} runs, within {INTERVAL}", fontsize="medium")
    kind = path.suffix.removeprefix(".")
    about = {"Software": None} if kind == "png" else None
    write_atomically(path, lambda file: figure.savefig(file, format=kind, dpi=120, metadata=about))


def _draw_panel(axes: Any, panel: Panel, labels: Sequence[str]) -> None:
    for label, lines in panel.lines.items():
        drawn, colour = list(lines), f"C{labels.index(label)}"
        if panel.of_runs and len(lines) > 1:
            x = common_x([x for x, _ in lines], POINTS)
            low, mean, high = mean_curve(lines, x)
            axes.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
            drawn = [(x, mean)]
        for x, y in drawn:
            axes.plot(x, y, color=colour, marker="o" if len(x) < 20 else "", alpha=0.8)
        for x, y in panel.dots.get(label, ()):
            axes.plot(x, y, "o", color=colour, markersize=4)
    if panel.is_count:
        axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set(xlabel=panel.x, ylabel=_shown(panel.y))
    if not panel.of_runs:
        axes.set_ylim(min(0.0, 1.05 * axes.dataLim.y0), max(0.0, 1.05 * axes.dataLim.y1))
    axes.grid(alpha=0.3)


def _shown(name: str) -> str:
    return printable(name[:LONGEST])
