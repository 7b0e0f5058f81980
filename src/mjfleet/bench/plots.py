"""Plots of results. matplotlib is imported when one is drawn."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

Line = tuple[Sequence[float], Sequence[float]]


@dataclass(frozen=True)
class Panel:
    """A plot: what its axes show, and the lines of each label, which share a colour."""

    x: str
    y: str
    lines: Mapping[str, Sequence[Line]]
    is_count: bool = False
    """Whether x is a whole number."""


def draw(path: Path, panels: Sequence[Panel]) -> None:
    """Draw panels side by side into a PNG file; every y-axis begins at zero."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5 * len(panels), 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for number, (label, lines) in enumerate(panel.lines.items()):
            for x, y in lines:
                few = "o" if len(x) < 20 else ""
                axes.plot(x, y, color=f"C{number}", marker=few, label=label, alpha=0.8)
                label = "_"  # One entry in the legend for all of a colour.  # noqa: PLW2901
        if panel.is_count:
            axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set(xlabel=panel.x, ylabel=panel.y)
        axes.set_ylim(0, 1.05 * axes.dataLim.y1)
        axes.grid(alpha=0.3)
        if len(panel.lines) > 1:
            axes.legend()
    figure.savefig(path, dpi=120, metadata={"Software": None})
