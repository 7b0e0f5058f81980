"""What a legged robot's model must have is said by name; its mirror image follows from it."""

import copy
import re
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
import torch

from mjfleet.errors import UserError
from mjfleet.legged.config import VelocityConfig
from mjfleet.legged.mirror import foot_images, joint_images
from mjfleet.legged.scene import make_robot
from mjfleet.legged.velocity_env import VelocityEnv
from mjfleet.sim import make_simulation

from ..conftest import REPOSITORY

GO2 = (REPOSITORY / "tasks/go2/go2.xml").read_text()
FEET = ("FR_foot", "FL_foot", "RR_foot", "RL_foot")
FR_INERTIA = """pos="-0.0054 -0.00194 -0.000105"
                  fullinertia="0.00048 """
JOINT = 'joint name="FR_hip_joint"'
MOTOR = 'name="FR_hip" class="hip_joint"'
SWAPPED = [3, 4, 5, 0, 1, 2, 9, 10, 11, 6, 7, 8]


def make(folder: Path, *changes: tuple[str, str], feet: tuple[str, ...] = FEET) -> mujoco.MjModel:
    """Compile the Go2 with some of its text replaced."""
    text = GO2
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (folder / "robot.xml").write_text(text)
    return make_robot(folder / "robot.xml", "trunk", feet)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (('key name="home"', 'key name="stand"'), "no keyframe 'home' with a qpos of all"),
        (('body name="trunk"', 'body name="base"'), "no body 'trunk'.* `base` of"),
        (('geom name="RL_foot"', 'geom name="RL_toe"'), "'RL_foot', .* `feet` of"),
        ((f'{MOTOR} joint="FR_hip_joint"', 'name="FR_hip" joint="FL_hip_joint"'),
         "in the order of the joints"),
        ((f"<position {MOTOR}", '<motor name="FR_hip"'),
         "actuator of FR_hip_joint must be of the kind <position>"),
        (('name="FL_hip" class="hip_joint"', 'name="FL_hip" class="hip_joint" gear="3"'),
         "of FL_hip_joint must .* no gear"),
        (("0.3235  1 0 0 0", "0.3235  0.9 0.3 0 0"), "F[RL]_foot is more than 0.03 m"),
        (("1 0 0 0  -0.1 0.8 -1.5", "1 0 0 0  -6 46 -86"), "FR_foot is .* always in rad"),
        (("0 0 0.3235", "0 0 32.35"), "FR_foot is more than 0.03 m above the .* at 32.35 m"),
        (("0 0 0.3235", "0 0 0.25"), "FR_foot is more than 0.03 m in the ground"),
        (("</worldbody>", '<geom type="plane" size="1 1 1"/></worldbody>'), "must be 'floor'"),
        (("</worldbody>", '<body name="hall"><geom name="floor" type="plane" size="1 1 1"/></body>'
          "</worldbody>"), "'floor' is in the body 'hall'"),
    ],
)  # fmt: skip
def test_what_a_model_lacks_is_said(tmp_path: Path, change: tuple[str, str], said: str) -> None:
    with pytest.raises(UserError, match=said) as caught:
        make(tmp_path, change)
    assert "robot.xml" in str(caught.value)


def test_a_home_of_any_heading_and_names_of_ones_own_are_fine(tmp_path: Path) -> None:
    turned = ("0.3235  1 0 0 0", "0.3235  3 0 0 3")
    named = ("</asset>", '<material name="ground"/><texture name="sky" builtin="flat" '
             'type="2d" width="8" height="8"/></asset>')  # fmt: skip
    assert make(tmp_path, turned, named).key("home").qpos[3] == pytest.approx(0.5**0.5)


def test_on_a_plane_the_solver_starts_from_the_smooth_acceleration(tmp_path: Path) -> None:
    cold = make(tmp_path)
    assert cold.opt.disableflags == mujoco.mjtDisableBit.mjDSBL_WARMSTART
    warm = copy.copy(cold)
    warm.opt.disableflags = 0
    ends, iterations = [], []
    for model in (cold, warm):
        data = mujoco.MjData(model)
        mujoco.mj_resetDataKeyframe(model, data, 0)
        taken = []
        for step in range(200):
            data.ctrl[:] = model.key_qpos[0, 7:] + 0.2 * np.sin(0.2 * step + np.arange(12))
            mujoco.mj_step(model, data)
            taken.append(data.solver_niter[0])
        ends.append(data.qpos.copy())
        iterations.append(np.mean(taken))
    assert np.allclose(*ends, atol=1e-4)  # What the solver's tolerance leaves after one second.
    assert iterations[0] < iterations[1]


