"""Where a task's model comes from."""

from pathlib import Path

import mujoco
import pytest
import torch

from mjfleet.config import EnvConfig
from mjfleet.env import Env
from mjfleet.errors import UserError
from mjfleet.legged.scene import make_robot
from mjfleet.sim import make_simulation

from .test_env import ReachEnv

XML = "<mujoco><worldbody><body name='{}'><geom size='0.1'/></body></worldbody></mujoco>"


def model_of(name: str) -> mujoco.MjModel:
    """The model of a task that names it."""

    class Robot(Env[EnvConfig]):
        model_file = name

        def apply(self, action: torch.Tensor) -> None: ...

    return Robot.make_model(EnvConfig())


def test_a_model_of_menagerie_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "unitree_go1").mkdir()
    for name in ("scene", "go1"):
        (tmp_path / f"unitree_go1/{name}.xml").write_text(XML.format(name))
    monkeypatch.setenv("MENAGERIE_ROOT", str(tmp_path))
    assert model_of("menagerie:unitree_go1").body(1).name == "scene"
    assert model_of("menagerie:unitree_go1/go1").body(1).name == "go1"
    for name, said in (
        ("unitree_goo1", "unitree_go1"),
        ("unitree_go1/walk", "go1, scene"),
        ("unitree_g1", f"MENAGERIE_ROOT={tmp_path}"),
        ("unitree_g1/walk", "available: .*scene"),  # The name is looked at first.
    ):
        with pytest.raises(UserError, match=said):
            model_of(f"menagerie:{name}")

    # Nowhere on this machine, and where it is fetched from is not reached.
    monkeypatch.delenv("MENAGERIE_ROOT")
    monkeypatch.setenv("MENAGERIE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("MENAGERIE_BASE_URL", (tmp_path / "nowhere").as_uri())
    with pytest.raises(UserError, match="MENAGERIE_ROOT"):
        model_of("menagerie:unitree_g1")


URDF = """
<robot name="arm">
  <link name="base"/>
  <link name="arm">
    <inertial><mass value="1"/><inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial>
    <collision><geometry>{}</geometry></collision>
  </link>
  <joint name="joint" type="revolute">
    <parent link="base"/><child link="arm"/><limit lower="-1" upper="1" effort="1" velocity="1"/>
  </joint>
</robot>
"""


def test_a_urdf_is_told_to_become_mjcf(tmp_path: Path) -> None:
    file, hint = tmp_path / "robot.urdf", "URDF has no actuators.*docs/tasks.md"
    file.write_text(URDF.format('<mesh filename="package://robot/arm.stl"/>'))
    with pytest.raises(UserError, match=f"arm.stl.*{hint}"):
        model_of(str(file))
    file.write_text(URDF.format('<box size="1 1 1"/>'))
    with pytest.raises(UserError, match=f"keyframe 'home'.*{hint}"):
        make_robot(file, "base", ("foot",))
    sim = make_simulation("native", model_of(str(file)), 1)
    with pytest.raises(UserError, match=f"no actuator to act with; a {hint}"):
        ReachEnv(EnvConfig(num_envs=1), sim, seed=1)
