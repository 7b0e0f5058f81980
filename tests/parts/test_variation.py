"""`vary`: each world really has numbers of its own, and what cannot be varied is one message."""

from collections.abc import Callable
from typing import Any

import mujoco
import pytest
import torch

from mjfleet.config import EnvConfig
from mjfleet.env import Env, EnvShard
from mjfleet.errors import UserError
from mjfleet.parts import vary
from mjfleet.sim import make_simulation

from ..env.test_env import PlainEnv, no_host_synchronisation

WORLDS = 4
MODEL = """
<mujoco>
  <option timestep="0.005" integrator="implicitfast"/>
  <worldbody>
    <geom name="floor" type="plane" size="5 5 0.1"/>
    <body name="sled" pos="0 0 0.1">
      <freejoint/>
      <geom name="runner" type="box" size="0.1 0.1 0.1" friction="0.2" priority="1" mass="1"/>
    </body>
    <body name="arm" pos="1 0 1">
      <joint name="shoulder" axis="0 1 0" armature="0.02" damping="0.1" frictionloss="0.05"/>
      <geom type="capsule" fromto="0 0 0 0.3 0 0" size="0.03" mass="1"/>
      <body name="hand" pos="0.3 0 0">
        <joint name="wrist" axis="0 1 0"/>
        <geom name="palm" type="sphere" size="0.04" mass="0.1"/>
      </body>
    </body>
  </worldbody>
  <actuator>
    <position name="servo" joint="shoulder" kp="5" kv="0.2" armature="0.01" forcerange="-2 2"/>
    <motor name="twist" joint="wrist" gear="0.05"/>
  </actuator>
</mujoco>
"""


class SledEnv(PlainEnv):
    """A box slides on the ground, while an arm turns against gravity."""

    def __init__(self, engine: Any, varies: Callable[["SledEnv"], object], **options: Any) -> None:
        self.varies = varies
        shard = options.get("shard")
        count = shard.count if shard else WORLDS
        cfg = EnvConfig(num_envs=count, decimation=10, episode_seconds=1000.0)
        sim = make_simulation(engine, options.pop("model", compiled()), count)
        super().__init__(cfg, sim, options.pop("seed", 1), **options)

    def setup(self) -> None:
        self.varies(self)

    def reset_worlds(self, mask: torch.Tensor) -> None:
        self.sim.qvel[:, :2] = torch.where(mask.unsqueeze(1), 2.0, self.sim.qvel[:, :2])


def compiled(text: str = MODEL) -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_string(text)


@pytest.fixture(params=["native", "warp"])
def engine(request: pytest.FixtureRequest) -> str:
    return request.param


EACH: list[tuple[str, str | None, str, tuple[float, float]]] = [
    ("body_mass", "hand", "add", (1.0, 3.0)),
    ("body_inertia", "arm", "scale", (2.0, 6.0)),
    ("density", "hand", "scale", (5.0, 20.0)),
    ("body_ipos", "arm", "add", (-0.1, 0.1)),
    ("geom_friction", "runner", "set", (0.05, 0.6)),
    ("geom_size", "runner", "scale", (0.5, 1.2)),
    ("dof_armature", "wrist", "set", (0.01, 0.1)),
    ("dof_damping", ".*", "scale", (1.0, 10.0)),
    ("dof_frictionloss", "shoulder", "add", (0.1, 1.0)),
    ("kp", "servo", "scale", (0.2, 1.0)),
    ("kd", "servo", "add", (0.2, 1.0)),
    ("gains", "servo", "scale", (0.2, 1.0)),
    ("actuator_gear", "twist", "scale", (0.5, 1.5)),
    ("actuator_armature", "servo", "scale", (2.0, 9.0)),
    ("actuator_forcerange", "servo", "scale", (0.5, 1.0)),
    ("opt.gravity", None, "scale", (0.5, 1.5)),
]


