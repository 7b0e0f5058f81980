"""One contract, every engine: what a task author may rely on."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import mujoco
import pytest
import torch

from mjfleet.errors import UserError
from mjfleet.sim import FIELDS, Simulation, make_simulation
from mjfleet.sim.buffer_use import overflow_texts
from mjfleet.sim.deferred import read
from mjfleet.sim.simulation import DERIVED_FIELDS, STATE_FIELDS

from ..conftest import REPOSITORY, TESTS
from ..env.test_env import no_host_synchronisation

MODELS = {
    "cartpole": REPOSITORY / "tasks/cartpole/cartpole.xml",
    "box": TESTS / "models/box.xml",
    "arm": TESTS / "models/arm.xml",
}
ENGINES = ["native", "warp", pytest.param("cuda", marks=pytest.mark.gpu)]
WORLDS = 4


def load(name: str) -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_path(str(MODELS[name]))


def build(engine: str, model: mujoco.MjModel, num_envs: int = WORLDS) -> Simulation:
    if engine == "native":
        return make_simulation("native", model, num_envs, num_threads=2)
    return make_simulation("warp", model, num_envs, device="cuda:0" if engine == "cuda" else "cpu")


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest) -> mujoco.MjModel:
    return load(request.param)


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return request.param


def start_apart(sim: Simulation) -> None:
    """Give every world a state and controls of its own, the same on every engine."""
    generator = torch.Generator().manual_seed(0)
    speed = torch.randn(WORLDS, sim.model.nv, generator=generator)
    sim.qvel[:] = (0.3 * speed).to(sim.qvel)
    sim.ctrl[:] = torch.rand(WORLDS, sim.model.nu, generator=generator).to(sim.ctrl)
    sim.forward()


def reference(sim: Simulation, world: int) -> mujoco.MjData:
    """MuJoCo's own data with a world's state, all its derived fields computed."""
    data = mujoco.MjData(sim.model)
    data.qpos[:] = sim.qpos[world].tolist()
    data.qvel[:] = sim.qvel[world].tolist()
    data.ctrl[:] = sim.ctrl[world].tolist()
    mujoco.mj_forward(sim.model, data)
    return data


def close(tensor: torch.Tensor, array: object, tolerance: float = 2e-4) -> bool:
    expected = torch.as_tensor(array, dtype=torch.float64)
    return torch.allclose(tensor.cpu().double(), expected, rtol=tolerance, atol=tolerance)


def test_every_field_has_mujocos_shape(engine: str, model: mujoco.MjModel) -> None:
    sim = build(engine, model)
    data = mujoco.MjData(model)
    for name in FIELDS:
        shape = getattr(getattr(data, name), "shape", ())
        assert tuple(getattr(sim, name).shape) == (WORLDS, *shape), name
        assert getattr(sim, name).device == sim.device


@pytest.mark.parametrize("other", ENGINES[1:])
@pytest.mark.parametrize(("steps", "tolerance"), [(1, 1e-5), (10, 1e-4)])
def test_engines_agree_on_a_trajectory(
    other: str, model: mujoco.MjModel, steps: int, tolerance: float
) -> None:
    native, sim = build("native", model), build(other, model)
    for each in (native, sim):
        start_apart(each)
        each.step(steps)
    error = (native.qpos - sim.qpos.cpu()).abs().max()
    assert error <= tolerance * native.qpos.abs().max()


def test_native_result_does_not_depend_on_threads(model: mujoco.MjModel) -> None:
    one = make_simulation("native", model, WORLDS, num_threads=1)
    two = make_simulation("native", model, WORLDS, num_threads=2)
    for sim in (one, two):
        start_apart(sim)
        sim.step(50)
    assert torch.equal(one.qpos, two.qpos)


@pytest.mark.parametrize("read_before", [True, False])
def test_derived_fields_are_those_of_the_new_state_after_step(
    engine: str, model: mujoco.MjModel, read_before: bool
) -> None:
    sim = build(engine, model)
    if read_before:
        assert sim.xpos.shape[0] == WORLDS
    start_apart(sim)
    sim.step(3)
    for world in range(WORLDS):
        data = reference(sim, world)
        for name in set(DERIVED_FIELDS) - {"sensordata"}:
            assert close(getattr(sim, name)[world], getattr(data, name)), name


def test_forward_after_a_write(engine: str, model: mujoco.MjModel) -> None:
    sim = build(engine, model)
    before = sim.xpos.clone()
    sim.qpos[1, 0] += 0.25
    mask = torch.tensor([False, True, False, False], device=sim.device)
    sim.forward(mask)
    assert close(sim.xpos[1], reference(sim, 1).xpos)
    assert not torch.equal(sim.xpos[1], before[1])
    assert torch.allclose(sim.xpos[0], before[0])


def test_masked_reset_touches_only_the_masked_worlds(engine: str, model: mujoco.MjModel) -> None:
    sim = build(engine, model)
    fresh = {name: getattr(sim, name).clone() for name in STATE_FIELDS}
    start_apart(sim)
    sim.step(5)
    before = {name: getattr(sim, name).clone() for name in STATE_FIELDS}
    mask = torch.tensor([False, True, False, True], device=sim.device)
    sim.reset(mask)
    for name in STATE_FIELDS:
        assert torch.equal(getattr(sim, name)[mask], fresh[name][mask]), name
        assert torch.equal(getattr(sim, name)[~mask], before[name][~mask]), name
    sim.forward(mask)
    sim.step(5)
    again = build(engine, model)
    again.step(5)
    assert torch.allclose(sim.qpos[mask], again.qpos[mask], rtol=1e-6, atol=1e-6)


def test_acceleration_sensors_are_those_of_the_last_physics_step(engine: str) -> None:
    model = load("box")
    sim = build(engine, model)
    touch, accelerometer, qacc = sim.sensor("touch"), sim.sensor("accelerometer"), sim.qacc
    sim.step(100)
    data = mujoco.MjData(model)
    for _ in range(100):
        mujoco.mj_step(model, data)
    assert data.sensor("touch").data[0] > 1.0
    assert close(touch[0], data.sensor("touch").data, 1e-2)
    assert close(accelerometer[0], data.sensor("accelerometer").data, 1e-2)
    mask = torch.tensor([True, False, False, False], device=sim.device)
    kept = touch[1:].clone()
    sim.reset(mask)
    sim.forward(mask)
    assert touch[0].abs().max() == 0
    assert qacc[0].abs().max() == 0
    assert torch.equal(touch[1:], kept)
    assert close(sim.sensor("position")[0], [0.0, 0.0, 0.1])


def test_accelerations_may_be_read_first_after_a_step_or_a_reset(engine: str) -> None:
    sim, read = build(engine, load("box")), build(engine, load("box"))
    assert read.qacc.abs().max() == read.sensor("touch").abs().max() == 0
    for each in (sim, read):
        each.step(100)
    assert torch.allclose(sim.sensor("touch"), read.sensor("touch"), rtol=0.02)
    assert torch.allclose(sim.qfrc_constraint, read.qfrc_constraint, rtol=0.02, atol=0.05)
    sim.step(10)
    read.step(10)
    assert torch.equal(sim.qpos, read.qpos), "reading must not change the physics"
    arm = build(engine, load("arm"))
    arm.ctrl[:] = 1.0
    arm.step(50)
    arm.reset(torch.ones(WORLDS, dtype=torch.bool, device=arm.device))
    arm.forward()
    assert arm.actuator_force.abs().max() == 0


def test_a_field_first_read_in_inference_mode_can_be_written_outside(engine: str) -> None:
    sim = build(engine, load("arm"))
    with torch.inference_mode():
        sim.ctrl[:] = 1.0
    sim.ctrl[:] = 2.0
    assert sim.ctrl.min() == 2.0


def test_acceleration_sensors_of_one_world_never_reach_another(engine: str) -> None:
    sim = build(engine, load("arm"))
    torque = sim.sensor("shoulder_torque")
    sim.ctrl[:, 0] = torch.tensor([0.0, 0.5, 1.0, 1.5]).to(sim.ctrl)
    sim.step()
    before = torque.clone()
    assert torch.unique(before).numel() == WORLDS
    sim.qpos[:, 1] = 0.1
    sim.forward()
    assert torch.equal(torque, before)


def test_wrong_names_say_which_exist(engine: str) -> None:
    sim = build(engine, load("box"))
    with pytest.raises(ValueError, match="gyro, accelerometer, touch"):
        sim.sensor("imu")
    with pytest.raises(AttributeError, match=r"did you mean 'qpos'.*qvel"):
        sim.qpso  # noqa: B018


def test_a_field_cannot_be_replaced(engine: str) -> None:
    sim = build(engine, load("arm"))
    with pytest.raises(AttributeError, match="in place"):
        sim.ctrl = torch.zeros(WORLDS, 2)
    with pytest.raises(AttributeError, match="no field 'ctrls'; did you mean 'ctrl'"):
        sim.ctrls = torch.zeros(WORLDS, 2)
    sim.ctrl += 1.0
    assert sim.ctrl.min() == 1.0


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)])
def test_overflowing_contact_buffers_are_reported_once(device: str) -> None:
    sim = make_simulation("warp", load("box"), WORLDS, device=device, nconmax=1, njmax=64)
    sim.step(40)
    worlds = sim.warnings()
    assert worlds
    assert all(0 < number <= WORLDS for number in worlds.values())
    assert sim.warnings() == {}
    sim.step()
    assert set(sim.warnings()) <= set(worlds)
    assert sim.warnings() == {}


def test_an_overflow_is_remembered_over_a_reset() -> None:
    sim = make_simulation("warp", load("box"), WORLDS, nconmax=1, njmax=64)
    sim.step(40)
    sim.reset(torch.ones(WORLDS, dtype=torch.bool))
    assert sim.warnings()


def test_warnings_wait_for_the_device_only_when_they_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sim = make_simulation("warp", load("box"), WORLDS, nconmax=1, njmax=64)
    sim.step(40)
    with no_host_synchronisation(monkeypatch):
        unread = sim.deferred_warnings()
    (found,) = read(unread)
    assert found


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)])
def test_buffers_that_overflow_are_enlarged_and_all_else_stays(device: str) -> None:
    sims = [
        make_simulation("warp", load("box"), WORLDS, device=device, nconmax=contacts, njmax=rows)
        for contacts, rows in ((1, 4), (32, 64))
    ]
    small, ample = sims
    for sim in sims:
        assert sim.sensor("position").shape == (WORLDS, 3)
        start_apart(sim)
    small.step(20)
    before = {name: value.clone() for name, value in small.state().items() if name != "room"}
    places = [value.data_ptr() for value in small.state().values()][:-1]
    found, use = small.warnings(), small.buffer_use
    assert {"NEFC", "NARROWPHASE"} <= found.keys()
    assert use is not None
    assert (use.nconmax, use.njmax) == (1, 4)
    assert use.needed("nconmax") == 2
    # The worlds share room for one contact each: on a GPU, chance decides which has how many.
    assert use.needed("njmax") in ((16,) if device == "cpu" else (8, 12, 16))
    after = small.state()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert [value.data_ptr() for value in after.values()][:-1] == places
    for sim in sims:
        sim.restore(before | {"room": torch.tensor((32, 64))})
    for sim in sims:
        sim.step(5)
    assert small.warnings() == ample.warnings() == {}
    assert torch.equal(small.qpos, ample.qpos)
    assert torch.equal(small.sensordata, ample.sensordata)


@contextmanager
def no_more_memory() -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**24, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


def test_buffers_for_which_there_is_no_memory_stay_as_they_were() -> None:
    sim = make_simulation("warp", load("box"), WORLDS, nconmax=8, njmax=4)
    sim.step(40)
    before = {name: value.clone() for name, value in sim.state().items()}
    places = [value.data_ptr() for value in sim.state().values()][:-1]
    unread = sim.deferred_warnings()
    *counts, _, world, contacts = unread.numbers.tolist()
    needs = 2**24
    with no_more_memory():
        found = unread.decode([*counts, needs, world, contacts])
        with pytest.raises(UserError, match=rf"--env.njmax {needs}; use fewer --env.num-envs"):
            sim.restore(before | {"room": torch.tensor((8, needs))})
    (text,) = overflow_texts([sim.buffer_use], [found]).values()
    for words in ("--env.njmax stays 4", f"no memory for {needs}", f"{needs} would have sufficed"):
        assert words in text
    assert all(torch.equal(sim.state()[name], value) for name, value in before.items())
    assert [value.data_ptr() for value in sim.state().values()][:-1] == places
    sim.step()
    assert sim.warnings().keys() == found.keys(), "they are reported again"


def test_a_restored_state_brings_its_room_along() -> None:
    small, ample = (make_simulation("warp", load("box"), WORLDS, nconmax=n) for n in (1, 32))
    ample.step(20)
    small.restore({name: value.clone() for name, value in ample.state().items()})
    for sim in (small, ample):
        sim.step(20)
    assert small.warnings() == {}
    assert torch.equal(small.qpos, ample.qpos)
    room = small.state()["room"]
    small.restore(make_simulation("warp", load("box"), WORLDS, nconmax=1).state())
    assert torch.equal(small.state()["room"], room), "room is never taken away"


BALLS = """<mujoco><worldbody><geom type="plane" size="2 2 1"/>
  <body pos="0 0 0.05"><freejoint/>{geoms}</body>{bodies}</worldbody></mujoco>"""
BALL = '<geom size="0.1" pos="{} 0 0"/>'


@pytest.mark.parametrize(
    ("balls", "bodies", "off"),
    [
        (4, "", mujoco.mjtDisableBit.mjDSBL_ISLAND | mujoco.mjtDisableBit.mjDSBL_MIDPHASE),
        (5, "", mujoco.mjtDisableBit.mjDSBL_ISLAND),
        (4, '<body pos="0 0 1"><freejoint/><geom size="0.1"/></body>',
         mujoco.mjtDisableBit.mjDSBL_MIDPHASE),
    ],
)  # fmt: skip
def test_what_native_leaves_out_changes_no_bit(balls: int, bodies: str, off: int) -> None:
    geoms = "".join(BALL.format(0.15 * i) for i in range(balls))
    model = mujoco.MjModel.from_xml_string(BALLS.format(geoms=geoms, bodies=bodies))
    sim, data = build("native", model), mujoco.MjData(model)
    assert (sim.model.opt.disableflags, model.opt.disableflags) == (int(off), 0)
    sim.qvel[:, :3] = torch.tensor([1.0, 0.5, -2.0])
    data.qvel[:3] = 1.0, 0.5, -2.0
    sim.step(100)
    mujoco.mj_step(model, data, 100)
    assert data.ncon
    assert sim.qpos[0].tolist() == data.qpos.tolist()


MIXED = """<body pos="0 0 0.1"><freejoint/>
  <geom type="box" size="0.1 0.1 0.1"/><geom size="0.1" pos="0.2 0 0"/>
  <body pos="0.1 0 0.15"><joint axis="0 1 0"/><geom size="0.1"/></body></body>"""
CLOTH = """<geom size="0.1"/><flexcomp name="cloth" type="grid" dim="2" count="6 6 1" pos="0 0 0.15"
  spacing="0.05 0.05 0.05" mass="1" radius="0.01"><edge equality="true"/></flexcomp>"""


@pytest.mark.parametrize("bodies", [MIXED, CLOTH])
def test_native_keeps_the_midphase_where_it_sorts_contacts(bodies: str) -> None:
    model = mujoco.MjModel.from_xml_string(f"""
        <mujoco>
          <option><flag filterparent="disable"/></option>
          <worldbody><geom type="plane" size="2 2 1"/>{bodies}</worldbody>
        </mujoco>
    """)
    sim, data = build("native", model), mujoco.MjData(model)
    sim.step(100)
    mujoco.mj_step(model, data, 100)
    assert sim.qpos[0].tolist() == data.qpos.tolist()


def test_warp_takes_flags_of_parts_that_it_lacks() -> None:
    model = load("box")
    plain = build("warp", model)
    model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_MIDPHASE)
    model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_AUTORESET)
    sim = build("warp", model)
    for each in (plain, sim):
        start_apart(each)
        each.step(20)
    assert torch.equal(sim.qpos, plain.qpos)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)])
def test_what_warp_lacks_is_named_with_the_engine_that_has_it(device: str) -> None:
    model = load("arm")
    model.opt.enableflags |= int(mujoco.mjtEnableBit.mjENBL_FWDINV)
    build("native", model).step()
    flags = ("--gpu-ids None " if device != "cpu" else "") + "--engine native"
    with pytest.raises(UserError, match=f"^[^\n]*FWDINV[^\n]*: {flags}$"):
        make_simulation("warp", model, WORLDS, device=device)


@pytest.mark.parametrize("reset", [False, True])
def test_an_unstable_world_on_native_is_reported_once(
    reset: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sim = build("native", load("cartpole"))
    sim.qpos[2, 0] = torch.nan
    sim.step()
    if reset:
        sim.reset(torch.ones(WORLDS, dtype=torch.bool))
    assert sim.warnings() == {"BADQPOS": 1}
    assert sim.warnings() == {}
    sim.qpos[1, 0] = sim.qpos[2, 0] = torch.nan
    sim.step()
    assert sim.warnings() == {"BADQPOS": 2}
    assert not list(tmp_path.iterdir()), "MuJoCo's log file ends in no one's folder"


MASSES = (0.5, 1.0, 2.0, 4.0)


def test_worlds_may_differ_in_what_the_model_says(engine: str) -> None:
    model = load("box")
    sim = build(engine, model)
    assert sim.sensor("position").shape == (WORLDS, 3)  # What was captured before is no obstacle.
    masses = sim.expand("body_mass")
    factors = torch.tensor(MASSES).to(masses)
    masses[:, 1] = factors
    sim.expand("body_inertia")[:, 1] *= factors.unsqueeze(1)
    sim.expand("geom_friction")[:, :, 0] = factors.unsqueeze(1)
    sim.set_const()
    sim.xfrc_applied[:, 1, :3] = torch.tensor([3.0, 0.0, 2.0])
    sim.step(60)
    for world, factor in enumerate(MASSES):
        own = load("box")
        own.body_mass[1] = factor
        own.body_inertia[1] *= factor
        own.geom_friction[:, 0] = factor
        data = mujoco.MjData(own)
        mujoco.mj_setConst(own, data)
        data.xfrc_applied[1, :3] = 3.0, 0.0, 2.0
        mujoco.mj_step(own, data, 60)
        assert close(sim.qpos[world, :3], data.qpos[:3], 1e-3), world


def test_balls_land_on_what_has_grown(engine: str) -> None:
    model = mujoco.MjModel.from_xml_string(
        """
        <mujoco><option timestep="0.005"/><worldbody>
          <geom type="plane" size="5 5 0.1"/>
          <geom type="box" pos="0 0 0.5" size="0.05 0.05 0.02"/>
          <body pos="2 0 0.5"><joint axis="0 0 1" damping="1"/>
            <geom type="box" size="0.05 0.05 0.02" mass="5"/></body>
          <body pos="0.15 0 0.62"><freejoint/><geom type="sphere" size="0.05"/></body>
          <body pos="2.15 0 0.62"><freejoint/><geom type="sphere" size="0.05"/></body>
        </worldbody></mujoco>
        """
    )
    sim = build(engine, model)
    sim.expand("geom_size")[2:, 1:3, :2] = 0.3
    sim.set_const()
    sim.step(150)
    heights = sim.qpos[:, [3, 10]]
    assert close(heights[:2], 0.05 * torch.ones(2, 2), 0.01)
    assert close(heights[2:], 0.57 * torch.ones(2, 2), 0.02)


def test_contacts_of_bodies_that_only_turn_or_slide_weigh_as_compiled(engine: str) -> None:
    model = mujoco.MjModel.from_xml_string(
        """
        <mujoco><worldbody>
          <body><joint/><joint axis="1 0 0"/><geom type="box" size="0.2 0.2 0.01"/></body>
          <body pos="1 0 0"><joint type="slide"/><geom size="0.1"/></body>
          <body pos="2 0 0"><freejoint/><inertial pos="0 0 0" mass="1" diaginertia="1 1 1"/></body>
        </worldbody></mujoco>
        """
    )
    sim = build(engine, model)
    sim.set_const()
    weights = sim.expand("body_invweight0")
    assert close(weights, torch.from_numpy(model.body_invweight0).expand_as(weights))


def test_springs_that_yield_are_kept_and_reset(engine: str) -> None:
    model = mujoco.MjModel.from_xml_string("""
        <mujoco>
          <worldbody>
            <body>
              <joint axis="0 1 0" stiffness="1" springyield="0.05"/>
              <geom size="0.1" pos="0.2 0 0"/>
            </body>
          </worldbody>
        </mujoco>
    """)
    sim, fresh = build(engine, model), build(engine, model)
    sim.step(60)
    put_back = sim.keep()
    sim.step(40)
    first = sim.qpos.clone()
    put_back()
    sim.step(40)
    assert torch.equal(sim.qpos, first)
    sim.reset(torch.ones(WORLDS, dtype=torch.bool, device=sim.device))
    for each in (sim, fresh):
        each.step(60)
    assert torch.equal(sim.qpos, fresh.qpos)


def test_only_arrays_of_the_model_can_differ(engine: str) -> None:
    sim = build(engine, load("box"))
    for name in ("geom_frction", "nq", "opt.gravty", "opt.timestep"):
        with pytest.raises(ValueError, match=name):
            sim.expand(name)


def test_no_clock_is_read_in_steps_of_the_native_engine() -> None:
    model = load("box")
    build("native", model)
    data = mujoco.MjData(model)
    mujoco.mj_step(model, data, 3)
    step = data.timer[mujoco.mjtTimer.mjTIMER_STEP]
    assert (step.number, step.duration) == (3, 0.0)
