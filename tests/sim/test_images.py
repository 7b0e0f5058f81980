"""Images show what MuJoCo's own rays hit, in each world, on both engines."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import mujoco
import numpy as np
import psutil
import pytest
import torch

from mjfleet.errors import UserError
from mjfleet.sim import make_simulation

from .test_contract import ENGINES, WORLDS, build

WIDTH, HEIGHT, FAR = 24, 16, 12.0
NEAR = 3e-4
"""By how much a depth may differ from MuJoCo's in float64, m."""
EDGES = 0.005
"""Share of the pixels that may see another geom, at edges."""
SCENE = """<mujoco>
<default><geom contype="0" conaffinity="0"/></default>
<asset>
  <mesh name="wedge" vertex="-.4 -.4 0  .4 -.4 0  0 .4 0  0 0 .6"/>
  <hfield name="hills" nrow="4" ncol="5" size=".5 .5 .3 .1"
          elevation="0 0 0 0 0  0 1 .5 1 0  0 .3 1 .6 0  0 0 0 0 0"/>
  <texture name="tiles" type="2d" builtin="checker" rgb1="1 0 0" rgb2="0 0 1" width="8" height="8"/>
  <material name="tiled" texture="tiles"/>
</asset>
<worldbody>
  <!-- MuJoCo-Warp shows no sides of a height field: this one has none. -->
  <light pos="0 0 5" dir="0 0 -1"/>
  <geom name="floor" type="plane" size="0 0 1" pos="0 0 -1" material="tiled"/>
  <geom name="box" type="box" size=".3 .4 .2" euler="20 30 40" rgba="0 1 0 1"/>
  <geom name="sphere" size=".3" pos="1 0 0"/>
  <geom name="capsule" type="capsule" size=".2 .3" pos="2 0 0" euler="50 0 20"/>
  <geom name="cylinder" type="cylinder" size=".2 .3" pos="0 1 0" euler="50 0 20"/>
  <geom name="ellipsoid" type="ellipsoid" size=".2 .3 .4" pos="1 1 0" euler="10 20 30"/>
  <geom name="mesh" type="mesh" mesh="wedge" pos="2 1 0" euler="0 30 60"/>
  <geom name="hfield" type="hfield" hfield="hills" pos="0 2 -.99"/>
  <geom name="hidden" type="box" size="9 9 .1" pos="0 0 1.5" group="3"/>
  <camera name="fixed" pos="1 -2.5 1.5" xyaxes="1 0 0 0 .5 1" fovy="60"/>
  <body name="body" pos="1 1.5 .9">
    <freejoint/>
    <geom name="moving" type="box" size=".2 .3 .4"/>
    <camera name="mounted" pos="0 -.5 .2" xyaxes="1 0 0 0 .3 1" fovy="75"/>
  </body>
</worldbody></mujoco>"""
ONE_GEOM = """<mujoco><worldbody>
<camera name="eye" fovy="90"/>
<geom {geom}/>
</worldbody></mujoco>"""


def scene() -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_string(SCENE)


@pytest.fixture(params=ENGINES)
def sim(request: pytest.FixtureRequest) -> Any:
    return build(request.param, scene())


def pixels(fovy: float, width: int = WIDTH, height: int = HEIGHT) -> np.ndarray:
    """The directions of all pixels of a camera, `(height, width, 3)`; z is -1."""
    half = np.tan(np.deg2rad(fovy) / 2)
    x = ((np.arange(width) + 0.5) / width * 2 - 1) * half * width / height
    y = (1 - (np.arange(height) + 0.5) / height * 2) * half
    grid = np.meshgrid(x, y)
    return np.stack((*grid, -np.ones_like(grid[0])), axis=-1)


def expected(model: mujoco.MjModel, qpos: np.ndarray, camera: str) -> tuple[np.ndarray, np.ndarray]:
    """Depths and geoms that MuJoCo's rays find in float64, `(HEIGHT, WIDTH)` each."""
    data = mujoco.MjData(model)
    data.qpos[:] = qpos
    mujoco.mj_forward(model, data)
    axes, place = data.camera(camera).xmat.reshape(3, 3), data.camera(camera).xpos
    groups, found, geom = np.array([1, 1, 1, 0, 0, 0], np.uint8), [], np.zeros(1, np.int32)
    for direction in pixels(float(model.camera(camera).fovy[0])).reshape(-1, 3):
        distance = mujoco.mj_ray(model, data, place, axes @ direction, groups, 1, -1, geom)
        found.append((distance if distance >= 0 else np.inf, int(geom[0])))
    depths, geoms = zip(*found, strict=True)
    return np.reshape(depths, (HEIGHT, WIDTH)), np.reshape(geoms, (HEIGHT, WIDTH))


