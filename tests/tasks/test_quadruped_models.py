"""Models of quadrupeds against the published figures that the README.md of each task lists."""

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
    """Of the trunk in each keyframe, computed from Unitree's URDF, whose feet differ by 3 mm."""
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


def test_masses_are_the_published_ones(model: mujoco.MjModel, figures: Figures) -> None:
    assert model.body("trunk").subtreemass == pytest.approx(figures.mass, rel=1e-3)
    masses = [model.body(f"{leg}_{part}").mass[0] for leg in LEGS for part in PARTS]
    assert masses == pytest.approx(figures.masses * 4)


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
    assert model.actuator_gainprm[:, 0] == pytest.approx(35)
    assert -model.actuator_biasprm[:, 2] == pytest.approx(0.5)
    ranges = [*figures.front * 2, *figures.rear * 2]
    assert model.jnt_range[1:] == pytest.approx(np.array(ranges))


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
