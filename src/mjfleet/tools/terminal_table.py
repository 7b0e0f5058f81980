"""Prints a table on the terminal, in its width; in a pipe, each row has one line."""

import sys
from collections.abc import Mapping, Sequence

from mjfleet.utils.console import printable

CELL_CHARACTERS = 200  # Characters of a cell.
ONE_LINE = 400  # Columns of a table in a pipe.


def print_table(columns: Mapping[str, Sequence[str]], title: str = "") -> None:
    """Print columns of cells below their names; `title` is above them."""
    from rich.console import Console
    from rich.table import Table

    width = None if sys.stdout.isatty() else ONE_LINE
    console = Console(width=width, markup=False, emoji=False, highlight=False)
    table = Table(*map(_line, columns), box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for column in table.columns:
        column.overflow = "fold"
    for row in zip(*columns.values(), strict=True):
        table.add_row(*map(_line, row))
    with console.capture() as shown:  # Where nobody reads it, rich would end the process itself.
        if title:
            console.print(_line(title), style="bold")
        console.print(table)
    print(shown.get(), end="")


def _line(text: str) -> str:
    return printable(text[:CELL_CHARACTERS]).replace("\n", " ")
