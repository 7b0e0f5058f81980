"""The queue of a group's members: real runs of a few iterations."""

import os
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from mjfleet.config import LaunchConfig
from mjfleet.groups.device_shares import divide_devices
from mjfleet.groups.group_folder import enter_group
from mjfleet.groups.run_queue import Member, run_members
from mjfleet.registry import discover
from mjfleet.runs.metrics_csv import completed_iterations
from mjfleet.runs.start import Chosen

TASK = "cartpole-balance"


@pytest.mark.slow
def test_members_come_when_a_share_is_free_and_how_each_ends_is_known(tmp_path: Path) -> None:
    """One is refused, one is stopped once it has learned, one finishes. Two train at a time."""
    found = discover({}).find(TASK)
    config = found.defaults()
    env, agent = replace(config.env, num_envs=16), replace(config.agent, num_steps_per_env=4)
    config = replace(config, env=env, agent=agent, gpu_ids=None, run_dir=str(tmp_path / "group"))
    shares = divide_devices(LaunchConfig(gpu_ids=None), os.environ, 2)
    waiting = [
        Member("wrong", ("--agent.max-iterations", "0")),
        Member("long", ("--agent.max-iterations", "100000")),
        Member("short", ("--agent.max-iterations", "2")),
    ]
    ended: list[Member] = []
    asked = 0

    def next_member() -> Member | None:
        """Return a member every other time: None is nothing now, not nothing more."""
        nonlocal asked
        asked += 1
        return waiting.pop(0) if waiting and asked % 2 else None

    def look(running: Sequence[Member]) -> None:
        assert len(running) <= len(shares)
        for member in running:
            if completed_iterations(member.run_dir) > 2:
                member.stop()

    folder, attempt = enter_group(Chosen(found=found, config=config), {"kind": "seeds"})
    with closing(attempt):
        assert run_members(found, config, folder, shares, next_member, ended.append, look) is None
    statuses = {member.name: member.status for member in ended}
    assert statuses == {"wrong": "refused", "long": "stopped", "short": "finished"}
    (wrong,) = (member for member in ended if member.name == "wrong")
    assert wrong.cause.startswith("--agent.max-iterations is 0")
    assert not (folder / "wrong").exists()
    assert (folder / "long/checkpoints/final_model.pt").exists()
    assert completed_iterations(folder / "short") == 2


def test_a_member_that_begins_again_has_forgotten_why_it_was_killed(tmp_path: Path) -> None:
    (share,) = divide_devices(LaunchConfig(gpu_ids=None), os.environ, 1)
    member = Member("trial_0", ())
    member.cause = "killed by SIGKILL"
    member.start(tmp_path, share, (TASK, "--dry-run"))
    member.close()
    assert (member.status, member.cause) == ("stopped", "")


def test_a_file_of_a_member_that_cannot_be_read_ends_no_group(tmp_path: Path) -> None:
    (share,) = divide_devices(LaunchConfig(gpu_ids=None), os.environ, 1)
    member = Member("seed_1", ())
    member.start(tmp_path, share, (TASK, "--dry-run"))
    (tmp_path / "seed_1/metrics.csv").mkdir(parents=True)
    assert member.iterations == 0
    member.close()
