"""Contacts by name, on both engines: none is missed, no earlier episode's is seen."""

from typing import Any

import mujoco
import pytest
import torch

from mjfleet.config import EnvConfig
from mjfleet.errors import UserError
from mjfleet.parts import Contacts, add_contacts

from ..env.test_env import PlainEnv, no_host_synchronisation
from ..sim.test_contract import ENGINES
from ..sim.test_contract import build as simulate

DECIMATION, TIMESTEP, HEIGHT, RADIUS = 10, 0.002, 0.164, 0.05
BALLS = f"""
<mujoco>
  <option timestep="{TIMESTEP}"/>
  <worldbody>
    <geom name="floor" type="plane" size="9 9 0.1"/>
    <body name="bouncing" pos="0 0 {HEIGHT}">
      <joint name="bouncing" type="slide" axis="0 0 1"/>
      <geom name="elastic" size="{RADIUS}" mass="1" pos="0 0 0.05" solref="-100000 0"/>
    </body>
    <body name="lying" pos="1 0 0.0498">
      <joint type="slide" axis="0 0 1"/>
      <geom name="soft" size="{RADIUS}" mass="2"/>
      <body name="hat" pos="0 0 0.1"><geom name="hat" size="0.02" mass="1"/></body>
    </body>
  </worldbody>
  <actuator><motor joint="bouncing" gear="100"/></actuator>
</mujoco>
"""
"""One ball bounces from the floor within a control step, with all its energy; the other lies."""
LATE = 40_000.0
"""Seconds after which float32 holds times in steps of 3.9 ms, almost two physics steps."""
OPTIONS: dict[str, Any] = {"names": ["elastic", "soft"], "samples": DECIMATION}


class BallsEnv(PlainEnv):
    """Fails where `failing` says so."""

    options = OPTIONS

    @classmethod
    def make_model(cls, cfg: EnvConfig) -> mujoco.MjModel:
        spec = mujoco.MjSpec.from_string(BALLS)
        add_contacts(spec, **cls.options)
        return spec.compile()

    def setup(self) -> None:
        self.failing = torch.zeros(self.num_envs, dtype=torch.bool, device=self.device)
        self.cache("failing")
        self.contacts = Contacts(self)

    def observe(self) -> dict[str, torch.Tensor]:
        found = self.contacts.found.float()
        return {"actor": found, "critic": found}

    def rewards(self) -> dict[str, torch.Tensor]:
        return {"hits": self.contacts.first_contact.sum(dim=1)}

    def terminated(self) -> torch.Tensor:
        return self.failing


def build(engine: str, num_envs: int = 2, **options: Any) -> Any:
    """Build the balls with other arguments of `add_contacts`."""
    env_class = type("OneBallsEnv", (BallsEnv,), {"options": OPTIONS | options})
    cfg = EnvConfig(num_envs=num_envs, decimation=DECIMATION, episode_seconds=100.0)
    return env_class(cfg, simulate(engine, env_class.make_model(cfg), num_envs), seed=0)


def step(env: Any, count: int = 1) -> None:
    for _ in range(count):
        env.step(torch.zeros(env.num_envs, 1, device=env.device))


def touches(engine: str, steps: int) -> list[list[bool]]:
    """Return whether each ball touches the floor before each physics step, by its height.

    The engine itself steps, one by one: a bounce after many is a step earlier or later in other
    precision, and on another device.
    """
    model = mujoco.MjModel.from_xml_string(BALLS)
    sim = simulate(engine, model, 1)
    balls, found = [model.geom(name).id for name in ("elastic", "soft")], list[list[bool]]()
    for _ in range(steps):
        found.append((sim.geom_xpos[0, balls, 2] <= RADIUS).tolist())
        sim.step()
    return found


class Counter:
    """Counts the contacts of one ball, a physics step after the other."""

    def __init__(self, touching: bool) -> None:
        self.touching, self.air, self.contact, self.last_air = touching, 0, 0, 0
        self.landed = self.touched = False

    def see(self, samples: list[bool]) -> None:
        self.landed, self.touched = False, any(samples)
        for touching in samples:
            if touching and not self.touching:
                self.landed, self.last_air = True, self.air
            self.touching = touching
            self.air = 0 if touching else self.air + 1
            self.contact = self.contact + 1 if touching else 0


