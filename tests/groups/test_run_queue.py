"""The queue of a group's members: real runs of a few iterations."""

import os
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from mjfleet.config import LaunchConfig
from mjfleet.groups.device_shares import divide_devices
from mjfleet.groups.group_folder import GroupFolder
from mjfleet.groups.run_queue import Member, MemberProcess, Members, run_members
from mjfleet.registry import discover
from mjfleet.runs.metrics_csv import completed_iterations

TASK = "cartpole-balance"


class Three(Members):
    """One that is stopped once it has learned, one that finishes, one whose flags are wrong."""

    def __init__(self) -> None:
        self._is_asked = False
        super().__init__(
            [
                Member("wrong", ("--config", "error: none.yaml")),
                Member("long", ("--agent.max-iterations", "100000")),
                Member("short", ("--agent.max-iterations", "2")),
            ]
        )

    def next_member(self) -> Member | None:
        self._is_asked = not self._is_asked
        return self._waiting.pop(0) if self._waiting and self._is_asked else None

    def look(self, running: Sequence[MemberProcess]) -> None:
        for process in running:
            if completed_iterations(process.run_dir) > 2:
                process.stop()


@pytest.mark.slow
def test_members_come_when_a_share_is_free_and_how_each_ends_is_known(tmp_path: Path) -> None:
    members, config = Three(), discover({}).find(TASK).defaults()
    env, agent = replace(config.env, num_envs=16), replace(config.agent, num_steps_per_env=4)
    config = replace(config, env=env, agent=agent, run_dir=str(tmp_path / "group"))
    shares = divide_devices(LaunchConfig(gpu_ids=None), os.environ, 2)
    with closing(GroupFolder(TASK, config, None)) as group:
        group.begin(config, ["train"], {})
        assert run_members(group, config, shares, members) is None
    ends = {process.member.name: process for process in members.done}
    statuses = {name: process.status for name, process in ends.items()}
    assert statuses == {"wrong": "refused", "long": "stopped", "short": "finished"}
    assert ends["wrong"].cause.startswith("--config error: none.yaml: ")
    assert not (group.path / "wrong").exists()
    assert (group.path / "long/checkpoints/final_model.pt").exists()
    assert completed_iterations(group.path / "short") == 2