def test_joints_and_feet_find_their_mirror_images(tmp_path: Path) -> None:
    assert joint_images(make(tmp_path)) == (SWAPPED, [-1.0, 1.0, 1.0] * 4)
    # A hip that turns the other way round; its standing angle has the other sign, too.
    turned = (JOINT, f'{JOINT} axis="-1 0 0"')
    home = ("1 0 0 0  -0.1 0.8", "1 0 0 0  0.1 0.8")
    signs = [1.0] * 6 + [-1.0, 1.0, 1.0] * 2
    assert joint_images(make(tmp_path, turned, home)) == (SWAPPED, signs)
    reordered = ("RL_foot", "FR_foot", "RR_foot", "FL_foot")
    assert foot_images(make(tmp_path, feet=reordered), reordered)[0] == [2, 3, 0, 1]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (('body name="FR_calf" pos="0 0 -0.213"', 'body name="FR_calf" pos="0 0 -0.24"'),
         "FR_calf_joint has no image, a joint at 0.193 0.142 -0.24 m with the axis 0 1 0, "
         "in the frame of trunk; FL_calf_joint is at 0.193 0.142 -0.213 m"),
        # No hip is the image of another one on its side, nor its own.
        (('body name="FL_hip" pos="0.1934 0.0465', 'body name="FL_hip" pos="0.1934 -0.0465'),
         "FR_hip_joint has no image, .* 0.193 0.0465 0 m .*; FL_hip_joint is at 0.193 -0.0465 0 m"),
        ((JOINT, f'{JOINT} axis="1 0 1"'),
         "FR_hip_joint has no image, .* axis -0.707 0 -0.707, .*; FL_hip_joint .* axis 1 0 0. If "
         "this is intended"),
    ],
)  # fmt: skip
def test_a_joint_in_another_place_or_direction_has_no_image(
    tmp_path: Path, change: tuple[str, str], said: str
) -> None:
    with pytest.raises(UserError, match=said):
        joint_images(make(tmp_path, change))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("1 0 0 0  -0.1 0.8", "1 0 0 0  0.3 0.8"), "angle in the pose `home`"),
        ((JOINT, f'{JOINT} range="-1 0.5"'), "range (rad)"),
        ((MOTOR, f'{MOTOR} kp="30"'), "kp"),
        ((MOTOR, f'{MOTOR} kv="1"'), "kv"),
        ((MOTOR, f'{MOTOR} forcerange="-9 9"'), "forcerange"),
        ((MOTOR, f'{MOTOR} ctrlrange="-1 0.5"'), "ctrlrange"),
        ((JOINT, f'{JOINT} armature="0.1"'), "armature"),
        ((JOINT, f'{JOINT} damping="3"'), "damping"),
        ((JOINT, f'{JOINT} frictionloss="3"'), "frictionloss"),
        ((JOINT, f'{JOINT} stiffness="3"'), "stiffness"),
        (('mass="0.678" pos="-0.0054 -0.00194', 'mass="0.7" pos="-0.0054 -0.00194'), "mass"),
        (('<body name="FR_thigh"',
          '<body><geom size="0.01" mass="1"/></body><body name="FR_thigh"'), "mass of the body"),
        ((FR_INERTIA, FR_INERTIA.replace("0.00048", "0.0006")), "inertia"),
    ],
)  # fmt: skip
def test_numbers_that_differ_from_the_image_are_named(
    tmp_path: Path, change: tuple[str, str], said: str
) -> None:
    with pytest.raises(UserError, match=rf"the {re.escape(said)}.* of FR_hip_joint is .* FL_hip_"):
        joint_images(make(tmp_path, change))


def test_sensors_and_a_floor_of_ones_own_stay(tmp_path: Path) -> None:
    own = (
        "</worldbody>",
        '<geom name="floor" type="plane" size="1 1 1" friction="0.1"/></worldbody>'
        '<sensor><contact name="trunk_contact" body2="FR_calf" data="found"/></sensor>',
    )
    model = make(tmp_path, own)
    assert model.geom("floor").friction[0] == 0.1
    assert model.sensor("trunk_contact").refid[0] == model.body("FR_calf").id
    assert {model.sensor(i).name for i in range(model.nsensor)} == {
        model.sensor(i).name for i in range(make(tmp_path).nsensor)
    }


def test_a_robot_without_a_model_is_named() -> None:
    class Foal(VelocityEnv):
        pass

    with pytest.raises(UserError, match="Foal sets no model_file"):
        Foal.make_model(VelocityConfig())


@pytest.mark.parametrize("engine", ["native", "warp"])
def test_a_robot_that_touches_itself_in_the_air_does_not_stand(engine: Any, tmp_path: Path) -> None:
    collides = 'contype="0" conaffinity="1"', 'contype="1" conaffinity="1"'
    sim = make_simulation(engine, make(tmp_path, collides), 64)
    home = torch.as_tensor(sim.model.key("home").qpos, dtype=sim.qpos.dtype)
    sim.qpos[:] = home
    sim.qpos[:, 2] -= 0.01
    seed = torch.Generator().manual_seed(1)
    low, high = torch.as_tensor(sim.model.jnt_range[1:].T, dtype=sim.qpos.dtype)
    sim.qpos[1:, 7:] = low + (high - low) * torch.rand(63, 12, generator=seed)
    sim.qpos[1:, 2] = 3.0
    sim.step()
    names = *(f"{foot}_contact" for foot in FEET), "trunk_contact", "robot_contact"
    found = torch.cat([sim.sensor(name) for name in names], dim=1)
    assert found[0].tolist() == [1, 1, 1, 1, 0, 4]
    assert not found[1:].any()
    if engine == "native":
        data = mujoco.MjData(sim.model)
        touches = 0
        for pose in sim.qpos[1:].numpy():
            data.qpos[:] = pose
            mujoco.mj_forward(sim.model, data)
            touches += data.ncon > 0
        assert touches > 0


@pytest.mark.parametrize("engine", ["native", "warp"])
def test_contacts_are_those_of_the_last_physics_step(engine: Any, tmp_path: Path) -> None:
    sim = make_simulation(engine, make(tmp_path), 2)
    contacts = sim.sensor("robot_contact")
    sim.qpos[:] = torch.as_tensor(sim.model.key("home").qpos)
    sim.qpos[:, 2] -= 0.01
    sim.step()
    sim.qpos[:, 2] += 1.0
    sim.forward()
    assert contacts.tolist() == [[4.0], [4.0]]
    sim.step()
    assert contacts.tolist() == [[0.0], [0.0]]
