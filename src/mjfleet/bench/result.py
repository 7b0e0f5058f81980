"""A benchmark's result: medians, tables and files. In the launcher."""

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mjfleet.runs.git_state import git_state
from mjfleet.utils.atomic_write import write_atomically
from mjfleet.utils.packages import clone_folder


@dataclass(frozen=True)
class Spread:
    """The median and range of repeated measurements."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> "Spread":
        """Summarise at least one value."""
        values = list(values)
        return cls(statistics.median(values), min(values), max(values))


Cell = str | float | Spread | None


@dataclass(frozen=True)
class Table:
    """A table of a result; units are in the columns' names."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]

    @classmethod
    def of(
        cls, title: str, columns: Sequence[str], measured: Iterable[tuple[Any, Iterable[float]]]
    ) -> "Table":
        """Summarise keys and their figures, as often as they were measured; a row for each key."""
        rows: dict[str, list[Iterable[float]]] = {}
        for key, figures in measured:
            rows.setdefault(str(key), []).append(figures)
        spreads = {key: map(Spread.of, zip(*repeats, strict=True)) for key, repeats in rows.items()}
        return cls(title, columns, [[key, *spread] for key, spread in spreads.items()])

    def markdown(self) -> str:
        """Format the table as Markdown: a median is followed by its range."""
        lines = [list(self.columns), *([show(cell) for cell in row] for row in self.rows)]
        lines.insert(1, ["---"] + ["---:"] * (len(self.columns) - 1))
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        text = "\n".join(f"| {' | '.join(map(str.ljust, row, widths))} |" for row in lines)
        return f"**{self.title}**\n\n{text}"


@dataclass(frozen=True)
class Result:
    """A benchmark's samples and tables."""

    name: str  # The name of its files, without suffix.
    title: str
    tables: Sequence[Table]
    notes: Sequence[str]  # What a reader must know to understand the tables.
    samples: Sequence[Mapping[str, Any]]  # Every measurement, in their order.
    plots: Sequence[str] = ()  # Names of image files beside the JSON.
    versions: Mapping[str, str] = field(default_factory=dict)  # Other packages that took part.

    def write(self, folder: Path, command: str, taken: str, machine: Mapping[str, str]) -> str:
        """Write a JSON and a Markdown file, each whole or not at all; return the latter's text."""
        machine = {**machine, **self.versions}
        parts = [f"# {self.title}", f"```bash\n{command}\n```"]
        parts += [table.markdown() for table in self.tables]
        parts += [f"![{self.title}]({name})" for name in self.plots]
        parts += ["\n".join(f"- {note}" for note in self.notes)]
        known = ", ".join(f"{name} {text}" for name, text in machine.items())
        page = "\n\n".join([*parts, f"Taken {taken[:10]} with {known}.\n"])
        about = {"command": command, "taken": taken, "machine": machine}
        data = json.dumps(about | asdict(self), indent=1) + "\n"
        folder.mkdir(parents=True, exist_ok=True)
        for suffix, text in (("json", data), ("md", page)):
            path = folder / f"{self.name}.{suffix}"
            write_atomically(path, lambda file, text=text: file.write(text.encode()))
        return page


def our_commit() -> str:
    """Return the commit of mjfleet's clone, in nine digits, and whether files differ; else "".

    An installed package has none, although it may lie in another project's repository.
    """
    folder = clone_folder()
    for state in git_state([folder] if folder else []).values():
        if state["commit"]:
            return state["commit"][:9] + (", changed" if state["dirty"] else "")
    return ""


def show(cell: Cell) -> str:
    """Format a cell for people: about three digits."""
    match cell:
        case None:
            return "-"
        case str():
            return cell
        case Spread(median, low, high):
            return show(median) + (f" ({show(low)} to {show(high)})" if low != high else "")
    size = abs(cell)
    digits = 0 if size >= 100 or cell == int(cell) else 1 if size >= 10 else 2 if size >= 1 else 3
    return f"{cell:,.{digits}f}"
