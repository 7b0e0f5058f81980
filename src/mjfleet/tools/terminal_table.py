"""Prints a table on the terminal, in its width; in a pipe, each row has one line."""

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from mjfleet.utils.console import printable

if TYPE_CHECKING:
    from rich.text import Text

LONGEST = 200  # Characters of a cell.
ONE_LINE = 400  # Columns of a table in a pipe.


def print_table(columns: Mapping[str, Sequence[str]], title: str = "") -> None:
    """Print columns of cells below their names; `title` is above them."""
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else ONE_LINE)
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for name in columns:
        table.add_column(_text(name), overflow="fold")
    for row in zip(*columns.values(), strict=True):
        table.add_row(*map(_text, row))
    if title:
        console.print(_text(title, "bold"))
    console.print(table)


def _text(text: str, style: str = "") -> "Text":
    """Return text of which nothing is markup, and that does not act on the terminal."""
    from rich.text import Text

    return Text(printable(text[:LONGEST]).replace("\n", " "), style)
