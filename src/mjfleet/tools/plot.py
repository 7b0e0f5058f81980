"""`mjfleet plot RUN [RUN ...]`: curves of runs, from their metrics.csv."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro

from mjfleet.cli.flags import parse_flags
from mjfleet.errors import UserError
from mjfleet.runs.config_yaml import CONFIG_FILE, read_config
from mjfleet.runs.metrics_csv import METRICS_FILE, read_rows, seconds_spent
from mjfleet.runs.run_lookup import find_run
from mjfleet.tools.plot_curves import Line, Panel, draw
from mjfleet.utils.console import print_line

KINDS = (".png", ".svg", ".pdf")
X = {"steps": "million environment steps", "minutes": "minutes"}
SHOWN = ("mean_return", "mean_episode_length", "mean_reward", "task/", "reward/", "loss/value",
         "action_std", "learning_rate", "global_steps_per_second")  # fmt: skip
"""Columns that are drawn unless others are asked for, in this order; a slash: all that begin so."""
EVALUATED = {"mean_return": "eval/return", "mean_episode_length": "eval/length"}
"""Columns that are drawn as dots beside another one."""


@dataclass(frozen=True, kw_only=True)
class PlotArguments:
    """Draw curves of runs. Runs that differ in their seed alone become a mean within its range."""

    runs: tyro.conf.Positional[tuple[str, ...]]
    """Run directories, beginnings of runs' names, or `latest`."""
    x: Literal["steps", "minutes"] = "steps"
    """What is to the right: environment steps of all worlds, or time spent in training."""
    columns: tuple[str, ...] = SHOWN
    """Columns of metrics.csv; one that ends in a slash stands for all that begin so."""
    output: str | None = None
    """File to write, PNG, SVG or PDF; `None`: plots/curves.png in the last run directory."""
    log_root: str = "logs"
    """Folder under which run directories are."""


@dataclass(frozen=True)
class Run:
    """What a run's files tell."""

    folder: Path
    rows: list[dict[str, str]]
    group: str
    """The same for runs that differ in their seed alone."""

    def line(self, column: str, x: str) -> Line:
        """A column, where it has values, against steps in millions or minutes."""
        if x == "steps":
            along = [float(row["total_steps"]) / 1e6 for row in self.rows]
        else:
            along = [seconds / 60 for seconds in seconds_spent(self.rows)]
        some = [(at, float(r[column])) for at, r in zip(along, self.rows, strict=True) if r[column]]
        return [at for at, _ in some], [value for _, value in some]


def plot(arguments: Sequence[str]) -> int:
    """Write a picture; returns the exit code."""
    parsed = parse_flags(PlotArguments, arguments, "mjfleet plot")
    if not parsed.runs:
        raise UserError("name one run directory or more: mjfleet plot logs/<experiment>/<run>")
    runs = [_read(find_run(name, name, Path(parsed.log_root))) for name in parsed.runs]
    output = Path(parsed.output) if parsed.output else runs[-1].folder / "plots/curves.png"
    if output.suffix not in KINDS:
        raise UserError(f"--output {output}: its name must end in {', '.join(KINDS)}.")
    known = list(dict.fromkeys(column for run in runs for column in run.rows[0]))
    panels = []
    for wanted in parsed.columns:
        found = [c for c in known if c == wanted or (wanted[-1:] == "/" and c.startswith(wanted))]
        if not found and parsed.columns is not SHOWN:
            raise UserError(f"--columns {wanted}: there is no such column; of these: {known}.")
        panels += [panel for column in found if (panel := _panel(runs, column, parsed.x))]
    if not panels:
        raise UserError("the runs have no values in these columns yet.")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        draw(output, panels)
    except OSError as error:
        raise UserError(f"--output {output}: {error.strerror}.") from None
    print_line(f"wrote {output}")
    return 0


def _panel(runs: Sequence[Run], column: str, x: str) -> Panel | None:
    """The curves of a column; None where no run has a value of it."""
    lines = _lines(runs, column, x)
    # A group is called like its first run, within its experiment where there are several.
    several = len({run.folder.parent.resolve() for run in runs}) > 1
    names = {
        run.group: "/".join(run.folder.resolve().parts[-1 - several :]) for run in reversed(runs)
    }
    beside = EVALUATED.get(column)
    found = lines, _lines(runs, beside, x) if beside else {}
    named, dots = (
        {names[group]: each[group] for group in lines if group in each} for each in found
    )
    label = f"{column} (dots: {beside})" if dots else column
    return Panel(X[x], label, named, from_zero=False, as_band=True, dots=dots) if named else None


def _lines(runs: Sequence[Run], column: str, x: str) -> dict[str, list[Line]]:
    """A column of the runs that have values of it, by their groups."""
    lines: dict[str, list[Line]] = {}
    for run in runs:
        if column in run.rows[0] and (line := run.line(column, x))[0]:
            lines.setdefault(run.group, []).append(line)
    return lines


def _read(folder: Path) -> Run:
    file = folder / METRICS_FILE
    if not file.is_file():
        raise UserError(f"{folder} is no run directory: it has no {METRICS_FILE}.")
    _, rows = read_rows(file)
    if not rows:
        raise UserError(f"{folder}: its {METRICS_FILE} has no rows yet.")
    config: dict[str, Any] = read_config(str(folder / CONFIG_FILE), str(folder / CONFIG_FILE))
    agent = {k: v for k, v in config.get("agent", {}).items() if k not in ("seed", "run_name")}
    return Run(folder, rows, str((agent, config.get("env"), config.get("engine"))))
