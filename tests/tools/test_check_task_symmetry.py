"""`mjfleet check-task`: it tries the function that mirrors samples, as training does at once."""

import shutil
from pathlib import Path

import pytest

from mjfleet.config import from_dict
from mjfleet.registry import discover
from mjfleet.tools.check_task.examine import Examination

from ..conftest import REPOSITORY
from .arm import mistakes_on_native, write_arm

MIRROR = """
def mirror(env, obs, actions):
    return torch.cat((obs, obs)), torch.cat((actions, 2 * actions))
"""


@pytest.mark.parametrize(
    ("function", "kind", "said"),
    [
        ("", "use_data_augmentation", "env.py has no `mirror`"),
        (MIRROR, "use_equivariant_networks", "is a mirror: it swaps the numbers of `actions`"),
        (MIRROR.replace("2 * ", "-"), "use_equivariant_networks", None),
        (MIRROR.replace("2 * ", "env.arm - "), "use_data_augmentation", "no attribute 'arm'"),
    ],
)
def test_a_mirror_that_training_refuses_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, kind: str, said: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    symmetry = f"symmetry_cfg=SymmetryConfig(data_augmentation_func='env:mirror', {kind}=True)"
    write_arm(
        tmp_path,
        ("\n\nclass ArmEnv", f"{function}\n\nclass ArmEnv"),
        config=[
            ("PPOConfig, Task", "PPOConfig, SymmetryConfig, Task"),
            ("entropy_coef", f"{symmetry}, entropy_coef"),
        ],
    )
    found = mistakes_on_native(tmp_path)
    assert len(found) == (said is not None)
    assert said is None or said in found[0]


def test_a_robot_without_mirror_symmetry_is_found(tmp_path: Path) -> None:
    robot = tmp_path / "tasks/dog/go2.xml"
    shutil.copytree(REPOSITORY / "tasks/go2", robot.parent)
    config = robot.parent / "config.py"
    config.write_text(config.read_text().replace('"go2"', '"dog"'))
    motor = 'name="FR_hip" class="hip_joint"'
    robot.write_text(robot.read_text().replace(motor, f'{motor} kp="30"'))
    found = discover({}, str(tmp_path / "tasks")).tasks["dog-velocity-flat"]
    examination = Examination(found, from_dict(found.defaults(), {"env": {"num_envs": 2}}))
    assert "the kp of FR_hip_joint is 30" in str(next(examination.on_native()))