@pytest.mark.parametrize(("field", "names", "mode", "limits"), EACH, ids=[each[0] for each in EACH])
def test_each_world_moves_as_mujoco_does_with_its_numbers(
    engine: str, field: str, names: str | None, mode: Any, limits: tuple[float, float]
) -> None:
    env = SledEnv(engine, lambda env: vary(env, field, names, mode, limits))
    (variation,) = env.variations
    written = [(place.name, env.sim.expand(place.name)) for place in variation.places]
    for _ in range(6):
        env.step(torch.ones(WORLDS, 2))
    for world in range(WORLDS):
        own = compiled()
        for name, values in written:
            array = own.opt.gravity if name == "opt.gravity" else getattr(own, name)
            array[:] = values[world].cpu().numpy()
        data = mujoco.MjData(own)
        mujoco.mj_setConst(own, data)
        data.qvel[:2], data.ctrl[:] = 2.0, 1.0
        mujoco.mj_step(own, data, 60)
        difference = env.sim.qpos[world].double() - torch.from_numpy(data.qpos)
        assert difference.abs().max() < 1e-3, world
    spread = env.sim.qpos.max(dim=0).values - env.sim.qpos.min(dim=0).values
    assert spread.max() > 5e-3


def test_bounds_follow_sizes(engine: str) -> None:
    env = SledEnv(engine, lambda env: vary(env, "geom_size", "(runner|palm)", "scale", (0.5, 2.0)))
    size, bound, box = (env.sim.expand(f"geom_{name}") for name in ("size", "rbound", "aabb"))
    runner, palm = (env.sim.model.geom(name).id for name in ("runner", "palm"))
    assert len(size[:, palm, 0].unique()) == WORLDS
    assert torch.allclose(bound[:, palm], size[:, palm, 0])
    assert torch.allclose(bound[:, runner], size[:, runner].norm(dim=1))
    assert torch.allclose(box[:, runner, 3:], size[:, runner])
    assert (env.sim.expand("body_mass")[:, 1:] == env.sim.expand("body_mass")[0, 1:]).all()


def numbers(env: Env[Any], name: str = "geom_friction") -> torch.Tensor:
    """Return the varied numbers of a field in each world."""
    (place,) = [p for one in env.variations for p in one.places if p.name == name]
    return env.sim.expand(name).view(env.num_envs, -1)[:, place.at]


