"""Within a step of several physics steps, warp computes only sensors that can be read after it."""

import mujoco
import pytest
import torch

from mjfleet.sim import FIELDS, make_simulation

from .test_contract import WORLDS, build, close, load, start_apart

ARM = """
<mujoco>
  <option timestep="0.005"/>
  <worldbody>
    <geom type="plane" size="2 2 0.1"/>
    <body name="box" pos="0 0 0.0598">
      <freejoint/>
      <geom name="box" type="box" size="0.1 0.08 0.06" mass="1"/>
      <site name="center" pos="0.01 0.02 0.03"/>
    </body>
    <body pos="1 0 0.5">
      <joint axis="0 1 0"/>
      <geom type="capsule" size="0.02" fromto="0 0 0 0 0 0.2" mass="0.5" contype="0"/>
      <body pos="0 0 0.2">
        <joint name="hinge" axis="0 1 0" range="-10 10"/>
        <geom name="rod" type="capsule" size="0.02" fromto="0 0 0 0.2 0 0" mass="0.5" contype="0"/>
      </body>
    </body>
  </worldbody>
  <tendon><fixed name="rod"><joint joint="hinge" coef="2"/></fixed></tendon>
  <actuator><motor name="motor" joint="hinge" gear="3"/></actuator>
  <sensor>SENSORS</sensor>
</mujoco>
"""
LANDING = """
<mujoco>
  <asset><mesh name="ball" builtin="sphere" params="1" scale="0.1 0.1 0.1"/></asset>
  <worldbody>
    <geom type="plane" size="2 2 0.1"/>
    <body name="ball" pos="0 0 0.2">
      <freejoint/>
      <geom name="ball" size="0.1" mass="1" GEOM/>
    </body>
  </worldbody>
  REST
</mujoco>
"""
ALWAYS = """
  <framepos objtype="geom" objname="box"/><gyro site="center"/>
  <contact geom1="box" data="found dist" num="4"/>
  <jointlimitpos joint="hinge"/><jointlimitvel joint="hinge"/>
"""
MORE = {
    "positions and velocities": "",
    "forces": '<contact geom1="box" data="force" num="4"/><accelerometer site="center"/>',
    "history": '<jointpos joint="hinge" nsample="8" delay="0.02"/>',
    "energy": "<e_potential/><e_kinetic/>",
}


def arm(sensors: str) -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_string(ARM.replace("SENSORS", sensors))


@pytest.fixture(params=MORE)
def model(request: pytest.FixtureRequest) -> mujoco.MjModel:
    return arm(ALWAYS + MORE[request.param])


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)])
def test_several_physics_steps_at_once_or_one_by_one_give_the_same_bits(
    model: mujoco.MjModel, device: str
) -> None:
    once, one_by_one = (
        make_simulation("warp", model, WORLDS, device=device, deterministic=True) for _ in range(2)
    )
    for sim in (once, one_by_one):
        assert sim.sensordata.shape == (WORLDS, model.nsensordata)
        start_apart(sim)
    for _ in range(15):
        once.step(4)
        for _ in range(4):
            one_by_one.step(1)
        for name in FIELDS:
            assert torch.equal(getattr(once, name), getattr(one_by_one, name)), name
    assert once.sensordata.ne(0).any()


def test_engines_agree_on_sensors_after_steps_and_after_writes(model: mujoco.MjModel) -> None:
    sims = build("native", model), build("warp", model)
    for sim in sims:
        assert sim.sensordata.shape == (WORLDS, model.nsensordata)
        sim.qpos[:, -1] = torch.tensor([-0.3, 0.0, 0.1, 0.3])  # Two of them beyond a limit.
        sim.forward()
    for change in (
        lambda sim: sim.step(4),
        lambda sim: sim.qpos[:, 2].add_(1.0),  # Contacts and limits are left.
        lambda sim: sim.qpos[:, -1].fill_(0.0),
    ):
        for sim in sims:
            change(sim)
            sim.forward()
        assert close(sims[1].sensordata, sims[0].sensordata.cpu(), 2e-2)


@pytest.mark.parametrize(
    "sensors",
    [
        '<framelinvel objtype="geom" objname="box"/><subtreelinvel body="box"/>'
        '<gyro site="center"/><jointvel joint="hinge"/>'
        '<tendonpos tendon="rod"/><actuatorpos actuator="motor"/>',
        '<actuatorvel actuator="motor"/>',
        '<tendonvel tendon="rod"/>',
        '<contact geom1="box" data="found dist" reduce="mindist"/>',
        '<distance geom1="box" geom2="rod" cutoff="9"/>',
        '<jointlimitpos joint="hinge"/>',
        '<e_kinetic/>',
    ],
)  # fmt: skip
def test_each_sensor_alone_is_that_of_the_new_state(sensors: str) -> None:
    sims = [build(engine, arm(sensors)) for engine in ("native", "warp")]
    for sim in sims:
        assert sim.sensordata.shape[1] > 0
        start_apart(sim)
        sim.qvel[:, 6:] *= 10.0
        sim.qpos[:, -1] = 0.4  # Beyond its limit.
        sim.step(4)
    assert sims[0].sensordata.ne(0).any()
    assert close(sims[1].sensordata, sims[0].sensordata.cpu(), 5e-4)


@pytest.mark.parametrize(
    ("field", "geom", "rest"),
    [
        ("sensordata", "", '<sensor><tactile mesh="ball" geom="ball"/></sensor>'),
        ("actuator_velocity", "", '<actuator><adhesion body="ball" ctrlrange="0 1"/></actuator>'),
        ("qfrc_passive", 'adhesion="5"', ""),
    ],
)
def test_what_follows_from_contacts_is_that_of_the_new_state(
    field: str, geom: str, rest: str
) -> None:
    model = mujoco.MjModel.from_xml_string(LANDING.replace("GEOM", geom).replace("REST", rest))
    native, warp = build("native", model), build("warp", model)
    for sim in (native, warp):
        assert getattr(sim, field).eq(0).all()
        sim.step()
        sim.qpos[:, 2] = 0.095  # It touches now.
        sim.qvel[:, 2] = -0.5
        sim.forward()
    assert getattr(native, field).ne(0).any()
    assert close(getattr(warp, field), getattr(native, field).cpu(), 1e-4)


def test_sensors_may_be_read_first_after_steps() -> None:
    model = load("box")
    late, early = build("warp", model), build("warp", model)
    assert early.sensordata.shape == (WORLDS, model.nsensordata)
    for sim in (late, early):
        sim.step(40)
    assert torch.equal(late.sensordata, early.sensordata)
