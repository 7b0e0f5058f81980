"""Decides when a checkpoint is due and how many are kept, and writes them. Runs on rank 0."""

import logging
import os
import shutil
import time
from pathlib import Path

from mjfleet.runs.checkpoint_names import BEST, FINAL, checkpoints_in
from mjfleet.utils.atomic_write import write_atomically

ATTEMPTS = 3
"""Consecutive failures to write a checkpoint that end training."""
PAUSE_SECONDS = 1.0
"""Between attempts at the end of a run, when no later iteration would save."""

logger = logging.getLogger(__name__)


class CheckpointError(RuntimeError):
    """Checkpoints cannot be written."""


class CheckpointSchedule:
    """The checkpoints of a folder: model_<iteration>.pt, BEST of the best evaluation, and FINAL."""

    def __init__(self, folder: Path, interval: int, keep: int | None) -> None:
        """Write to `folder` every `interval` iterations; keep the `keep` newest (None: all)."""
        self._folder, self._interval, self._keep = folder, interval, keep
        self._failures = 0

    def due(self, iteration: int, *, is_last: bool, is_best: bool) -> list[Path]:
        """Return the files to be written after an iteration."""
        is_due = is_last or iteration % self._interval == 0
        names = [f"model_{iteration}.pt"] * is_due + [BEST] * is_best
        return [self._folder / name for name in names]

    def write(self, paths: list[Path], data: bytes, *, is_last: bool) -> bool:
        """Write the same checkpoint to several files; return whether that succeeded.

        Raises:
            CheckpointError: it has failed several times in a row.
        """
        for attempt in range(ATTEMPTS if is_last else 1):
            time.sleep(PAUSE_SECONDS if attempt else 0.0)
            path = paths[0]
            try:
                for path in paths:
                    write_atomically(path, lambda file: file.write(data))
                if is_last:
                    path = self._folder / FINAL
                    _name_also(paths[0], path)
                if self._keep is not None:
                    for old in checkpoints_in(self._folder)[: -self._keep]:
                        old.unlink(missing_ok=True)
            except OSError as error:
                self._failures += 1
                if self._failures >= ATTEMPTS:
                    before = checkpoints_in(self._folder)
                    left = f"{before[-1].name} is intact" if before else "there is none before it"
                    raise CheckpointError(
                        f"{path} could not be written, as {ATTEMPTS - 1} times before: "
                        f"{error.strerror}; {left}."
                    ) from error
                logger.warning(
                    "%s could not be written, training goes on: %s", path, error.strerror
                )
            else:
                self._failures = 0
                return True
        return False


def _name_also(path: Path, other: Path) -> None:
    """Give a file a second name, or make a copy where the file system has no such links."""
    aside = other.with_name(f".{other.name}.{os.getpid()}.tmp")
    aside.unlink(missing_ok=True)
    try:
        os.link(path, aside)
    except OSError:
        shutil.copyfile(path, aside)
    aside.replace(other)