def test_each_reset_draws_from_the_models_own_value(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def varies(env: SledEnv) -> None:
        vary(env, "geom_friction", "runner", "scale", (2.0, 3.0), when="reset")
        vary(env, "opt.gravity", None, "add", (-1.0, 1.0), when="reset", columns=(2,))

    env, drawn = SledEnv(engine, varies), []
    mask = torch.tensor([True, False, True, False])
    before = numbers(env).clone()
    assert len(before.unique()) == WORLDS
    for _ in range(20):
        env._reset(mask)
        drawn.append(numbers(env).clone())
    friction = torch.stack(drawn)
    assert torch.equal(friction[-1][~mask], before[~mask])
    assert len(friction[:, 0].unique()) == 20
    assert 0.4 - 1e-6 <= friction.min() < friction.max() <= 0.6 + 1e-6
    gravity = env.sim.expand("opt.gravity")
    assert (gravity[:, :2] == 0).all()
    assert ((gravity[:, 2] + 9.81).abs() <= 1.0 + 1e-5).all()
    env.step(torch.zeros(WORLDS, 2))
    env.episode_length_buf[1] = env.max_episode_length
    with no_host_synchronisation(monkeypatch):
        env.step(torch.zeros(WORLDS, 2))
    assert (numbers(env) != drawn[-1]).flatten().tolist() == [False, True, False, False]


def test_worlds_share_numbers_where_asked_and_rows_of_a_world_do_too() -> None:
    def varies(env: SledEnv) -> None:
        vary(env, "dof_damping", ".*", "set", (1.0, 2.0), shared=True)
        vary(env, "geom_friction", ["runner", "arm", "hand"], "set", (0.5, 1.0), together=True)
        vary(env, "body_mass", ["arm", "hand"], "scale", (0.5, 1.0))

    env = SledEnv("native", varies)
    names = "dof_damping", "geom_friction", "body_mass"
    damping, friction, masses = (numbers(env, name) for name in names)
    assert torch.equal(damping, damping[:1].expand(WORLDS, 2))
    assert damping[0, 0] != damping[0, 1]
    assert torch.equal(friction, friction[:, :1].expand(WORLDS, 3))
    assert len(friction.unique()) == WORLDS
    assert len((masses / torch.tensor([1.0, 0.1])).unique()) == 2 * WORLDS


def test_actuators_without_names_vary_too_and_have_numbers() -> None:
    def varies(env: SledEnv) -> None:
        vary(env, "actuator_gear", "1", "scale", (0.5, 1.5))
        vary(env, "actuator_forcerange", ".*", "scale", (0.5, 0.9))

    unnamed = MODEL.replace(' name="servo"', "").replace(' name="twist"', "")
    env = SledEnv("native", varies, model=compiled(unnamed))
    gears = env.sim.expand("actuator_gear")[:, :, 0]
    assert (gears[:, 0] == 1).all()
    assert len(gears[:, 1].unique()) == WORLDS
    assert (env.sim.expand("actuator_forcerange")[:, 0, 1] < 2).all()


@pytest.mark.parametrize("shape", ["uniform", "log", "normal"])
def test_numbers_follow_their_distribution(shape: Any) -> None:
    def varies(env: SledEnv) -> None:
        vary(env, "geom_friction", "runner", "set", (0.1, 10.0, shape), when="reset")

    env = SledEnv("native", varies)
    drawn = []
    for _ in range(1000):
        env._reset(torch.ones(WORLDS, dtype=torch.bool))
        drawn.append(numbers(env).clone())
    values = torch.cat(drawn)
    assert 0.1 <= values.min() < values.max() <= 10.0
    middle, below = {"uniform": (5.05, 0.18), "log": (1.0, 0.65), "normal": (5.05, 0.023)}[shape]
    assert values.median() == pytest.approx(middle, rel=0.15)
    assert (values < 1.9).double().mean() == pytest.approx(below, abs=0.03)


def test_the_environments_of_a_group_have_the_same_numbers_and_workers_share_theirs() -> None:
    def varies(env: SledEnv) -> None:
        vary(env, "body_mass", "arm", "scale", (0.5, 2.0))
        vary(env, "geom_friction", "runner", "set", (0.5, 2.0), shared=True)

    masses = numbers(SledEnv("native", varies, group_size=2), "body_mass").flatten()
    assert masses[0] == masses[1] != masses[2] == masses[3]
    alone = SledEnv("native", varies, shard=EnvShard(0, 4, 4))
    second = SledEnv("native", varies, shard=EnvShard(2, 2, 4))
    for name in ("body_mass", "geom_friction"):
        assert torch.equal(numbers(alone, name)[2:], numbers(second, name))


def test_a_restored_world_moves_as_with_its_own_masses(engine: str) -> None:
    one, other = (
        SledEnv(engine, lambda env: vary(env, "body_mass", "hand", "add", (1.0, 9.0)), seed=seed)
        for seed in (1, 2)
    )
    other.sim.restore({name: value.clone() for name, value in one.sim.state().items()})
    for env in (one, other):
        env.step(torch.ones(WORLDS, 2))
    assert torch.equal(one.sim.qpos, other.sim.qpos)
    subtree = [env.sim.expand("body_subtreemass") for env in (one, other)]
    assert torch.equal(*subtree)


Arguments = dict[str, Any]
WRONG: list[tuple[Arguments, str]] = [
    ({"field": "geom_frction"}, "body_mass, .*opt.gravity"),
    ({"field": "geom_condim"}, "what each world can have of its own, on both engines, is"),
    ({"mode": "multiply"}, "'multiply' must be one of: scale, add, set"),
    ({"when": "step"}, "'step' must be one of: start, reset"),
    ({"distribution": (1.0, 2.0, "gauss")}, "'gauss' must be one of: uniform, log, normal"),
    ({"distribution": 0.5}, r"0.5 must be \(low, high\), or \(low, high, \"log\"\)"),
    ({"distribution": ("0.5", "2")}, r"\('0.5', '2'\) must be \(low, high\)"),
    ({"distribution": (2.0, 1.0)}, "two finite numbers, the lower one first"),
    ({"distribution": (0.0, 1.0, "log")}, "must be above 0 for logarithms"),
    ({"names": "foot"}, "'foot' matches no geom of: arm, floor, hand, palm, runner, sled, world"),
    ({"names": ["sled", "run.*"]}, "'sled' and 'run..' both match 'runner of sled'"),
    ({"names": None}, "matches no geom"),
    ({"names": "*foot"}, r"'\*foot' is no regular expression: nothing to repeat"),
    ({"names": None, "field": "body_mass"}, "matches no body of: arm, hand, sled, world"),
    ({"field": "opt.gravity"}, "has no names; give None"),
    ({"columns": (3,)}, r"`columns` is \(3,\); it must be some of \(0, 1, 2\)"),
    ({"columns": 0}, r"`columns` is 0; it must be some of \(0, 1, 2\)"),
    ({"columns": ()}, r"`columns` is \(\); it must be some of \(0, 1, 2\)"),
    ({"mode": "add"}, "geom_friction of 'runner' must not be negative; it is 0.2 in the model"),
    ({"field": "body_mass", "names": "hand", "mode": "add"},
     "body_mass of 'hand' must be above 0; it is 0.1 in the model, and could be -0.4"),
    ({"field": "geom_rgba"}, "not be above 1; it is 1 in the model, and could be 0.5 to 2"),
    ({"field": "geom_size", "names": "palm", "distribution": (0.0, 1.0)}, "must be above 0"),
    ({"field": "geom_size", "names": "floor"}, "'floor' is of no primitive geom"),
    ({"field": "kp", "names": ".*"}, "'twist' is of no position actuator"),
    ({"field": "body_inertia", "names": "arm", "mode": "set"}, "can only be scaled"),
    ({"field": "body_mass", "names": "arm", "when": "reset"}, "cannot vary at a \"reset\""),
    ({"when": "reset", "shared": True}, "share no number"),
    ({"field": "body_ipos", "names": "sled", "mode": "add"},
     "body_ipos of 'sled' needs simple=\"false\" in its <body>"),
]  # fmt: skip


@pytest.mark.parametrize(("changed", "message"), WRONG, ids=[text for _, text in WRONG])
def test_what_cannot_be_varied_is_one_message(changed: Arguments, message: str) -> None:
    usual = {"field": "geom_friction", "names": "runner", "mode": "scale"}
    drawn = (-0.5, 0.5) if "add" in changed.values() else (0.5, 2.0)
    arguments = {**usual, "distribution": drawn, **changed}
    with pytest.raises(UserError, match=message):
        SledEnv("native", lambda env: vary(env, **arguments))


def test_numbers_are_varied_once_and_in_setup() -> None:
    def varies(env: SledEnv) -> None:
        vary(env, "gains", "servo", "scale", (0.5, 2.0))

    env = SledEnv("native", varies)
    with pytest.raises(UserError, match="outside `setup`"):
        varies(env)
    with pytest.raises(UserError, match=r"numbers vary by SledEnv: vary\('gains', 'servo'\)"):
        SledEnv("native", lambda env: (varies(env), vary(env, "kd", "servo", "scale", (1.0, 2.0))))


def test_armature_of_an_actuator_on_warp_stays_above_zero() -> None:
    """MuJoCo-Warp notes which actuators have one when it takes over the model."""
    for armature, mode, limits in (("0", "set", (0.1, 0.2)), ("0.01", "scale", (0.0, 1.0))):
        model = compiled(MODEL.replace('armature="0.01"', f'armature="{armature}"'))

        def varies(env: SledEnv, mode: Any = mode, limits: Any = limits) -> None:
            vary(env, "actuator_armature", "servo", mode, limits)

        SledEnv("native", varies, model=model)
        with pytest.raises(UserError, match=r"'servo' cannot vary from or to 0 on MuJoCo-Warp"):
            SledEnv("warp", varies, model=model)
