"""The queue of a group's members: real runs of a few iterations."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from mjfleet.config import LaunchConfig
from mjfleet.groups.device_shares import divide_devices
from mjfleet.groups.run_queue import Ending, Member, RunningMember, run_members
from mjfleet.runs.metrics_csv import completed_iterations

SMALL = ("--env.num-envs", "16", "--agent.num-steps-per-env", "4")


class Three:
    """One that is stopped once it has learned, one that finishes, one whose flags are wrong."""

    def __init__(self) -> None:
        self.endings: dict[str, Ending] = {}
        self._waiting = [
            Member("wrong", ("--config", "error: none.yaml")),
            Member("long", ("--agent.max-iterations", "100000")),
            Member("short", ("--agent.max-iterations", "2")),
        ]
        self._is_asked = False

    def next_member(self) -> Member | None:
        self._is_asked = not self._is_asked
        return self._waiting.pop(0) if self._waiting and self._is_asked else None

    def look(self, running: Sequence[RunningMember]) -> None:
        for one in running:
            if completed_iterations(one.run_dir) > 2:
                one.stop()

    def ended(self, member: Member, ending: Ending) -> None:
        self.endings[member.name] = ending


@pytest.mark.slow
def test_members_come_when_a_share_is_free_and_each_ending_is_told(tmp_path: Path) -> None:
    (tmp_path / "short/checkpoints").mkdir(parents=True)
    (tmp_path / "short/checkpoints/model_9.pt").write_text("of somebody")
    members = Three()
    shares = divide_devices(LaunchConfig(gpu_ids=None), os.environ, 2)
    assert run_members(tmp_path, "cartpole-balance", shares, members, SMALL) is None
    endings = {name: ending.status for name, ending in members.endings.items()}
    assert endings == {"wrong": "failed", "long": "stopped", "short": "finished"}
    assert members.endings["wrong"].is_mistake
    assert members.endings["wrong"].message.startswith("--config error: none.yaml: ")
    assert not (tmp_path / "wrong").exists()
    assert (tmp_path / "long/checkpoints/final_model.pt").exists()
    assert completed_iterations(tmp_path / "short") == 2
    (aside,) = tmp_path.glob("replaced/short_*")
    assert (aside / "checkpoints/model_9.pt").read_text() == "of somebody"