def start_apart(sim: Any) -> None:
    """Move and turn the body of each world."""
    generator = torch.Generator().manual_seed(0)
    sim.qpos[:, :3] += (0.3 * torch.randn(sim.num_envs, 3, generator=generator)).to(sim.qpos)
    turned = torch.randn(sim.num_envs, 4, generator=generator)
    turned = torch.nn.functional.normalize(torch.tensor([3.0, 0, 0, 0]) + turned, dim=1)
    sim.qpos[:, 3:7] = turned.to(sim.qpos)
    sim.forward()


@pytest.mark.parametrize("camera", ["fixed", "mounted"])
def test_depths_and_geoms_are_those_that_mujocos_rays_find(sim: Any, camera: str) -> None:
    for _ in range(2):  # From the second call on, a graph is launched.
        start_apart(sim)
        images = sim.images(camera, WIDTH, HEIGHT, ("depth", "segmentation"))
        depth, segments = images["depth"].double().cpu(), images["segmentation"].cpu()
        assert depth.shape == (WORLDS, HEIGHT, WIDTH)
        for world in range(WORLDS):
            depths, geoms = expected(sim.model, sim.qpos[world].cpu().numpy(), camera)
            found = depth[world].clamp(max=FAR).numpy()
            wrong = np.abs(found - depths.clip(max=FAR)) > NEAR
            wrong |= (depths < FAR) & (segments[world, ..., 0].numpy() != geoms)
            assert wrong.mean() <= EDGES
            assert (depths < FAR).mean() > 0.4


@pytest.mark.parametrize(
    ("geom", "depth"),
    [
        ('type="plane" size="0 0 1" pos="0 0 -2"', lambda x, y: np.full_like(x, 2.0)),
        ('type="box" size="9 9 .5" pos="0 0 -2.5"', lambda x, y: np.full_like(x, 2.0)),
        (
            'size="1" pos="0 0 -3"',
            # |t (x, y, -1) - (0, 0, -3)| = 1
            lambda x, y: (
                (3 - np.sqrt(np.maximum(9 - 8 * (1 + x**2 + y**2), 0))) / (1 + x**2 + y**2)
            ),
        ),
    ],
    ids=["plane", "box", "sphere"],
)
@pytest.mark.parametrize("engine", ENGINES)
def test_the_depth_of_simple_scenes_is_that_of_geometry(engine: str, geom: str, depth: Any) -> None:
    model = mujoco.MjModel.from_xml_string(ONE_GEOM.format(geom=geom))
    sim = build(engine, model, 2)
    found = sim.images("eye", 32, 32)["depth"].double().cpu().numpy()
    x, y, _ = np.moveaxis(pixels(90.0, 32, 32), -1, 0)
    hits = x**2 + y**2 < 1 / 8 if "type" not in geom else x < np.inf
    np.testing.assert_allclose(found[:, hits], np.stack([depth(x, y)[hits]] * 2), atol=NEAR)
    assert np.isinf(found[:, ~hits]).all()


@pytest.mark.parametrize("engine", ENGINES)
def test_any_distance_is_seen_and_a_miss_is_infinitely_far_and_no_geom(engine: str) -> None:
    geom = 'type="box" size="99 99 1" pos="100 0 -5001"'
    sim = build(engine, mujoco.MjModel.from_xml_string(ONE_GEOM.format(geom=geom)))
    images = sim.images("eye", 100, 100, ("segmentation", "depth"))
    seen = (images["segmentation"] == torch.tensor([0, int(mujoco.mjtObj.mjOBJ_GEOM)])).all(dim=3)
    assert seen[0].nonzero().tolist() == [[49, 50], [49, 51], [50, 50], [50, 51]]
    assert (images["segmentation"][~seen] == -1).all()
    assert ((images["depth"] - 5000.0).abs() < 0.1).equal(seen)
    assert images["depth"].isinf().equal(~seen)


def test_images_after_steps_resets_and_writes_show_the_new_poses(sim: Any) -> None:
    first = sim.images("fixed", WIDTH, HEIGHT)["depth"].clone()
    mask = torch.zeros(WORLDS, dtype=torch.bool, device=sim.device)
    mask[1] = True
    sim.qpos[:, 2] -= torch.where(mask, 0.0, 0.6)
    sim.forward()
    moved = sim.images("fixed", WIDTH, HEIGHT)["depth"].clone()
    assert (moved != first).flatten(1).any(dim=1).equal(~mask)
    sim.reset(~mask)
    sim.forward(~mask)
    assert sim.images("fixed", WIDTH, HEIGHT)["depth"].equal(first)
    sim.step(200)
    fallen = sim.images("fixed", WIDTH, HEIGHT)["depth"]
    assert (fallen != first).flatten(1).any(dim=1).all()


