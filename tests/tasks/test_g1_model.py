"""The G1's model against the published figures that tasks/g1/README.md lists."""

import mujoco
import numpy as np
import pytest

from mjfleet.legged.mirror import joint_images
from mjfleet.legged.scene import make_robot

from ..conftest import REPOSITORY

LEG = ("hip_pitch", "hip_roll", "hip_yaw", "knee", "ankle_pitch", "ankle_roll")
WAIST = ("waist_yaw", "waist_roll", "waist_pitch")
ARM = ("shoulder_pitch", "shoulder_roll", "shoulder_yaw", "elbow")
WRIST = ("wrist_roll", "wrist_pitch", "wrist_yaw")
JOINTS = [f"left_{part}" for part in LEG] + [f"right_{part}" for part in LEG] + [*WAIST]
JOINTS += [f"{side}_{part}" for side in ("left", "right") for part in (*ARM, *WRIST)]
TORQUES = [88, 139, 88, 139, 35, 35] * 2 + [88, 35, 35] + [25, 25, 25, 25, 25, 5, 5] * 2


@pytest.fixture(scope="module")
def model() -> mujoco.MjModel:
    return make_robot(REPOSITORY / "tasks/g1/g1.xml", "pelvis", ("left_foot", "right_foot"))


def test_masses_are_the_published_ones(model: mujoco.MjModel) -> None:
    assert model.body("pelvis").subtreemass == pytest.approx(33.3411, abs=1e-4)
    masses = [model.body(f"left_{part}").mass[0] for part in (*LEG[:-1], "foot")]
    assert masses == pytest.approx([1.35, 1.52, 1.702, 1.932, 0.074, 0.608])
    # The torso with logo and head, a hand with the wrist that carries it.
    assert model.body("torso").mass == pytest.approx(6.78 + 0.001 + 1.036)
    assert model.body("left_wrist_yaw").mass == pytest.approx(0.0845765 + 0.17, abs=1e-6)


def test_actuators_drive_the_joints_in_order_within_the_published_limits(
    model: mujoco.MjModel,
) -> None:
    assert [model.actuator(i).name for i in range(model.nu)] == JOINTS
    assert [model.joint(i).name for i in range(1, model.njnt)] == [f"{n}_joint" for n in JOINTS]
    torques = np.array(TORQUES)
    assert model.actuator_forcerange == pytest.approx(np.stack((-torques, torques), axis=1))
    limits = {"left_hip_roll": (-0.5236, 2.9671), "right_hip_roll": (-2.9671, 0.5236),
              "right_knee": (-0.087267, 2.8798), "left_ankle_pitch": (-0.87267, 0.5236),
              "waist_roll": (-0.52, 0.52), "right_shoulder_roll": (-2.2515, 1.5882),
              "left_elbow": (-1.0472, 2.0944), "right_wrist_yaw": (-1.61443, 1.61443)}  # fmt: skip
    for name, limit in limits.items():
        assert model.joint(f"{name}_joint").range == pytest.approx(limit)


def test_gains_are_those_of_a_10_hz_oscillator_with_the_motors_armature(
    model: mujoco.MjModel,
) -> None:
    kp, rate = model.actuator_gainprm[:, 0], 2 * np.pi * 10
    armature = model.dof_armature[6:]
    assert kp == pytest.approx(armature * rate**2, rel=1e-4)
    assert -model.actuator_biasprm[:, 2] == pytest.approx(2 * 2 * armature * rate, rel=1e-4)


def test_left_and_right_are_mirror_images(model: mujoco.MjModel) -> None:
    index, signs = joint_images(model)
    swapped = {"left": "right", "right": "left", "waist": "waist"}
    sides = [name.split("_", 1) for name in JOINTS]
    assert index == [JOINTS.index(f"{swapped[side]}_{part}") for side, part in sides]
    assert signs == [-1.0 if part.endswith(("roll", "yaw")) else 1.0 for _, part in sides]


def test_it_stands_on_all_eight_spheres_of_its_feet(model: mujoco.MjModel) -> None:
    data = mujoco.MjData(model)
    mujoco.mj_resetDataKeyframe(model, data, model.key("home").id)
    mujoco.mj_kinematics(model, data)
    spheres = [i for i in range(model.ngeom) if "_foot_" in model.geom(i).name]
    assert len(spheres) == 8
    heights = data.geom_xpos[spheres, 2] - model.geom_size[spheres, 0]
    assert heights.min() == pytest.approx(0.0, abs=1e-4)
    assert heights.max() < 0.002
    # Positions computed from Unitree's URDF in this pose; its right shoulder is 10 um farther in.
    ankle, hand = (-0.00152, 0.11851, 0.05286), (0.09730, -0.21447, 0.73260)
    assert data.body("left_ankle_pitch").xpos == pytest.approx(ankle, abs=2e-5)
    assert data.body("right_wrist_yaw").xpos == pytest.approx(hand, abs=1e-4)
