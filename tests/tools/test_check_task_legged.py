"""`mjfleet check-task`: what is wrong in a legged robot's model is told as that."""

import re
import shutil
from pathlib import Path

import pytest

from mjfleet.config import from_dict
from mjfleet.registry import discover
from mjfleet.tools.check_task.examine import Examination

from ..conftest import REPOSITORY


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('name="FR_hip" class="hip_joint"', 'name="FR_hip" class="hip_joint" kp="30"',
         "the robot has no mirror symmetry: the kp of FR_hip_joint is 30;"),
        ('range="-1.0472 1.0472"', 'range="-0.11 0.11"',
         "episodes start with joint FR_hip_joint at .* mend the range: degrees, unless"),
    ],
)  # fmt: skip
def test_a_wrong_model_is_told(tmp_path: Path, old: str, new: str, said: str) -> None:
    robot = tmp_path / "tasks/dog/go2.xml"
    shutil.copytree(REPOSITORY / "tasks/go2", robot.parent)
    config, text = robot.parent / "config.py", robot.read_text()
    config.write_text(config.read_text().replace('"go2"', '"dog"'))
    assert old in text
    robot.write_text(text.replace(old, new))
    found = discover({}, str(tmp_path / "tasks")).tasks["dog-velocity-flat"]
    examination = Examination(found, from_dict(found.defaults(), {"env": {"num_envs": 32}}))
    assert re.search(said, str(next(examination.on_native())))