def test_the_same_state_is_rendered_once_also_when_it_is_restored(
    sim: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    views, render = [], sim._images
    monkeypatch.setattr(type(sim), "_images", lambda self, view: views.append(view) or render(view))
    first, restore = sim.images("fixed", 9, 9)["depth"], sim.keep()
    assert sim.images("fixed", 9, 9)["depth"] is first
    restore()
    assert sim.images("fixed", 9, 9)["depth"] is first
    assert len(views) == 1
    sim.step(200)
    assert not sim.images("fixed", 9, 9)["depth"].equal(first)
    restore()
    assert sim.images("fixed", 9, 9)["depth"].equal(first)
    assert len(views) == 3


def test_the_first_rendering_of_a_view_alone_is_surrounded_as_what_may_compile(sim: Any) -> None:
    surrounded = list[str]()

    @contextmanager
    def note() -> Iterator[None]:
        surrounded.append("begins")
        yield
        surrounded.append("ends")

    sim.while_compiling = note
    for width in (9, 9, 10):
        sim.images("fixed", width, 9)
        sim.note_move()
    assert surrounded == ["begins", "ends"] * 2


def test_images_that_do_not_fit_in_memory_are_one_message_with_the_number_that_does(
    sim: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = 9 * 10 * (4 + 4 + 4 + 3)  # Of depth and colours, in the renderer and as copies.
    tree = 112 * int((sim.model.geom_group <= 2).sum())
    total = 3 * (image + tree) - 1
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=total))
    with pytest.raises(UserError, match=r"images need at least .* environments 2 would fit: lower"):
        sim.images("fixed", 9, 10, ("depth", "rgb"))


@pytest.mark.parametrize(
    ("field", "kind"),
    [("cam_fovy", "depth"), ("cam_pos", "depth"), ("cam_quat", "depth"), ("geom_size", "depth"),
     ("geom_rgba", "rgb"), ("mat_rgba", "rgb"), ("light_diffuse", "rgb"), ("light_pos", "rgb")],
)  # fmt: skip
def test_a_field_of_its_own_changes_a_worlds_images_alone(sim: Any, field: str, kind: Any) -> None:
    first = sim.images("fixed", WIDTH, HEIGHT, (kind,))[kind].clone()
    own = sim.expand(field)
    own[2, 0 if field != "geom_size" else 1] *= 0.5
    sim.forward()
    changed = sim.images("fixed", WIDTH, HEIGHT, (kind,))[kind] != first
    assert changed.flatten(1).any(dim=1).tolist() == [world == 2 for world in range(WORLDS)]
    assert own.shape[0] == WORLDS


def test_engines_render_the_same_images_of_the_same_poses() -> None:
    sims = [build(engine, scene()) for engine in ("native", "warp")]
    kinds = ("depth", "rgb", "segmentation")
    for sim in sims:
        sim.expand("geom_rgba")[3, :, :3] = 0.3
        start_apart(sim)
    one, other = (sim.images("fixed", WIDTH, HEIGHT, kinds) for sim in sims)
    assert one["rgb"].dtype == torch.uint8
    assert one["rgb"].shape == (WORLDS, HEIGHT, WIDTH, 3)
    assert one["rgb"].float().std() > 10
    same = one["segmentation"] == other["segmentation"]
    assert same.float().mean() >= 1 - EDGES
    is_near = (one["depth"] - other["depth"]).abs().nan_to_num(0.0) <= NEAR
    assert is_near.float().mean() >= 1 - EDGES
    is_near = (one["rgb"].int() - other["rgb"].int()).abs() <= 2
    assert is_near.float().mean() >= 1 - 2 * EDGES


def test_colours_are_in_the_order_red_green_blue() -> None:
    geom = 'type="plane" size="0 0 1" pos="0 0 -2" rgba="1 .5 .1 1"'
    sim = build("native", mujoco.MjModel.from_xml_string(ONE_GEOM.format(geom=geom)))
    red, green, blue = sim.images("eye", 4, 4, ("rgb",))["rgb"][0, 2, 2].tolist()
    assert red > 1.5 * green > 1.5 * blue


def test_the_result_does_not_depend_on_the_number_of_threads() -> None:
    found = []
    for threads in (1, 3):
        sim = make_simulation("native", scene(), 25, num_threads=threads)
        start_apart(sim)
        found.append(sim.images("mounted", 8, 8, ("depth", "rgb")))
    assert all(found[0][kind].equal(found[1][kind]) for kind in found[0])


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("fxed", 8, 8), "no camera 'fxed'; the model has: fixed, mounted."),
        (("fixed", 0, 8), "width is 0; it must be a whole number of pixels above 0."),
        (("fixed", 8, 2.5), "height is 2.5;"),
        (
            ("fixed", 8, 8, ("depht",)),
            r"kinds is \('depht',\); it must be some of \('depth', 'rgb'",
        ),
        (("fixed", 8, 8, "depth"), "kinds is 'depth'; it must be some of"),
        (("fixed", 8, 8, ()), r"kinds is \(\)"),
        (("fixed", 8, 8, ("depth",), (5,)), r"no geom to see is in the groups .*: 0, 3\."),
        (("fixed", 8, 8, ("depth",), (6,)), r"groups is \(6,\)"),
    ],
)
def test_what_cannot_be_rendered_is_one_message(arguments: Any, text: str) -> None:
    sim = build("native", scene())
    with pytest.raises(UserError, match=text):
        sim.images(*arguments)
