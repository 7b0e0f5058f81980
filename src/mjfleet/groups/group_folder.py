"""The folder of a group of runs. Runs in the launcher.

config.yaml      what all members have in common, as `train --config` reads it
group.json       task, kind and status of the group
<member>/        a run directory
<member>.log     what its process printed
"""

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from mjfleet.config import TrainConfig
from mjfleet.launch.host_environment import without_values
from mjfleet.launch.launch_plan import new_folder
from mjfleet.launch.launch_training import refuse_existing
from mjfleet.runs.beginning import refuse_other_user
from mjfleet.runs.config_yaml import CONFIG_FILE, placement_of, write_config
from mjfleet.runs.own_runs import add_note, id_of
from mjfleet.runs.run_directory import make_folder, remove_empty
from mjfleet.runs.run_json import GROUP_FILE, now, write_record
from mjfleet.runs.run_lock import lock_run
from mjfleet.utils.safe_read import check_folder


class GroupFolder:
    """The folder of a group whose members are being trained, locked until `close`."""

    def __init__(self, task: str, config: TrainConfig, existing: Path | None) -> None:
        """Make the folder of a new group, or lock that of an `existing` one.

        A new folder is named by --run-dir, or by the first second that is free.

        Raises:
            UserError: the folder cannot be made, another process trains its members, or it holds a
                link or belongs to another user.
        """
        self.task, self.is_new = task, existing is None
        if existing:
            refuse_other_user(existing, str(existing))
        self._made, when = list[Path](), datetime.now()
        while existing is None:
            refuse_existing(config)
            folder = new_folder(config, when)
            self._made = make_folder(folder, "--run-dir" if config.run_dir else "--log-root")
            if folder in self._made or config.run_dir:
                existing = folder
            when += timedelta(seconds=1)
        self.path, self.config_file = existing, existing / CONFIG_FILE
        self._before = {*existing.iterdir()}
        self._lock = lock_run(existing)
        check_folder(existing)

    def begin(
        self,
        config: TrainConfig,
        argv: Sequence[str],
        placement: Mapping[str, Any],
        **entries: Any,
    ) -> None:
        """Write group.json, then config.yaml; note that this installation trains the group.

        Args:
            config: what all members have in common. W&B shows them together by the folder's name.
            argv: the command.
            placement: what the note says besides the configuration's own.
            entries: of group.json, besides those of every group.
        """
        run_id = id_of(self.path)
        self.note(
            task=self.task,
            **entries,
            **({"started": now()} if self.is_new else {}),
            id=run_id,
            argv=without_values(argv),
            host=os.uname().nodename,
            pid=os.getpid(),
            status="running",
            ended=None,
        )
        agent = config.agent
        if "wandb" in agent.logger and not (agent.wandb.group or "WANDB_RUN_GROUP" in os.environ):
            agent = replace(agent, wandb=replace(agent.wandb, group=self.path.name))
            config = replace(config, agent=agent)
        write_config(self.config_file, self.task, config)
        add_note(self.path, run_id, {**placement_of(config), **placement})

    def note(self, **entries: Any) -> None:
        """Add or change entries of group.json."""
        write_record(self.path, GROUP_FILE, **entries)

    def end(self, status: str) -> None:
        """Record how the group ended: finished, stopped or failed."""
        self.note(status=status, ended=now())

    def discard(self) -> None:
        """Remove all of a new group, since nothing has been trained."""
        if self.is_new:
            for path in {*self.path.iterdir()} - self._before:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            remove_empty(self._made)

    def close(self) -> None:
        """Release the lock."""
        self._lock.close()
