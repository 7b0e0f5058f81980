"""MuJoCo's own actuators, as docs/tasks.md lists them, do the same on both engines."""

import re
from typing import Any

import mujoco
import pytest
import torch

from mjfleet.sim import Simulation, make_simulation

from ..conftest import REPOSITORY

PAGE = (REPOSITORY / "docs/tasks.md").read_text()
ROWS: list[str] = re.findall(
    r"\| `(<.*?/>)` \|", PAGE.split("\n### Actuators\n")[1].split("\n##")[0]
)
ENGINES = "native", "warp"
TIMESTEP, STEPS = 0.002, 250
ANGLE_TOLERANCE = 1e-5
"""Largest difference between the engines' angles, rad; they compute in float64 and float32."""


def load(element: str) -> mujoco.MjModel:
    """Return a link on a hinge without gravity, with an actuator or with a motor and a sensor."""
    placed = element.replace(" ", ' joint="elbow" ', 1)
    motor, sensor = '<motor joint="elbow"/>', ""
    if element.startswith("<joint"):
        sensor = placed
    else:
        motor = placed
    return mujoco.MjModel.from_xml_string(f"""
        <mujoco>
          <option timestep="{TIMESTEP}" gravity="0 0 0"/>
          <worldbody>
            <body>
              <joint name="elbow" axis="0 0 1" damping="0.01" armature="0.01"/>
              <geom type="capsule" size="0.02" fromto="0 0 0 0.2 0 0" mass="0.5"/>
            </body>
          </worldbody>
          <actuator>{motor}</actuator>
          <sensor>{sensor}</sensor>
        </mujoco>
    """)


def follow(engine: Any, model: mujoco.MjModel, ctrl: Any = 1.0, worlds: int = 1) -> dict[str, Any]:
    """Return what follows from a control from the first step on: fields by physics step."""
    sim = make_simulation(engine, model, worlds)
    names = ["qpos", "qvel", "actuator_force"] + ["act"] * bool(model.na)
    names += ["sensordata"] * bool(model.nsensor)
    return record(sim, names, [ctrl] * STEPS)


def record(sim: Simulation, names: list[str], controls: list[Any]) -> dict[str, Any]:
    rows: dict[str, list[torch.Tensor]] = {name: [] for name in names}
    for name in names:
        getattr(sim, name)  # What is read first after a step is not that step's.
    for ctrl in controls:
        sim.ctrl[:] = torch.as_tensor(ctrl).to(sim.ctrl)
        sim.step()
        for name in names:
            rows[name].append(getattr(sim, name)[:, 0].double().clone())
    return {name: torch.stack(row) for name, row in rows.items()}


def row(start: str) -> mujoco.MjModel:
    """Return the model of the row of the table that has a text."""
    (element,) = [row for row in ROWS if start in row]
    return load(element)


@pytest.mark.parametrize("element", ROWS)
def test_both_engines_answer_a_step_alike(element: str) -> None:
    native, warp = (follow(engine, load(element)) for engine in ENGINES)
    assert native["qpos"].abs().max() > 0.2
    for name, values in native.items():
        limit = ANGLE_TOLERANCE * (1 if name == "qpos" else 100)
        assert (values - warp[name]).abs().max() < limit, name


def test_the_table_has_what_mujoco_has() -> None:
    elements = {element.split()[0] for element in ROWS}
    assert elements == {"<position", "<general", "<dcmotor", "<jointpos"}


def test_a_damping_ratio_of_1_does_not_overshoot() -> None:
    angles = follow("native", row("dampratio"))["qpos"]
    assert 0.99 < float(angles[-1]) < float(angles.max()) + 1e-6 < 1.001


@pytest.mark.parametrize("start", ["timeconst", "filterexact"])
def test_an_activation_lags_by_its_time_constant(start: str) -> None:
    act = follow("native", row(start))["act"][:, 0]
    assert float(act[round(0.05 / TIMESTEP) - 1]) == pytest.approx(1 - 2.718281828**-1, abs=1e-4)


def test_the_torque_of_a_dcmotor_is_limited_by_its_speed() -> None:
    found = follow("native", row("controller"), ctrl=100.0)
    speeds = found["qvel"][:-1, 0].clamp(max=20)  # Before the step that has this force.
    limit = (3.0 * (1 - speeds / 20)).clamp(max=2.0)
    assert speeds[-1] > 15
    assert torch.allclose(found["actuator_force"][1:, 0], limit, atol=1e-3)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_delay_is_a_number_of_physics_steps_in_each_world(engine: Any) -> None:
    """A delay of whole steps would be one longer where a time is rounded up."""
    model = load('<motor nsample="4" delay="0.005"/>')
    sim = make_simulation(engine, model, 3)
    delays = sim.expand("actuator_delay")
    delays[:, 0] = torch.tensor([0.5, 1.5, 2.5]).to(delays) * TIMESTEP
    controls = [float(i) for i in range(1, 3001)]
    forces = record(sim, ["actuator_force"], controls)["actuator_force"]
    for world, steps in enumerate((1, 2, 3)):
        expected = torch.tensor([0.0] * steps + controls[:-steps]).double()
        assert torch.equal(forces[:, world], expected)
    sim.reset(torch.tensor([False, True, True]))
    forces = record(sim, ["actuator_force"], [9.0] * 4)["actuator_force"]
    assert forces[:, 0].tolist() == [3000.0, 9.0, 9.0, 9.0]
    assert forces[:, 2].tolist() == [0.0, 0.0, 0.0, 9.0]  # Nothing of the time before.
    start = int(model.actuator_historyadr[0]) + 2 + 4
    sim.reset(torch.tensor([False, True, True]))
    sim.history[:, start : start + 4] = 7.0
    forces = record(sim, ["actuator_force"], [9.0] * 4)["actuator_force"]
    assert forces[:, 2].tolist() == [7.0, 7.0, 7.0, 9.0]


def test_a_sensor_is_late_by_a_number_of_physics_steps() -> None:
    found = follow("native", row("jointpos"))
    assert torch.equal(found["sensordata"][3:], found["qpos"][:-3])
