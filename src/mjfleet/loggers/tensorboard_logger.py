"""Writes TensorBoard's event files into the run directory. Runs in rank 0."""

import io
import os
import socket
import time
from pathlib import Path
from typing import Any

from mjfleet.loggers.logger import Row
from mjfleet.loggers.row_file import RowFileLogger


class TensorBoardLogger(RowFileLogger):
    """Writes an event file for each part of a run.

    torch's SummaryWriter cannot keep what docs/reliability.md promises for a full disk: the thread
    of its writer ends with a traceback on the terminal, and leaves half a record, after which
    TensorBoard reads nothing. The records here come from TensorBoard's own RecordWriter.
    """

    def __init__(self, run_dir: Path, resumed_from: int) -> None:
        # TensorBoard reads files in the order of their names, so these must sort by time.
        moment = f"{time.time():.6f}"
        super().__init__(
            run_dir / f"events.out.tfevents.{moment}.{socket.gethostname()}.{os.getpid()}"
        )
        self._resumed_from = resumed_from

    def _first_content(self) -> bytes:
        # At the start of a session, TensorBoard drops what earlier files say about this step and
        # later ones.
        first = {"step": self._resumed_from + 1, "session_log": {"status": "START"}}
        return _record(file_version="brain.Event:2") + _record(**first)

    def _encode(self, row: Row) -> bytes:
        values = [
            {"tag": name, "simple_value": value}
            for name, value in row.items()
            if value is not None and name != "iteration"
        ]
        return _record(step=row["iteration"], summary={"value": values})


def _record(**event: Any) -> bytes:
    """Return one record of an event file: an event with its time, length and checksums."""
    from tensorboard.compat.proto.event_pb2 import (
        Event,  # pyright: ignore[reportAttributeAccessIssue]
    )
    from tensorboard.summary.writer.record_writer import RecordWriter

    record = io.BytesIO()
    RecordWriter(record).write(Event(wall_time=time.time(), **event).SerializeToString())
    return record.getvalue()
