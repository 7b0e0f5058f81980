"""How a run shows itself in a notebook: its state, its curve, its newest video."""

import base64
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import Any

from mjfleet.runs.metrics_csv import METRICS_FILE, read_rows, value

SHOWN = (
    "mean_return", "mean_episode_length", "mean_reward", "action_std", "global_steps_per_second",
)  # fmt: skip
WIDTH, HEIGHT, POINTS = 480, 140, 240
VIDEO_BYTES = 5 << 20  # A larger video is named instead of shown.
REFRESH_SECONDS = 1.0


def page_of(run_dir: Path, name: str, status: str, has_video: bool) -> str:
    """Return a run as HTML, with its newest video or without one."""
    _, rows = read_rows(run_dir / METRICS_FILE)
    last = rows[-1] if rows else {}
    cells = {"status": status, "iteration": last.get("iteration", "0")}
    cells |= {name: f"{v:.4g}" for name in SHOWN if (v := value(last, name)) is not None}
    table = "".join(f"<tr><td>{k}</td><td>{escape(v)}</td></tr>" for k, v in cells.items())
    parts = [f"<b>{escape(name)}</b>", f"<table>{table}</table>"]
    points = [(value(row, "iteration"), value(row, "mean_return")) for row in rows]
    parts.append(_curve([(x, y) for x, y in points if x is not None and y is not None]))
    videos = sorted((run_dir / "videos").glob("*.mp4"), key=lambda file: file.stat().st_mtime)
    if has_video and videos and videos[-1].stat().st_size <= VIDEO_BYTES:
        data = base64.b64encode(videos[-1].read_bytes()).decode()
        parts.append(f'<video controls width="{WIDTH}" src="data:video/mp4;base64,{data}"></video>')
    return "<div>" + "".join(parts) + "</div>"


@contextmanager
def live_view(page: Callable[[bool], str]) -> Iterator[Callable[[], None]]:
    """Show a run below the cell; give what shows it as it is now, at most once per second.

    At the end, it is shown as it has ended, with its newest video. `page` returns the run as HTML,
    with that video or without it.
    """
    from IPython.display import HTML, display

    handle: Any = display(HTML(page(False)), display_id=True)
    due = time.monotonic()

    def show() -> None:
        nonlocal due
        if time.monotonic() > due:
            due = time.monotonic() + REFRESH_SECONDS
            handle.update(HTML(page(False)))

    try:
        yield show
    finally:
        handle.update(HTML(page(True)))


def _curve(points: list[tuple[float, float]]) -> str:
    """Return the mean return against the iteration as SVG."""
    if len(points) < 2:
        return ""
    points = points[:: max(1, len(points) // POINTS)]
    xs, ys = zip(*points, strict=True)
    low, high = min(ys), max(ys)
    across, up = WIDTH / (xs[-1] - xs[0] or 1), HEIGHT / (high - low or 1)
    line = " ".join(f"{(x - xs[0]) * across:.1f},{HEIGHT - (y - low) * up:.1f}" for x, y in points)
    return (
        f"<div>mean_return, {low:.4g} to {high:.4g}, iterations {xs[0]:g} to {xs[-1]:g}</div>"
        f'<svg width="{WIDTH}" height="{HEIGHT}" style="border:1px solid #8884">'
        f'<polyline fill="none" stroke="#1f77b4" stroke-width="1.5" points="{line}"/></svg>'
    )
