"""The folder of a group of runs. Runs in the launcher.

config.yaml      what all members have in common, as `train --config` reads it
group.json       task, kind, status and attempts of the group
<member>/        a run directory
<member>.log     what its process printed
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any

from mjfleet.launch.launch_plan import new_folder
from mjfleet.runs.run_directory import RunDirectory
from mjfleet.runs.start import Chosen
from mjfleet.worker.stop_signals import StopRequest


def enter_group(
    chosen: Chosen, entries: Mapping[str, Any], placement: Mapping[str, Any] = MappingProxyType({})
) -> tuple[Path, RunDirectory]:
    """Enter an attempt to train a group; return its folder, which is new or continues.

    W&B shows the members together by the folder's name. `entries` are those of group.json besides
    every group's, `placement` those of the note. UserError if the folder cannot be made or written.
    """
    when, config, agent = datetime.now(), chosen.config, chosen.config.agent
    has_name = bool(agent.wandb.group or "WANDB_RUN_GROUP" in os.environ)
    with StopRequest().installed():
        while True:
            folder = chosen.start.run_dir or new_folder(config, when)
            if "wandb" in agent.logger and not has_name:
                wandb = replace(agent.wandb, group=folder.name)
                chosen = replace(chosen, config=replace(config, agent=replace(agent, wandb=wandb)))
            try:
                return folder, RunDirectory(folder, chosen, entries, placement=placement)
            except FileExistsError:
                when += timedelta(seconds=1)
