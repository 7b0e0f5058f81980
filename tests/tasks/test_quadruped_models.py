"""Models of quadrupeds against the published figures that the README.md of each task lists."""

import itertools
import math
from dataclasses import dataclass

import mujoco
import numpy as np
import pytest

from mjfleet.legged.scene import make_robot

from ..conftest import REPOSITORY

LEGS = ("FR", "FL", "RR", "RL")
PARTS = ("hip", "thigh", "calf")
JOINTS = [f"{leg}_{part}" for leg in LEGS for part in PARTS]
FEET = tuple(f"{leg}_foot" for leg in LEGS)


@dataclass(frozen=True)
class Figures:
    """What is published of a robot: kg, m, rad and N·m."""

    name: str
    mass: float
    masses: tuple[float, float, float]
    foot_radius: float
    heights: dict[str, float]
    """Height of the trunk by keyframe, computed from Unitree's URDF, whose feet differ by 3 mm."""
    hip: float
    """Length of the hip; thigh and calf have 0.213 m."""
    reach: tuple[float, float]
    """Distances of a foot from its hip joint."""
    torques: tuple[float, float, float]
    front: tuple[tuple[float, float], ...]
    """Ranges of the joints of a front leg."""
    rear: tuple[tuple[float, float], ...]


GO1_RANGES = ((-0.863, 0.863), (-0.686, 4.501), (-2.818, -0.888))
GO1 = Figures(
    name="go1",
    mass=12.743,
    masses=(0.68, 1.009, 0.195862),
    foot_radius=0.023,
    heights={"home": 0.3218, "crouch": 0.2915},
    hip=0.08,
    reach=(0.1054, 0.3929),
    torques=(23.7, 23.7, 35.55),
    front=GO1_RANGES,
    rear=GO1_RANGES,
)
GO2 = Figures(
    name="go2",
    mass=15.019,
    masses=(0.678, 1.152, 0.194),
    foot_radius=0.022,
    heights={"home": 0.3222},
    hip=0.0955,
    reach=(0.1303, 0.4007),
    torques=(23.7, 23.7, 45.43),
    front=((-1.0472, 1.0472), (-1.5708, 3.4907), (-2.7227, -0.83776)),
    rear=((-1.0472, 1.0472), (-0.5236, 4.5379), (-2.7227, -0.83776)),
)


@pytest.fixture(scope="module", params=[GO1, GO2], ids=lambda figures: figures.name)
def figures(request: pytest.FixtureRequest) -> Figures:
    return request.param


@pytest.fixture(scope="module")
def model(figures: Figures) -> mujoco.MjModel:
    return make_robot(REPOSITORY / f"tasks/{figures.name}/{figures.name}.xml", "trunk", FEET)


def start(model: mujoco.MjModel, key: str) -> mujoco.MjData:
    """Data in a keyframe, with everything computed."""
    data = mujoco.MjData(model)
    mujoco.mj_resetDataKeyframe(model, data, model.key(key).id)
    mujoco.mj_forward(model, data)
    return data


def touching(model: mujoco.MjModel, data: mujoco.MjData) -> set[str]:
    """The robot's geoms that touch the floor; fails where two geoms of the robot touch."""
    floor = model.geom("floor").id
    pairs = data.contact.geom
    assert (pairs == floor).any(axis=1).all()
    return {model.geom(geom).name for geom in pairs.ravel() if geom != floor}


def lifting_force(model: mujoco.MjModel, data: mujoco.MjData) -> float:
    """Return the force of all contacts on the robot, upwards, N."""
    force, total = np.zeros(6), 0.0
    for i in range(data.ncon):
        mujoco.mj_contactForce(model, data, i, force)
        total += force[0]  # Along the normal, which is up on the floor.
    return total


def reached(model: mujoco.MjModel, leg: str) -> np.ndarray:
    """Where a foot may be, relative to its hip joint, on a grid over the joints' ranges, m."""
    data = mujoco.MjData(model)
    joints = [model.joint(f"{leg}_{part}_joint") for part in PARTS]
    grids = [np.linspace(joint.range[0], joint.range[1], 9) for joint in joints]
    places = []
    for angles in itertools.product(*grids):
        for joint, angle in zip(joints, angles, strict=True):
            data.qpos[joint.qposadr] = angle
        mujoco.mj_kinematics(model, data)
        calf = data.body(f"{leg}_calf")
        foot = calf.xpos + calf.xmat.reshape(3, 3) @ np.array([0.0, 0.0, -0.213])
        places.append(foot - data.joint(f"{leg}_hip_joint").xanchor)
    return np.array(places)


def test_masses_are_the_published_ones(model: mujoco.MjModel, figures: Figures) -> None:
    assert model.body("trunk").subtreemass == pytest.approx(figures.mass, rel=1e-3)
    masses = [model.body(f"{leg}_{part}").mass[0] for leg in LEGS for part in PARTS]
    assert masses == pytest.approx(figures.masses * 4)


