"""The contract of a logger. Runs in rank 0."""

from pathlib import Path

Row = dict[str, float | int | None]


class Logger:
    """Takes rows and files of a run. Each call may take long; an exception ends the logger.

    The constructor is quick and cannot fail. What a logger has no use for, it ignores.
    """

    def open(self) -> None:
        """Begin. Called once, first."""

    def write(self, row: Row) -> None:
        """Store a row. `row["iteration"]` is its step. Columns without a value are None."""

    def video(self, path: Path, iteration: int) -> None:
        """Store an MP4 file of the policy after an iteration."""

    def checkpoint(self, path: Path, iteration: int) -> None:
        """Store a checkpoint, which may have been removed by then."""

    def close(self, has_failed: bool) -> None:
        """Store the rest of a run, which may have failed. Called once, last."""

    def abandon(self) -> str:
        """Give up without waiting, from any thread; return what happens to the rest."""
        return "its last rows are lost"
