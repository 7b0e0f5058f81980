"""Plots of runs and of benchmarks. matplotlib is imported when one is drawn."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mjfleet.utils.atomic_write import write_atomically

Line = tuple[Sequence[float], Sequence[float]]


@dataclass(frozen=True)
class Panel:
    """A plot: what its axes show, and the lines of each label, which share a colour."""

    x: str
    y: str
    lines: Mapping[str, Sequence[Line]]
    is_count: bool = False
    """Whether x is a whole number."""
    from_zero: bool = True
    """Whether the y-axis begins at zero."""
    as_band: bool = False
    """Whether several lines of a label are drawn as their mean within their range."""
    dots: Mapping[str, Sequence[Line]] = field(default_factory=dict)
    """What is drawn as single points, by label."""


def draw(path: Path, panels: Sequence[Panel], across: int = 4) -> None:
    """Draw panels, so many side by side, into a file: PNG, SVG or PDF by its name."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    across = min(across, len(panels))
    labels = list(dict.fromkeys(label for panel in panels for label in panel.lines))
    rows = -(-len(panels) // across)
    figure = Figure(figsize=(5 * across, 3.6 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    every = figure.subplots(rows, across, squeeze=False).flatten()
    for axes in every[len(panels) :]:
        axes.remove()
    for axes, panel in zip(every, panels, strict=False):
        for label, lines in panel.lines.items():
            drawn, colour = list(lines), f"C{labels.index(label)}"
            if panel.as_band and len(lines) > 1:
                x, least, mean, most = _band(lines)
                axes.fill_between(x, least, most, color=colour, alpha=0.2, linewidth=0)
                drawn = [(x, mean)]
            for x, y in drawn:
                few = "o" if len(x) < 20 else ""
                axes.plot(x, y, color=colour, marker=few, label=label, alpha=0.8)
                label = "_"  # One entry in the legend for all of a colour.  # noqa: PLW2901
        for label, lines in panel.dots.items():
            for x, y in lines:
                axes.plot(x, y, "o", color=f"C{labels.index(label)}", markersize=4)
        if panel.is_count:
            axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set(xlabel=panel.x, ylabel=panel.y)
        if panel.from_zero:
            axes.set_ylim(0, 1.05 * axes.dataLim.y1)
        axes.grid(alpha=0.3)
    if max(len(panel.lines) for panel in panels) > 1:
        # One legend: a label has the same colour in all panels.
        entries = [axes.get_legend_handles_labels() for axes in figure.axes]
        handles = {
            name: handle
            for each, names in entries
            for handle, name in zip(each, names, strict=True)
        }
        shown = [handles[label] for label in labels]
        figure.legend(shown, labels, loc="outside upper center", ncols=min(across, 2))
    kind = path.suffix.removeprefix(".")
    metadata = {"Software": None} if kind == "png" else None
    write_atomically(
        path, lambda file: figure.savefig(file, format=kind, dpi=120, metadata=metadata)
    )


def _band(lines: Sequence[Line]) -> tuple[Sequence[float], ...]:
    """Where all lines are: x, and there the least, the mean and the greatest y."""
    import numpy as np

    first, last = max(x[0] for x, _ in lines), min(x[-1] for x, _ in lines)
    common = np.linspace(first, max(first, last), 500)
    values = np.stack([np.interp(common, x, y) for x, y in lines])
    return common.tolist(), *(f(values, axis=0).tolist() for f in (np.min, np.mean, np.max))