@pytest.mark.parametrize(("force", "begin"), [(False, 0.0), (True, 0.0), (False, LATE)])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_touch_within_a_control_step_is_counted(engine: str, force: bool, begin: float) -> None:
    env, steps = build(engine, force=force), 80
    env.sim.time[:] = begin
    contacts, missed = env.contacts, 0
    found = touches(engine, steps * DECIMATION + 1)[0 if force else 1 :]
    counters = [Counter(first) for first in found[0]]
    for i in range(steps):
        before = contacts.found.clone()
        step(env)
        samples = found[i * DECIMATION : (i + 1) * DECIMATION]
        for counter, ball in zip(counters, zip(*samples, strict=True), strict=True):
            counter.see([*ball])
        for world in range(2):
            assert contacts.found[world].tolist() == samples[-1]
            assert contacts.touched[world].tolist() == [one.touched for one in counters]
            assert contacts.first_contact[world].tolist() == [one.landed for one in counters]
            for name in ("air", "contact", "last_air"):
                seconds = getattr(contacts, f"{name}_time")[world] / TIMESTEP
                assert seconds.round().tolist() == [getattr(one, name) for one in counters]
        missed += int((contacts.first_contact & ~contacts.found & ~before)[0, 0])
    assert missed >= 2  # A look at the ends of control steps would not have seen these.


@pytest.mark.parametrize("engine", ENGINES)
def test_without_samples_the_ends_of_steps_count(engine: str) -> None:
    env, expected = build(engine, samples=0), Counter(False)
    assert env.sim.history.shape == (2, 0)
    found = touches(engine, 80 * DECIMATION + 1)
    for i in range(1, 81):
        step(env)
        expected.see([found[i * DECIMATION][0]])
        contacts = env.contacts
        assert contacts.touched[0].tolist() == contacts.found[0].tolist() == found[i * DECIMATION]
        assert bool(contacts.first_contact[0, 0]) == expected.landed
        for name in ("air", "contact", "last_air"):
            seconds = getattr(contacts, f"{name}_time")[0, 0]
            assert float(seconds) == pytest.approx(getattr(expected, name) * env.step_dt)


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_new_episode_sees_no_earlier_contact(engine: str, force: bool) -> None:
    env, fresh = build(engine, force=force), build(engine, force=force)
    contacts = env.contacts
    while not (contacts.touched & contacts.first_contact)[1, 0]:
        step(env)
    times, state = contacts.last_air_time.clone(), "touched first_contact air_time last_air_time"
    env.failing[1] = True
    step(env)
    env.failing[1] = False
    assert contacts.last_air_time[0, 0] == times[0, 0] > 0
    for name in (*state.split(), "contact_time"):
        assert not getattr(contacts, name)[1].any()
    # What lies on the floor touches it; a force is known after a physics step.
    assert contacts.found[1].tolist() == [False, not force]
    if force:
        assert not contacts.largest_force[1].any()
    for _ in range(20):
        step(env)
        step(fresh)
        for name in (*state.split(), "contact_time", "found"):
            assert torch.equal(getattr(contacts, name)[1], getattr(fresh.contacts, name)[0]), name


@pytest.mark.parametrize("engine", ENGINES)
def test_forces_act_on_what_is_named_in_newtons(engine: str) -> None:
    env, largest = build(engine, force=True), torch.zeros(2)
    for _ in range(50):
        step(env)
        sizes = env.contacts.force.norm(dim=2)[0].cpu()
        assert (env.contacts.largest_force[0].cpu() >= sizes - 1e-3).all()
        largest = torch.maximum(largest, env.contacts.largest_force[0].cpu())
    weight = torch.tensor((0.0, 0.0, 3 * 9.81))
    assert torch.allclose(env.contacts.force[0, 1].cpu().float(), weight, atol=0.05)
    # A spring of this stiffness (times the mass, 100000 / s^2) that stops the ball.
    expected = (2 * 9.81 * HEIGHT) ** 0.5 * 100_000**0.5
    assert float(largest[0]) == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_restored_state_has_its_samples(engine: str) -> None:
    env = build(engine)
    step(env, 9)
    restores = env.sim.keep(), env.keep()
    step(env)
    after = env.contacts.last_air_time.clone(), env.contacts.touched.clone()
    step(env, 3)
    for restore in restores:
        restore()
    step(env)
    assert torch.equal(after[0], env.contacts.last_air_time)
    assert torch.equal(after[1], env.contacts.touched)


