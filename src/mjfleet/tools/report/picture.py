"""Draws lines as PNG, SVG or PDF: curves of runs, and those of benchmarks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mjfleet.tools.output_file import write_output
from mjfleet.tools.report.curves import INTERVAL

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIDE_BY_SIDE = 4  # Panels.
FEW_POINTS = 20  # Lines of at most as many points mark them.


@dataclass(frozen=True)
class Panel:
    """One plot: the labels of its axes, and its lines by name."""

    x: str
    y: str
    lines: Mapping[str, np.ndarray]
    """`(2, points)`: x and y; or `(4, points)`: x, the mean, low and high of its interval."""


def draw(path: Path, panels: Sequence[Panel]) -> None:
    """Draw panels side by side into a file, whose name says its format; make its folder.

    UserError if that cannot be done.
    """
    from matplotlib import rc_context

    with rc_context({"text.parse_math": False}):  # Names of columns and runs are no formulas.
        figure, kind = _figure(panels), path.suffix.removeprefix(".")
        write_output(path, lambda file: figure.savefig(file, format=kind, dpi=120))


def _figure(panels: Sequence[Panel]) -> "Figure":
    from matplotlib.figure import Figure

    columns = min(SIDE_BY_SIDE, len(panels))
    rows = -(-len(panels) // columns)
    # A name has the same colour in all panels, so that one legend is enough.
    names = dict.fromkeys(name for panel in panels for name in panel.lines)
    colours = {name: f"C{place}" for place, name in enumerate(names)}
    handles = {}
    figure = Figure(figsize=(5 * columns, 3.6 * rows), layout="constrained")
    for place, panel in enumerate(panels, start=1):
        axes = figure.add_subplot(rows, columns, place)
        for name, (x, y, *bounds) in panel.lines.items():
            marker = "o" if len(x) < FEW_POINTS else ""
            (handles[name],) = axes.plot(x, y, color=colours[name], marker=marker)
            if bounds:
                axes.fill_between(x, *bounds, color=colours[name], alpha=0.2, linewidth=0)
        axes.set(xlabel=panel.x, ylabel=panel.y)
        axes.grid(alpha=0.3)
    if len(handles) > 1:
        place = {"loc": "outside upper center", "ncols": min(columns, 2)}
        figure.legend(handles.values(), handles.keys(), **place)
    if any(len(line) > 2 for panel in panels for line in panel.lines.values()):
        figure.supxlabel(f"the mean of several runs, within {INTERVAL}", fontsize="medium")
    return figure