def test_left_and_right_are_mirror_images(model: mujoco.MjModel) -> None:
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    mirror = np.array([1.0, -1.0, 1.0])
    for ends, part in itertools.product(("F", "R"), (*PARTS, "foot")):
        kind = data.geom if part == "foot" else data.body
        right, left = (kind(f"{ends}{side}_{part}").xpos for side in "RL")
        assert right == pytest.approx(mirror * left)
    # The calf's centre of mass is published on one and the same side for both.
    for ends, part in itertools.product(("F", "R"), ("hip", "thigh")):
        right, left = (data.body(f"{ends}{side}_{part}").xipos for side in "RL")
        assert right == pytest.approx(mirror * left)


def test_a_foot_reaches_as_far_as_the_published_lengths_and_limits_allow(
    model: mujoco.MjModel, figures: Figures
) -> None:
    distance = np.linalg.norm(reached(model, "FL"), axis=1)
    knees = figures.front[2]
    links = [math.sqrt(2 * 0.213**2 * (1 + math.cos(knee))) for knee in knees]
    ends = [math.hypot(figures.hip, length) for length in links]
    assert (distance.min(), distance.max()) == pytest.approx(ends, abs=1e-4)
    assert ends == pytest.approx(figures.reach, abs=1e-4)


def test_the_lowest_foot_just_touches_the_ground(model: mujoco.MjModel, figures: Figures) -> None:
    for key, height in figures.heights.items():
        data = start(model, key)
        feet = np.array([data.geom(foot).xpos[2] for foot in FEET])
        assert feet.min() == pytest.approx(figures.foot_radius, abs=1e-4)
        assert data.qpos[2] == pytest.approx(height, abs=0.004)
        assert data.ctrl == pytest.approx(data.qpos[7:])


def test_actuators_drive_the_joints_in_order_within_the_published_limits(
    model: mujoco.MjModel, figures: Figures
) -> None:
    assert [model.actuator(i).name for i in range(model.nu)] == JOINTS
    assert [model.joint(i).name for i in range(1, model.njnt)] == [f"{n}_joint" for n in JOINTS]
    assert model.actuator_trnid[:, 0].tolist() == list(range(1, model.njnt))
    torque = np.array(figures.torques * 4)
    assert model.actuator_forcerange == pytest.approx(np.stack((-torque, torque), axis=1))
    ranges = [*figures.front * 2, *figures.rear * 2]
    assert model.jnt_range[1:] == pytest.approx(np.array(ranges))


def test_actuators_are_a_clipped_pd_controller(model: mujoco.MjModel) -> None:
    data = start(model, "home")
    rng = np.random.default_rng(0)
    data.qvel[6:] = rng.normal(size=12)
    data.ctrl[:] = data.qpos[7:] + rng.normal(0, 0.7, size=12)
    mujoco.mj_forward(model, data)
    wanted = 35 * (data.ctrl - data.qpos[7:]) - 0.5 * data.qvel[6:]
    limit = model.actuator_forcerange[:, 1]
    assert data.actuator_force == pytest.approx(wanted.clip(-limit, limit))
    assert (np.abs(wanted) > limit).any()


def test_it_stands(model: mujoco.MjModel) -> None:
    data = start(model, "home")
    heights, forces = [], []
    while data.time < 2.0:
        mujoco.mj_step(model, data)
        heights.append(data.qpos[2])
        forces.append(lifting_force(model, data))
    second = slice(200, None)
    assert np.ptp(heights[second]) < 0.006
    assert heights[-1] == pytest.approx(0.295, abs=0.015)
    assert np.linalg.norm(data.qpos[:2]) < 0.03
    assert data.sensor("base_up").data[2] > 0.999
    assert touching(model, data) == {f"{leg}_foot" for leg in LEGS}
    weight = 9.81 * model.body("trunk").subtreemass[0]
    assert np.mean(forces[second]) == pytest.approx(weight, rel=0.01)


def test_only_the_ground_is_touched_and_sensors_say_by_what(model: mujoco.MjModel) -> None:
    data = mujoco.MjData(model)
    rng = np.random.default_rng(1)
    seen = set()
    low, high = model.jnt_range[1:].T
    for _ in range(200):
        data.qpos[:3] = 0, 0, rng.uniform(0.0, 0.3)
        data.qpos[3:7] = rng.normal(size=4)
        data.qpos[7:] = rng.uniform(low, high)
        mujoco.mj_forward(model, data)
        down = touching(model, data)
        seen |= down
        for leg in LEGS:
            assert (data.sensor(f"{leg}_foot_contact").data[0] > 0) == (f"{leg}_foot" in down)
        assert data.sensor("robot_contact").data[0] == data.ncon
        assert (data.sensor("trunk_contact").data[0] > 0) == bool(down & {"trunk", "head"})
    assert len(seen) == 2 + 4 * 4


def test_sensors_measure_in_the_frames_that_the_readme_says(model: mujoco.MjModel) -> None:
    data = start(model, "home")
    rng = np.random.default_rng(2)
    data.qpos[3:7] = rng.normal(size=4)
    data.qvel[:] = rng.normal(size=model.nv)
    mujoco.mj_forward(model, data)
    rotation = data.body("trunk").xmat.reshape(3, 3)
    value = {model.sensor(i).name: data.sensor(i).data for i in range(model.nsensor)}
    assert value["base_up"] == pytest.approx(rotation.T @ [0, 0, 1])
    assert value["imu_gyro"] == pytest.approx(data.qvel[3:6])
    assert value["base_linvel"] == pytest.approx(rotation.T @ data.qvel[:3])
