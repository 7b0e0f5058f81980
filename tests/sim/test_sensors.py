"""Within a step of several physics steps, warp computes only sensors that can be read after it."""

import mujoco
import pytest
import torch

from mjfleet.sim import FIELDS, make_simulation

from .test_contract import WORLDS, build, close, load, start_apart

BOX = """
<mujoco>
  <option timestep="0.005"/>
  <worldbody>
    <geom type="plane" size="2 2 0.1"/>
    <body pos="0 0 0.1">
      <freejoint/>
      <geom name="box" type="box" size="0.1 0.08 0.06" mass="1"/>
      <site name="center"/>
    </body>
    <body pos="1 0 0.5">
      <joint name="hinge" axis="0 1 0" range="-10 10"/>
      <geom type="capsule" size="0.02" fromto="0 0 0 0.2 0 0" mass="0.5" contype="0"/>
    </body>
  </worldbody>
  <sensor>
    <framepos objtype="geom" objname="box"/>
    <gyro site="center"/>
    <contact geom1="box" data="found dist" num="4"/>
    <jointlimitpos joint="hinge"/>
    <jointlimitvel joint="hinge"/>
    SENSOR
  </sensor>
</mujoco>
"""
SENSORS = {
    "positions and velocities": "",
    "forces": '<contact geom1="box" data="force" num="4"/><accelerometer site="center"/>',
    "history": '<jointpos joint="hinge" nsample="8" delay="0.02"/>',
    "energy": "<e_potential/><e_kinetic/>",
}


@pytest.fixture(params=SENSORS)
def model(request: pytest.FixtureRequest) -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_string(BOX.replace("SENSOR", SENSORS[request.param]))


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


def test_sensors_may_be_read_first_after_steps() -> None:
    model = load("box")
    late, early = build("warp", model), build("warp", model)
    assert early.sensordata.shape == (WORLDS, model.nsensordata)
    for sim in (late, early):
        sim.step(40)
    assert torch.equal(late.sensordata, early.sensordata)
