"""The task of a trained policy: as it is now, or as it was. For `play` and `mjfleet export`."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mjfleet.config import TrainConfig
from mjfleet.registry import FoundTask, find_task
from mjfleet.runs.config_yaml import read_config
from mjfleet.runs.foreign_files import from_file
from mjfleet.runs.task_snapshot import as_trained, changes_since, read_code
from mjfleet.utils.console import print_line


@contextmanager
def trained_task(
    checkpoint: Path, name: str, now: FoundTask | None, data: Mapping[str, Any], is_asked: bool
) -> Iterator[tuple[FoundTask, TrainConfig]]:
    """Yield the task of a policy and its configuration, for the block.

    It says what has changed in the task's code since the checkpoint.

    Args:
        checkpoint: of the policy.
        name: the task's.
        now: the task as it is now. None: it is taken from the snapshot of the checkpoint's run.
        data: the run's configuration.
        is_asked: whether the user has given --as-trained.

    Raises:
        UserError: there is no snapshot, it cannot be used, or the task does not know a value of
            the configuration.
    """
    if now is None:
        with as_trained(checkpoint, name, is_asked) as (folder, config):
            found = find_task(name, folder)
            yield found, from_file(found, read_config(str(config)))
        return
    if changes := changes_since(checkpoint, read_code(now.folder)):
        print_line(f"{changes}\n--as-trained uses the code as it was\n")
    yield now, from_file(now, data)