def test_kinds_and_against_choose_what_counts() -> None:
    def found(names: Any, against: str | None = None) -> dict[str, bool]:
        contacts = build("native", 1, names=names, against=against).contacts
        return dict(zip(contacts.names, contacts.found[0].tolist(), strict=True))

    assert found(".*") == {
        "floor": True, "elastic": False, "soft": True, "hat": False, "world": True,
        "bouncing": False, "lying": True,
    }  # fmt: skip
    assert found("body:lying|hat") == {"lying": True, "hat": False}
    assert found("(?:so|ela).*t") == {"soft": True}
    assert found(["geom:hat", "subtree:lying"], "floor") == {"hat": False, "lying": True}
    assert found("soft", "body:world") == {"soft": True}
    assert found("soft", "subtree:bouncing") == {"soft": False}


def test_contacts_never_wait_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    env = build("warp", force=True)
    step(env)
    with torch.inference_mode(), no_host_synchronisation(monkeypatch):
        step(env)
        _ = env.contacts.largest_force, env.contacts.last_air_time, env.contacts.found


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"names": ["soft", "feet.*"]}, r"'feet.\*' matches nothing; there are body: world, b"),
        ({"names": ["soft", "s.*"]}, r"'soft' and 's.\*' both match 'soft'"),
        ({"names": ["(foot"]}, r"'\(foot' is no regular expression: missing \)"),
        ({"against": "wall"}, "'wall' matches nothing; there are body: world"),
        ({"against": "flo.*"}, r"'flo\.\*' matches nothing; there are body: world"),
        ({"samples": 4}, r"contacts/elastic has 1 .* keeps 4 .* samples=cfg.decimation, 10, or 0"),
        ({"samples": -1}, "samples is -1; it must be cfg.decimation or 0"),
        ({"samples": 1.5}, "samples is 1.5; it must be cfg.decimation or 0"),
        ({"names": []}, r"names is \[\]; it must be one or more expressions"),
        ({"names": 3}, r"names is 3; it must be one or more expressions"),
        (
            {"label": "feet"},
            "call add_contacts in make_model, with this label; the sensors are: feet/e",
        ),
    ],
)
def test_what_does_not_fit_is_one_message(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build("native", **options)


@pytest.mark.parametrize(
    ("kind", "sizes", "message"),
    [
        ("contact", {"intprm": [3, 3, 2]}, "contacts/mine has 8 numbers and keeps 0 samples; let"),
        ("contact", {"intprm": [5, 3, 1]}, "contacts/mine has 4 numbers and keeps 0 samples; let"),
        ("force", {}, "contacts/mine has 3 numbers and keeps 0 samples"),
    ],
)
def test_sensors_of_another_size_are_one_message(
    kind: str, sizes: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = mujoco.MjSpec.from_string(BALLS)
    add_contacts(spec, **OPTIONS)
    with pytest.raises(UserError, match=r"add_contacts\('contacts'\): the model has such sensors"):
        add_contacts(spec, ["soft"], samples=0)
    site = spec.body("hat").add_site(name="hat")
    what = {"objtype": mujoco.mjtObj.mjOBJ_SITE, "objname": site.name} if kind == "force" else {}
    sensor = getattr(mujoco.mjtSensor, f"mjSENS_{kind.upper()}")
    spec.add_sensor(name="contacts/mine", type=sensor, **what, **sizes)
    monkeypatch.setattr(BallsEnv, "make_model", lambda cfg: spec.compile())
    with pytest.raises(UserError, match=message):
        build("native")


def test_forces_that_are_not_measured_are_one_message() -> None:
    with pytest.raises(UserError, match=r"add_contacts\(..., force=True\)"):
        _ = build("native").contacts.force
