"""Tables of the web viewer's panel, as HTML."""

import html
from collections.abc import Sequence

STYLE = (
    "width:100%;box-sizing:border-box;padding:0 0.8em 0.5em;font-size:0.8em;"
    "font-variant-numeric:tabular-nums;border-collapse:separate;border-spacing:0 0.25em"
)
GOOD, BAD = "#2f9e44", "#e03131"


def table(rows: Sequence[tuple[str, ...]]) -> str:
    """Return rows of a name and its values."""
    lines = []
    for name, *cells in rows:
        data = "".join(f"<td style='text-align:right'>{html.escape(cell)}</td>" for cell in cells)
        lines.append(f"<tr><td>{html.escape(name)}</td>{data}</tr>")
    return f"<table style='{STYLE}'>{''.join(lines)}</table>"


def reward_bars(terms: Sequence[tuple[str, float, float]]) -> str:
    """Return reward terms with their value in a step, and their sum over an episode as a bar.

    Bars begin in the middle: to the right what adds to the return, to the left what reduces it.
    """
    most = max((abs(total) for _, _, total in terms), default=0.0) or 1.0
    lines = ["<tr><td></td><td></td><td align='right'>step</td><td align='right'>episode</td></tr>"]
    for name, step, total in terms:
        width = 50 * abs(total) / most
        left = 50.0 if total > 0 else 50 - width
        bar = (
            "<div style='position:relative;height:0.8em;background:#8884'>"
            f"<div style='position:absolute;height:100%;left:{left:.1f}%;width:{width:.1f}%;"
            f"background:{GOOD if total > 0 else BAD}'></div></div>"
        )
        cells = "".join(
            f"<td align='right'>{text}</td>" for text in (f"{step + 0.0:.3g}", f"{total + 0.0:.4g}")
        )
        lines.append(f"<tr><td>{html.escape(name)}</td><td width='30%'>{bar}</td>{cells}</tr>")
    return f"<table style='{STYLE}'>{''.join(lines)}</table>"


def note(text: str) -> str:
    """Return a line of small text."""
    return f"<p style='padding:0 0.8em;font-size:0.75em;opacity:0.7'>{html.escape(text)}</p>"
