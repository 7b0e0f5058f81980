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
from mjfleet.groups.run_queue import Member, run_members
from mjfleet.registry import discover
from mjfleet.runs.metrics_csv import completed_iterations

TASK = "cartpole-balance"


@pytest.mark.slow
def test_members_come_when_a_share_is_free_and_how_each_ends_is_known(tmp_path: Path) -> None:
    wrong = Member("wrong", ("--config", "error: none.yaml"))
    long = Member("long", ("--agent.max-iterations", "100000"))
    short = Member("short", ("--agent.max-iterations", "2"))
    answers = [wrong, None, long, None, short]  # None: nothing now.
    done: list[Member] = []

    def stop_after_two(running: Sequence[Member]) -> None:
        for member in running:
            if completed_iterations(member.run_dir) > 2:
                member.stop()

    config = discover({}).find(TASK).defaults()
    env, agent = replace(config.env, num_envs=16), replace(config.agent, num_steps_per_env=4)
    config = replace(config, env=env, agent=agent, run_dir=str(tmp_path / "group"))
    shares = divide_devices(LaunchConfig(gpu_ids=None), os.environ, 2)
    with closing(GroupFolder(TASK, config, None)) as group:
        group.begin(config, ["train"], {})
        next_member = lambda: answers.pop(0) if answers else None  # noqa: E731
        assert run_members(group, config, shares, next_member, done.append, stop_after_two) is None
    assert {*done} == {wrong, long, short}
    assert (wrong.status, long.status, short.status) == ("refused", "stopped", "finished")
    assert wrong.cause.startswith("--config error: none.yaml: ")
    assert not (group.path / "wrong").exists()
    assert (group.path / "long/checkpoints/final_model.pt").exists()
    assert completed_iterations(group.path / "short") == 2
