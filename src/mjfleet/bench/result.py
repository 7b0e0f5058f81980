"""What a benchmark has found: medians and ranges, tables, and the files that hold them."""

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mjfleet.utils.atomic_write import write_atomically


@dataclass(frozen=True)
class Spread:
    """What repeated measurements came to."""

    median: float
    low: float
    """The least of them."""
    high: float
    """The greatest."""

    @classmethod
    def of(cls, values: Iterable[float]) -> "Spread":
        """Of at least one value."""
        values = list(values)
        return cls(statistics.median(values), min(values), max(values))

    @classmethod
    def of_ratios(cls, pairs: Iterable[tuple[float, float]]) -> "Spread":
        """Of the ratio of each pair, whose two were measured one after the other."""
        return cls.of(first / second for first, second in pairs)


Cell = str | float | Spread | None


@dataclass(frozen=True)
class Table:
    """A table of a result; units are in the columns' names."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]

    def markdown(self) -> str:
        """As Markdown shows it: a median is followed by its range."""
        lines = [list(self.columns), *([show(cell) for cell in row] for row in self.rows)]
        lines.insert(1, ["---"] + ["---:"] * (len(self.columns) - 1))
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        text = "\n".join(f"| {' | '.join(map(str.ljust, row, widths))} |" for row in lines)
        return f"**{self.title}**\n\n{text}"


@dataclass(frozen=True, kw_only=True)
class Result:
    """A benchmark's samples and what they come to, as JSON holds it."""

    name: str
    """Of its files, without suffix."""
    title: str
    command: str = ""
    """What was typed."""
    taken: str = ""
    """When, with the time zone."""
    machine: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    tables: Sequence[Table]
    notes: Sequence[str] = ()
    """What has to be known to read the tables."""
    plots: Sequence[str] = ()
    """Files beside the JSON."""
    samples: Sequence[Mapping[str, Any]] = ()
    """Every measurement, in the order in which they were made."""

    def markdown(self, plots: str = "") -> str:
        """A section of a page; `plots` is the folder of the plots as seen from it."""
        images = [f"![{self.title}]({plots}{name})" for name in self.plots]
        notes = "\n".join(f"- {note}" for note in self.notes)
        tables = [table.markdown() for table in self.tables]
        command = f"```bash\n{self.command}\n```" if self.command else ""
        parts = [f"## {self.title}", command, *tables, *images, notes]
        return "\n\n".join(part for part in parts if part) + "\n"

    def write(self, folder: Path) -> None:
        """Write the JSON and a Markdown file, each whole or not at all."""
        folder.mkdir(parents=True, exist_ok=True)
        plain = json.dumps(asdict(self), indent=1) + "\n"
        for suffix, text in ((".json", plain), (".md", self.markdown())):
            data = text.encode()
            write_atomically(folder / f"{self.name}{suffix}", lambda f, data=data: f.write(data))

    @classmethod
    def read(cls, path: Path) -> "Result":
        """What `write` has left.

        Raises:
            ValueError, KeyError, TypeError: it is something else.
        """
        data = json.loads(path.read_text())
        tables = [
            Table(t["title"], t["columns"], [[_cell(cell) for cell in row] for row in t["rows"]])
            for t in data["tables"]
        ]
        return cls(**data | {"tables": tables})


def show(cell: Cell) -> str:
    """A cell as people read it: about three digits."""
    if cell is None:
        return "-"
    if isinstance(cell, str):
        return cell
    if isinstance(cell, Spread):
        if cell.low == cell.high:
            return show(cell.median)
        return f"{show(cell.median)} ({show(cell.low)} to {show(cell.high)})"
    size = abs(cell)
    digits = 0 if size >= 100 or cell == int(cell) else 1 if size >= 10 else 2 if size >= 1 else 3
    return f"{cell:,.{digits}f}"


def _cell(value: Any) -> Cell:
    return Spread(**value) if isinstance(value, dict) else value
