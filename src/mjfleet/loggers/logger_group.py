"""Where metrics, videos and checkpoints go besides the terminal and the run directory's own files.

Rank 0 runs this between two iterations, while the other ranks wait: it hands over what there is,
and whatever goes wrong is worth one warning, and neither an exception nor a pause. A checkpoint
alone waits, for a moment, for metrics.csv.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mjfleet.config import AgentConfig
from mjfleet.loggers.file_loggers import CsvSink, TensorBoardSink
from mjfleet.loggers.logger import Logger, Row, SinkThread
from mjfleet.loggers.wandb_logger import WandbSink
from mjfleet.runs.metrics_csv import METRICS_FILE

CLOSE_SECONDS = 30.0
"""How long all sinks together may take to store the rest at the end of a run."""
SETTLE_SECONDS = 1.0
"""How long a checkpoint may wait for the rows of the iterations that it holds."""
FAILED_SECONDS = 3.0
"""The same where the run has failed, and somebody waits to be told why."""


class LoggerGroup:
    """All sinks of a run: metrics.csv always, TensorBoard and W&B as `agent.logger` says.

    Used as a context, which closes them.

    Args:
        run_dir: the run directory, which a resumed run has in common with its earlier parts.
        agent: says which sinks there are, and how W&B is to call the run.
        config: the run's whole configuration, for W&B.
        resumed_from: the iterations that are done already, those of the checkpoint from which
            training goes on. What the files hold of later ones is dropped: they come again.
    """

    def __init__(
        self,
        run_dir: Path,
        agent: AgentConfig,
        config: Mapping[str, Any],
        *,
        resumed_from: int = 0,
    ) -> None:
        loggers: dict[str, Logger] = {METRICS_FILE: CsvSink(run_dir / METRICS_FILE, resumed_from)}
        if "tensorboard" in agent.logger:
            loggers["TensorBoard"] = TensorBoardSink(run_dir, resumed_from)
        if "wandb" in agent.logger:
            loggers["W&B"] = WandbSink(run_dir, agent.wandb, agent.experiment_name, config)
        self._threads = [SinkThread(name, sink) for name, sink in loggers.items()]

    def write(self, row: Row) -> None:
        """Hand a row to every sink; `row["iteration"]` is its step, None stands for no value."""
        row = dict(row)
        for thread in self._threads:
            thread.put(lambda sink: sink.write(row))

    def settle(self) -> None:
        """Wait until metrics.csv has all rows, but not for long.

        A run that is killed goes on from its newest checkpoint, whose rows do not come again.
        """
        self._threads[0].settle(SETTLE_SECONDS)

    def video(self, path: Path, iteration: int) -> None:
        """Hand a finished MP4 file of the policy after an iteration to sinks that take videos.

        The file has to stay for as long as the run.
        """
        for thread in self._threads:
            thread.put(lambda sink: sink.video(path, iteration))

    def checkpoint(self, path: Path, iteration: int) -> None:
        """Hand a checkpoint to sinks that keep some; one that is removed again may be passed by."""
        for thread in self._threads:
            thread.put(lambda sink: sink.checkpoint(path, iteration))

    def close(self, seconds: float = CLOSE_SECONDS, has_failed: bool = False) -> None:
        """Wait until all sinks have stored what they were given, but no longer than that.

        The run may have failed: W&B shows that.
        """
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.finish(has_failed)
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def __enter__(self) -> "LoggerGroup":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(FAILED_SECONDS if kind else CLOSE_SECONDS, has_failed=kind is not None)
