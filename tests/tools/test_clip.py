"""`mjfleet clip` shows clips, draws them, and writes them with names."""

from pathlib import Path

import numpy as np
from PIL import Image

from ..conftest import Output, Refusal, read_video

WALK = ("task:clips/walk.npz", "--robot", "g1-tracking")


def test_a_clip_is_shown_drawn_and_converted(output: Output, tmp_path: Path) -> None:
    shown = output("mjfleet", "clip", "show", *WALK, "--plot", "walk.png")
    assert "walk.npz: 6.98 s, 350 frames at 50 a second, 29 joints; the base goes 3.1" in shown
    width, height = Image.open(tmp_path / "walk.png").size
    assert height > width > 2000  # Each of 29 joints has a panel, four side by side.
    rows = np.zeros((10, 36))
    rows[:, 2], rows[:, 6] = 0.76, 1.0
    rows[:, 10] = 3.0  # The left knee, beyond its range.
    np.savetxt(tmp_path / "still.csv", rows, delimiter=",")
    convert = ("mjfleet", "clip", "convert", "still.csv", "--robot", "g1-tracking", "--rate", "20")
    shown = output(*convert, "--output", "still.npz")
    assert "still.csv: 0.45 s, 10 frames at 20 a second" in shown
    assert "left_knee_joint is 3 to 3, its range -0.0873 to 2.88" in shown
    with np.load(tmp_path / "still.npz") as arrays:
        assert (float(arrays["rate"]), arrays["qpos"].shape) == (20.0, (10, 36))
        assert arrays["joints"][3] == "left_knee_joint"
        np.testing.assert_allclose(arrays["qpos"][:, 3:7], [[1, 0, 0, 0]] * 10)
    show = ("mjfleet", "clip", "show", "still.npz", "--robot", "g1-tracking")
    output(*show, "--video", "still.mp4")
    assert len(read_video(tmp_path / "still.mp4")) == 10


def test_wrong_words_about_clips_are_refused(refusal: Refusal, tmp_path: Path) -> None:
    assert "there is no command `clip cut`" in refusal("mjfleet", "clip", "cut")
    (tmp_path / "narrow.csv").write_text("1,2\n3,4\n")
    wrong = refusal("mjfleet", "clip", "show", "narrow.csv", "--robot", "g1-tracking")
    assert "its rows have 2 numbers; 36 are needed" in wrong
    assert "No such file" in refusal("mjfleet", "clip", "show", "none.npz", *WALK[1:])
    assert "its own rate" in refusal("mjfleet", "clip", "show", *WALK, "--rate", "20")
    np.savetxt(tmp_path / "still.csv", [[0, 0, 1, 0, 0, 0, 1, *[0] * 29]] * 2, delimiter=",")
    for rate in ("1e-320", "1e300", "0", "-1"):
        still = ("mjfleet", "clip", "show", "still.csv", *WALK[1:], "--rate", rate)
        assert "frames a second; it must be from 0.1 to 100000" in refusal(*still)
    bad = refusal("mjfleet", "clip", "convert", *WALK, "--output", "walk.csv")
    assert "--output walk.csv: the file's name must end in .npz" in bad


DRONE_CONFIG = """
from mjfleet.config import EnvConfig, Task

TASKS = {"drone": Task(summary="It flies.", env_class="env:Drone", env=EnvConfig())}
"""
DRONE_ENV = """
from mjfleet.env import Env

class Drone(Env):
    model_file = "drone.xml"

    def apply(self, action):
        self.sim.ctrl[:] = action

    def observe(self):
        return {"actor": self.sim.qpos, "critic": self.sim.qpos}

    def rewards(self):
        return {"height": self.sim.qpos[:, 2]}

    def reset_worlds(self, mask):
        pass
"""
DRONE = """<mujoco><worldbody><body name="hull" pos="0 0 1">
<freejoint/><geom size="0.1"/><site name="rotor"/>
</body></worldbody><actuator><motor site="rotor" gear="0 0 1 0 0 0"/></actuator></mujoco>"""


def test_a_robot_without_joints_has_clips_too(
    output: Output, refusal: Refusal, tmp_path: Path
) -> None:
    folder = tmp_path / "tasks" / "drone"
    folder.mkdir(parents=True)
    for name, text in (("config.py", DRONE_CONFIG), ("env.py", DRONE_ENV), ("drone.xml", DRONE)):
        (folder / name).write_text(text)
    np.savetxt(tmp_path / "up.csv", [[0, 0, z, 0, 0, 0, 1] for z in (1, 2)], delimiter=",")
    show = ("mjfleet", "clip", "show", "up.csv", "--robot", "drone")
    assert "0 joints; the base goes 0 m, 1 to 2 m high" in output(*show)
    assert "--plot draws joints, and the robot has none" in refusal(*show, "--plot", "up.png")
