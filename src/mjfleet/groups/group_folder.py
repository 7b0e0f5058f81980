"""The folder of a group of runs. Runs in the launcher.

config.yaml      what all members have in common, as `train --config` reads it
group.json       task, kind, status and attempts of the group
<member>/        a run directory
<member>.log     what its process printed
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from mjfleet.config import TrainConfig
from mjfleet.launch.hosts.host_environment import without_values
from mjfleet.launch.launch_plan import new_folder
from mjfleet.registry import FoundTask
from mjfleet.runs.run_directory import Attempt, RunDirectory
from mjfleet.runs.run_lock import RunLock
from mjfleet.runs.start import Start


def enter_group(
    found: FoundTask,
    config: TrainConfig,
    argv: Sequence[str],
    start: Start,
    locks: Sequence[RunLock],
    entries: Mapping[str, Any],
    placement: Mapping[str, Any] | None = None,
) -> tuple[Path, RunDirectory]:
    """Enter an attempt to train a group; return its folder, which is new or continues.

    W&B shows the members together by the folder's name. `entries` are those of group.json besides
    every group's, `placement` those of the note. UserError if the folder cannot be made or written.
    """
    when, agent = datetime.now(), config.agent
    while True:
        folder = start.run_dir or new_folder(config, when)
        if "wandb" in agent.logger and not (agent.wandb.group or "WANDB_RUN_GROUP" in os.environ):
            wandb = replace(agent.wandb, group=folder.name)
            config = replace(config, agent=replace(agent, wandb=wandb))
        attempt = Attempt(found, config, without_values(argv), entries, start, placement or {})
        try:
            return folder, RunDirectory(folder, attempt, None, locks[0] if locks else None)
        except FileExistsError:
            when += timedelta(seconds=1)
