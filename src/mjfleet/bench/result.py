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
        spreads = {key: map(Spread.of, zip(*each, strict=True)) for key, each in rows.items()}
        return cls(title, columns, [[key, *each] for key, each in spreads.items()])

    def markdown(self) -> str:
        """Format the table as Markdown: a median is followed by its range."""
        lines = [list(self.columns), *([show(cell) for cell in row] for row in self.rows)]
        lines.insert(1, ["---"] + ["---:"] * (len(self.columns) - 1))
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        text = "\n".join(f"| {' | '.join(map(str.ljust, row, widths))} |" for row in lines)
        return f"**{self.title}**\n\n{text}"


@dataclass(frozen=True)
class Result:
    """A benchmark's samples and tables, as its JSON file holds them."""

    name: str  # Of its files, without suffix.
    title: str
    command: str = field(default="", kw_only=True)
    taken: str = field(default="", kw_only=True)  # The time, with its zone.
    machine: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    versions: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    tables: Sequence[Table]
    notes: Sequence[str] = ()  # What a reader must know to understand the tables.
    plots: Sequence[str] = field(default=(), kw_only=True)  # Names of image files beside the JSON.
    samples: Sequence[Mapping[str, Any]] = ()  # Every measurement, in their order.

    def markdown(self) -> str:
        """Format the result as a section of a page, which says when and on what it was taken."""
        known = [f"{name} {text}" for name, text in {**self.machine, **self.versions}.items()]
        parts = [f"# {self.title}", f"```bash\n{self.command}\n```" if self.command else ""]
        parts += [table.markdown() for table in self.tables]
        parts += [f"![{self.title}]({name})" for name in self.plots]
        parts.append("\n".join(f"- {note}" for note in self.notes))
        parts.append(f"Taken {self.taken[:10]} with {', '.join(known)}.")
        return "\n\n".join(part for part in parts if part) + "\n"

    def write(self, folder: Path) -> None:
        """Write the JSON and a Markdown file, each whole or not at all."""
        folder.mkdir(parents=True, exist_ok=True)
        data = json.dumps(asdict(self), indent=1) + "\n"
        for suffix, text in (("json", data), ("md", self.markdown())):
            path = folder / f"{self.name}.{suffix}"
            write_atomically(path, lambda file, text=text: file.write(text.encode()))


def our_commit() -> str:
    """Return the commit of mjfleet's clone, in nine digits, and whether files differ; else "".

    An installed package has none, although it may lie in another project's repository.
    """
    if clone_folder() is None:
        return ""
    for state in git_state([Path(__file__).parent]).values():
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
