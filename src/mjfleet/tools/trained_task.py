"""The task of a trained policy: as it is now, or as it was. For `play`, `export` and `inspect`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mjfleet.config import TrainConfig
from mjfleet.registry import FoundTask, find_task
from mjfleet.runs.config_yaml import CONFIG_FILE, from_file, read_config
from mjfleet.runs.own_runs import note_of
from mjfleet.runs.task_snapshot import changes_since, own_snapshot, read_code, run_dir_of
from mjfleet.utils.console import print_line


def trained_task(
    source: Path, name: str, now: FoundTask | None, data: Mapping[str, Any], is_asked: bool
) -> tuple[FoundTask, TrainConfig]:
    """Return the task of a policy and its configuration.

    It prints what has changed in the task's code since.

    Args:
        source: the checkpoint of the policy, or a run directory.
        name: the task's.
        now: the task as it is now. None: it is taken from the run's snapshot.
        data: the configuration of the run, or that of a pretrained policy.
        is_asked: whether the user has given --as-trained.

    Raises:
        UserError: there is no snapshot, it cannot be used, or the task does not know a value of
            the configuration.
    """
    run_dir = run_dir_of(source)
    if now is None:
        snapshot = own_snapshot(source, name, is_asked)
        now, data = find_task(name, snapshot.folder), read_config(str(snapshot.config), "--resume")
    elif changes := changes_since(source, read_code(now.folder)):
        print_line(f"{changes}\n--as-trained uses the code as it was\n")
    file = f"{run_dir}: its {CONFIG_FILE}" if (run_dir / CONFIG_FILE).exists() else str(source)
    return now, from_file(now, data, file, note_of(run_dir))
