"""Where metrics go besides the terminal: metrics.csv always, TensorBoard or W&B by choice.

Rank 0 runs this between two iterations, while the other ranks wait: whatever goes wrong here is
worth one warning, and neither an exception nor a pause.
"""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

from mjfleet.report.file_sinks import CsvSink, Row, TensorBoardSink
from mjfleet.report.record import METRICS_FILE
from mjfleet.report.wandb_sink import WandbSink
from mjfleet.tell import in_a_line

logger = logging.getLogger(__name__)


class Sink(Protocol):
    """Takes one row per iteration; columns without a value are None."""

    def write(self, row: Row) -> None:
        """Store a row; `row["iteration"]` is its step."""

    def close(self) -> None:
        """Flush and let go."""


class Sinks:
    """All sinks of a run. One that fails is dropped with a warning: training goes on without it.

    Files on a full disk are no such failure: their rows wait and are tried again.

    Args:
        run_dir: the run directory, which a resumed run has in common with its earlier parts.
        kind: what there is besides metrics.csv.
        project: the W&B project, unless the environment variable WANDB_PROJECT names another.
        config: the run's configuration, for W&B.
        resumed_from: the iterations that are done already, those of the checkpoint from which
            training goes on. What the files hold of later ones is dropped: they come again.
    """

    def __init__(
        self,
        run_dir: Path,
        kind: Literal["tensorboard", "wandb", "none"],
        project: str,
        config: Mapping[str, Any],
        *,
        resumed_from: int = 0,
    ) -> None:
        makers: dict[str, Callable[[], Sink]] = {
            METRICS_FILE: lambda: CsvSink(run_dir / METRICS_FILE, resumed_from)
        }
        if kind == "tensorboard":
            makers["TensorBoard"] = lambda: TensorBoardSink(run_dir, resumed_from)
        elif kind == "wandb":
            makers["W&B"] = lambda: WandbSink(run_dir, project, config)
        self._sinks: dict[str, Sink] = {}
        for name, make in makers.items():
            self._attempt(name, lambda name=name, make=make: self._sinks.update({name: make()}))

    def write(self, row: Row) -> None:
        """Give a row to every sink that still works."""
        for name, sink in list(self._sinks.items()):
            self._attempt(name, lambda sink=sink: sink.write(row))

    def video(self, path: Path, iteration: int) -> None:
        """Hand a finished MP4 file of the policy after an iteration to sinks that take videos.

        The file has to stay for as long as the run.
        """

    def close(self) -> None:
        """Close every sink that still works."""
        for name, sink in list(self._sinks.items()):
            self._attempt(name, sink.close)

    def _attempt(self, name: str, action: Callable[[], object]) -> None:
        try:
            action()
        except Exception as error:
            self._sinks.pop(name, None)
            logger.warning("%s failed, training goes on without it: %s", name, in_a_line(error))
