"""The folder of a group: group.json, the common configuration, a lock. Runs in the launcher.

config.yaml      what all members have in common, as `train --config` reads it
group.json       task, kind, status and the status of each member
<member>/        a run directory
<member>.log     what its process printed
"""

import logging
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from mjfleet.config import TrainConfig
from mjfleet.launch.host_environment import without_values
from mjfleet.launch.launch_plan import new_folder
from mjfleet.launch.launch_training import refuse_existing
from mjfleet.runs.config_yaml import CONFIG_FILE, placement_of, write_config
from mjfleet.runs.own_runs import add_note, id_of
from mjfleet.runs.run_directory import make_folder, remove_empty
from mjfleet.runs.run_json import GROUP_FILE, now, read_record, write_record
from mjfleet.runs.run_lock import lock_run
from mjfleet.utils.console import in_a_line
from mjfleet.utils.safe_read import check_folder

logger = logging.getLogger(__name__)


class GroupRecord:
    """A group whose members are about to be trained. Use it as a context, which ends the lock."""

    def __init__(self, folder: Path, task: str) -> None:
        """See `create` and `reopen`."""
        self.folder, self.task = folder, task
        self.members: dict[str, dict[str, Any]] = {}
        """What group.json says of each member: its `status`, and what its kind of group adds."""
        self._undo, self._lock = ExitStack(), None

    @classmethod
    def create(
        cls,
        kind: str,
        task: str,
        config: TrainConfig,
        members: Mapping[str, Mapping[str, Any]],
        argv: Sequence[str],
    ) -> "GroupRecord":
        """Make the folder of a new group, named by the next second if the name is taken.

        `config` is what all members have in common; `members` has entries of those that are known.

        Raises:
            UserError: the folder cannot be made.
        """
        when = datetime.now()
        while True:
            refuse_existing(config)
            group = cls(new_folder(config, when), task)
            made = make_folder(group.folder, "--run-dir" if config.run_dir else "--log-root")
            group._undo.callback(remove_empty, made)
            if group.folder in made:
                group._undo.callback(shutil.rmtree, group.folder, ignore_errors=True)
            if group.folder in made or config.run_dir:
                break
            when += timedelta(seconds=1)
        group._lock = lock_run(group.folder)
        group.members = {name: {**entries, "status": "queued"} for name, entries in members.items()}
        group._start(argv, kind=kind, task=task, started=now())
        group.write_config(in_group(config, group.folder.name))
        return group

    @classmethod
    def reopen(cls, folder: Path, task: str, argv: Sequence[str]) -> "GroupRecord":
        """Lock the folder of a group that goes on.

        Raises:
            UserError: another process trains its members, or something in it leads elsewhere.
        """
        group = cls(folder, task)
        group._lock = lock_run(folder)
        check_folder(folder)
        for file in (folder / CONFIG_FILE, folder / GROUP_FILE):
            group._undo.callback(file.write_bytes, file.read_bytes())
        sizes = {log: log.stat().st_size for log in folder.glob("*.log")}
        group._undo.callback(_shorten_logs, folder, sizes)
        group.members = read_record(folder, GROUP_FILE).get("members", {})
        group._start(argv)
        return group

    def __enter__(self) -> "GroupRecord":
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    @property
    def config_file(self) -> Path:
        """The file of what all members have in common."""
        return self.folder / CONFIG_FILE

    def write_config(self, config: TrainConfig) -> None:
        """Write what all members have in common, and note that this installation trains them."""
        write_config(self.config_file, self.task, config)
        run_id = read_record(self.folder, GROUP_FILE)["id"]
        add_note(self.folder, run_id, placement_of(config))

    def note(self, member: str, **entries: Any) -> None:
        """Add or change entries of a member."""
        self.members[member] = {**self.members.get(member, {}), **entries}
        self._write(members=self.members)

    def end(self, status: str) -> None:
        """Record how the group ended: finished, stopped or failed."""
        self._write(status=status, ended=now())

    def discard(self) -> None:
        """Remove the folder of a new group, since nothing has been trained.

        The files of one that goes on are as they were before.
        """
        self._undo.close()

    def _write(self, **entries: Any) -> None:
        """Write entries while members train, which goes on if that fails, as on a full disk."""
        try:
            write_record(self.folder, GROUP_FILE, **entries)
        except (OSError, ValueError) as error:
            file = self.folder / GROUP_FILE
            logger.warning("%s does not say how the runs stand: %s", file, in_a_line(error))

    def _start(self, argv: Sequence[str], **entries: Any) -> None:
        write_record(
            self.folder,
            GROUP_FILE,
            **entries,
            id=id_of(self.folder),
            argv=without_values(argv),
            host=os.uname().nodename,
            pid=os.getpid(),
            status="running",
            ended=None,
            members=self.members,
        )


def _shorten_logs(folder: Path, sizes: Mapping[Path, int]) -> None:
    """Give logs the sizes that they had, and remove others."""
    for log in folder.glob("*.log"):
        if log in sizes:
            os.truncate(log, sizes[log])
        else:
            log.unlink()


def in_group(config: TrainConfig, name: str) -> TrainConfig:
    """Return the configuration of a group's members, which W&B shows together by its name."""
    agent = config.agent
    if "wandb" not in agent.logger or agent.wandb.group or os.environ.get("WANDB_RUN_GROUP"):
        return config
    wandb = replace(agent.wandb, group=name)
    return replace(config, agent=replace(agent, wandb=wandb))
