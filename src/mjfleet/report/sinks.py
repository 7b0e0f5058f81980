"""Where metrics go besides the terminal: metrics.csv always, TensorBoard or W&B by choice."""

import csv
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

from mjfleet.report.record import METRICS_FILE

Row = Mapping[str, float | int | None]

logger = logging.getLogger(__name__)


class Sink(Protocol):
    """Takes one row per iteration; columns without a value are None."""

    def write(self, row: Row) -> None:
        """Store a row; `row["iteration"]` is its step."""

    def close(self) -> None:
        """Flush and let go."""


class CsvSink:
    """metrics.csv: a header, then a row per iteration, on disk as soon as it is written."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", newline="")
        self._writer: csv.DictWriter[str] | None = None

    def write(self, row: Row) -> None:
        if self._writer is None:
            self._writer = csv.DictWriter(self._file, fieldnames=list(row))
            self._writer.writeheader()
        self._writer.writerow(row)
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class TensorBoardSink:
    """An event file in the run directory."""

    def __init__(self, run_dir: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(run_dir), flush_secs=10)

    def write(self, row: Row) -> None:
        for name, value in row.items():
            if value is not None and name != "iteration":
                self._writer.add_scalar(name, value, row["iteration"])

    def close(self) -> None:
        self._writer.close()


class WandbSink:
    """A Weights & Biases run; without a login it is recorded offline, and never asks for one."""

    def __init__(self, run_dir: Path, project: str, config: Mapping[str, Any]) -> None:
        import wandb

        mode = os.environ.get("WANDB_MODE")
        if mode is None and not wandb.login(prompt=False, verify=False):
            logger.warning("W&B: not logged in, recording offline; `wandb sync` uploads it later")
            mode = "offline"
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", project),
            name=run_dir.name,
            dir=str(run_dir),
            config=dict(config),
            mode=mode,  # pyright: ignore[reportArgumentType]
            settings=wandb.Settings(init_timeout=30, silent=True),
        )

    def write(self, row: Row) -> None:
        values = {name: value for name, value in row.items() if value is not None}
        self._run.log(values, step=int(values["iteration"]))

    def close(self) -> None:
        self._run.finish()


class Sinks:
    """All sinks of a run. One that fails is dropped with a warning: training goes on without it."""

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
            METRICS_FILE: lambda: CsvSink(run_dir / METRICS_FILE)
        }
        if kind == "tensorboard":
            makers["TensorBoard"] = lambda: TensorBoardSink(run_dir)
        elif kind == "wandb":
            makers["W&B"] = lambda: WandbSink(run_dir, project, config)
        self._sinks: dict[str, Sink] = {}
        for name, make in makers.items():
            self._attempt(name, lambda name=name, make=make: self._sinks.update({name: make()}))

    def write(self, row: Row) -> None:
        """Give a row to every sink that still works."""
        for name, sink in list(self._sinks.items()):
            self._attempt(name, lambda sink=sink: sink.write(row))

    def close(self) -> None:
        """Close every sink that still works."""
        for name, sink in list(self._sinks.items()):
            self._attempt(name, sink.close)

    def _attempt(self, name: str, action: Callable[[], object]) -> None:
        try:
            action()
        except Exception as error:
            self._sinks.pop(name, None)
            logger.warning("%s failed, training goes on without it: %s", name, error)
