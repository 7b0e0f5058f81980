"""The folder of a group of runs. Runs in the launcher.

config.yaml      what all members have in common, as `train --config` reads it
group.json       task, kind and status of the group
<member>/        a run directory
<member>.log     what its process printed
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from mjfleet.config import TrainConfig
from mjfleet.launch.hosts.host_environment import without_values
from mjfleet.launch.launch_plan import new_folder
from mjfleet.registry import FoundTask
from mjfleet.runs.attempts import CONFIG_FILE
from mjfleet.runs.config_yaml import placement_of, write_config
from mjfleet.runs.named_run import Parent, begun_with
from mjfleet.runs.own_runs import add_note, id_of, remove_note
from mjfleet.runs.run_directory import make_folder, refuse_written, remove_empty
from mjfleet.runs.run_json import GROUP_FILE, now, write_record
from mjfleet.runs.run_lock import REQUEUE_SECONDS, lock_run
from mjfleet.utils.safe_read import check_folder


class GroupFolder:
    """The folder of a group whose members are being trained, locked until `close`."""

    def __init__(self, found: FoundTask, config: TrainConfig, existing: Path | None) -> None:
        """Make the folder of a new group, or lock that of an `existing` one; UserError if not."""
        self.found, self.is_new, self._made = found, existing is None, list[Path]()
        self.path = existing or new_folder(config, datetime.now())
        if self.is_new:
            refuse_written(self.path)
            self._made = make_folder(self.path, "--run-dir" if config.run_dir else "--log-root")
        self.config_file = self.path / CONFIG_FILE
        self._before = {*self.path.iterdir()}
        self._lock = lock_run(self.path, REQUEUE_SECONDS)
        check_folder(self.path)

    def begin(
        self,
        config: TrainConfig,
        argv: Sequence[str],
        placement: Mapping[str, Any],
        parent: Parent | None,
        **entries: Any,
    ) -> None:
        """Write group.json, then config.yaml; note that this installation trains the group.

        `placement` and `entries` are those of the note and of group.json besides every group's;
        `parent` is whose networks the runs of a new group begin with. W&B shows the members
        together by the folder's name.
        """
        run_id, started = id_of(self.path), {"started": now()} if self.is_new else {}
        entries |= {"id": run_id, "argv": without_values(argv), "host": os.uname().nodename}
        entries |= {"pid": os.getpid(), "status": "running", "ended": None}
        entries |= begun_with({}, config, parent)
        write_record(self.path, GROUP_FILE, task=self.found.name, **started, **entries)
        agent = config.agent
        if "wandb" in agent.logger and not (agent.wandb.group or "WANDB_RUN_GROUP" in os.environ):
            agent = replace(agent, wandb=replace(agent.wandb, group=self.path.name))
            config = replace(config, agent=agent)
        write_config(self.config_file, self.found.name, config)
        add_note(self.path, run_id, {**placement_of(config), **placement})

    def end(self, status: str) -> None:
        """Record how the group ended: finished, stopped or failed."""
        write_record(self.path, GROUP_FILE, status=status, ended=now())

    def discard(self) -> None:
        """Remove the files of a new group of which no run has begun."""
        if self.is_new:
            remove_note(self.path)
            for path in filter(Path.is_file, {*self.path.iterdir()} - self._before):
                path.unlink()
            remove_empty(self._made)

    def close(self) -> None:
        self._lock.close()
