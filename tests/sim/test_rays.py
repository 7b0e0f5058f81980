"""Rays hit what MuJoCo's own `mj_ray` hits, in each world, on both engines."""

from typing import Any

import mujoco
import numpy as np
import pytest
import torch

from mjfleet.errors import UserError

from .test_contract import ENGINES, WORLDS, build

FLOAT32 = 2e-5
"""By how much a distance may differ from MuJoCo's in float64: a share of it, or of 1 m."""
SOLIDS = "box", "sphere", "capsule", "cylinder", "ellipsoid", "mesh", "hfield", "moving"
SCENE = """<mujoco>
<default><geom contype="0" conaffinity="0"/></default>
<asset>
  <mesh name="wedge" vertex="-.4 -.4 0  .4 -.4 0  0 .4 0  0 0 .6"/>
  <hfield name="hills" nrow="4" ncol="5" size=".5 .5 .3 .1"
          elevation="0 1 0 1 0  1 0 1 0 1  0 1 1 1 0  1 0 0 0 1"/>
  <material name="clear" rgba="1 1 1 0"/>
</asset>
<worldbody>
  <geom name="floor" type="plane" size="0 0 1" pos="0 0 -2"/>
  <geom name="box" type="box" size=".3 .4 .2" euler="20 30 40"/>
  <geom name="sphere" size=".3" pos="3 0 0"/>
  <geom name="capsule" type="capsule" size=".2 .3" pos="6 0 0" euler="50 0 20"/>
  <geom name="cylinder" type="cylinder" size=".2 .3" pos="9 0 0" euler="50 0 20"/>
  <geom name="ellipsoid" type="ellipsoid" size=".2 .3 .4" pos="12 0 0" euler="10 20 30"/>
  <geom name="mesh" type="mesh" mesh="wedge" pos="15 0 0" euler="0 30 60"/>
  <geom name="hfield" type="hfield" hfield="hills" pos="18 0 0"/>
  <geom name="unseen" type="box" size="9 9 .1" pos="9 0 1" rgba="1 1 1 0"/>
  <geom name="clear" type="box" size="9 9 .1" pos="9 0 1" material="clear"/>
  <geom name="high" type="box" size="9 9 .1" pos="9 0 30" group="1"/>
  <body name="body" pos="21 0 0">
    <freejoint/>
    <geom name="moving" type="box" size=".2 .3 .4"/>
    <geom name="shell" size=".6" group="3"/>
  </body>
</worldbody></mujoco>"""


def scene() -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_string(SCENE)


def at(place: tuple[float, ...], toward: tuple[float, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """The same ray in each world."""
    return tuple(torch.tensor(x).expand(WORLDS, 1, 3) for x in (place, toward))  # pyright: ignore[reportReturnType]


@pytest.fixture(params=ENGINES)
def sim(request: pytest.FixtureRequest) -> Any:
    return build(request.param, scene())


def test_rays_hit_planes_primitives_meshes_and_height_fields_as_mujoco_says(sim: Any) -> None:
    model, data, rng = sim.model, mujoco.MjData(sim.model), np.random.default_rng(0)
    middles = np.array([[3.0 * i, 0, 0.1] for i in range(len(SOLIDS))])
    # To the middle of each solid, from all around it, and past it to the floor.
    away = rng.normal(size=(WORLDS, len(SOLIDS), 20, 3))
    away /= np.linalg.norm(away, axis=3, keepdims=True)
    aims = middles[:, None] + 0.1 * rng.normal(size=away.shape)
    starts = (aims + 1.5 * away).reshape(WORLDS, -1, 3)
    directions = -away.reshape(WORLDS, -1, 3)
    for turn in range(2):  # From the second call on, a graph may be launched.
        sim.qpos[:, 1] = torch.linspace(-0.1, 0.2 + turn, WORLDS)
        sim.qpos[:, 3:7] = torch.tensor([0.8, 0.6, 0.0, 0.0])
        sim.forward()
        found = sim.rays(torch.as_tensor(starts), torch.as_tensor(directions), (0,)).cpu().double()
        expected, geoms = np.zeros(found.shape), set()
        for world in range(WORLDS):
            data.qpos[:] = sim.qpos[world].tolist()
            mujoco.mj_forward(model, data)
            for ray, (start, direction) in enumerate(
                zip(starts[world], directions[world], strict=True)
            ):
                geom, groups = np.zeros(1, np.int32), np.array([1, 0, 0, 0, 0, 0], np.uint8)
                hit = mujoco.mj_ray(model, data, start, direction, groups, 1, -1, geom)
                expected[world, ray] = hit
                geoms.add(model.geom(int(geom[0])).name if hit >= 0 else "nothing")
        assert geoms == {*SOLIDS, "floor", "nothing"}
        assert torch.allclose(found, torch.as_tensor(expected), rtol=FLOAT32, atol=FLOAT32)


def test_rays_hit_the_geoms_of_the_groups_alone(sim: Any) -> None:
    up, down = at((9.0, 0.0, 2.0), (0.0, 0.0, 1.0)), at((21.0, 0.0, 2.0), (0.0, 0.0, -1.0))
    for ray, groups, distance in (
        (up, (0,), -1.0),
        (up, (1,), 27.9),
        (up, (0, 1, 5), 27.9),
        (up, (5,), -1.0),
        (down, (0,), 1.6),
        (down, (0, 3), 1.4),
        (down, (1,), -1.0),
    ):
        assert sim.rays(*ray, groups).cpu().double() == pytest.approx(distance, abs=FLOAT32), groups


@pytest.mark.parametrize("groups", [(0, 7), (-1,), 0, "0", None])
def test_groups_that_there_are_not_are_refused(sim: Any, groups: Any) -> None:
    with pytest.raises(UserError, match="it must be numbers of geom groups, 0 to 5, such as"):
        sim.rays(*at((0.0, 0.0, 2.0), (0.0, 0.0, 1.0)), groups)


def test_rays_follow_sizes_that_differ_between_worlds(sim: Any) -> None:
    down = at((3.0, 0.0, 2.0), (0.0, 0.0, -1.0))
    assert sim.rays(*down, (0,)).cpu().double() == pytest.approx(1.7, abs=FLOAT32)
    sizes = sim.expand("geom_size")
    sizes[:, sim.model.geom("sphere").id, 0] = torch.tensor([0.3, 0.2, 0.1, 0.05]).to(sizes)
    found = sim.rays(*down, (0,)).cpu().double().flatten().tolist()
    assert found == pytest.approx([1.7, 1.8, 1.9, 1.95], abs=FLOAT32)


def test_a_world_whose_state_is_not_finite_disturbs_no_other(sim: Any) -> None:
    starts, directions = (x.clone() for x in at((18.0, 0.1, 2.0), (0.0, 0.0, -1.0)))
    whole = sim.rays(starts, directions, (0,))
    sim.qpos[1] = torch.nan
    starts[1] = torch.nan
    sim.forward()
    found = sim.rays(starts, directions, (0,)).cpu()
    others = [0, 2, 3]
    assert torch.equal(found[others], whole.cpu()[others])
