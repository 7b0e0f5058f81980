"""A task's cameras: what they show, when they render, what they keep, and what they refuse."""

import math
from collections.abc import Callable
from typing import Any

import mujoco
import pytest
import torch

from mjfleet.config import EnvConfig
from mjfleet.env import Delay, History
from mjfleet.errors import UserError
from mjfleet.parts import (
    Camera,
    add_camera,
    blurred_edges,
    gaussian_depth,
    holes,
    vary,
)
from mjfleet.sim import make_simulation

from ..env.test_env import PlainEnv, no_host_synchronisation

ENGINES = pytest.mark.parametrize(
    ("engine", "device"),
    [("native", "cpu"), ("warp", "cpu"), pytest.param("warp", "cuda:0", marks=pytest.mark.gpu)],
)
WORLDS = 4
ROOM = """<mujoco>
<default><geom contype="0" conaffinity="0"/></default>
<asset><material name="paint" rgba="1 .5 0 1"/></asset>
<worldbody>
  <light name="lamp" pos="1 0 .5" dir="1 0 0"/>
  <geom name="wall" type="box" size=".1 9 9" pos="3.1 0 0" material="paint"/>
  <body name="cart">
    <joint name="slide" type="slide" axis="1 0 0"/>
    <geom name="head" size=".1" mass="1" group="3"/>
    <camera name="eye" xyaxes="0 -1 0 0 0 1" fovy="60"/>
  </body>
</worldbody>
<actuator><motor joint="slide" gear="100"/></actuator></mujoco>"""
"""A camera on a cart, 3 m before a wall, which it looks at."""
NEAR, FAR = 0.2, 10.0


class SeeingEnv(PlainEnv):
    """Its observation is what a function of it returns."""

    def __init__(
        self, prepare: Callable[[Any], Any], see: Callable[[Any], Any], *arguments: Any
    ) -> None:
        self.prepare, self.see, self.renderings = prepare, see, 0
        super().__init__(*arguments)

    def setup(self) -> None:
        self.cache("part", "renderings")
        self.part, render = self.prepare(self), self.sim._images

        def count(view: Any) -> Any:
            self.renderings += 1
            return render(view)

        self.sim._images = count  # pyright: ignore[reportAttributeAccessIssue]

    def observe(self) -> dict[str, torch.Tensor]:
        return dict.fromkeys(("actor", "critic"), self.see(self))


def make(
    prepare: Callable[[Any], Any],
    see: Callable[[Any], Any] = lambda env: env.part()["depth"],
    engine: Any = "native",
    device: str = "cpu",
    xml: str = ROOM,
) -> Any:
    sim = make_simulation(engine, mujoco.MjModel.from_xml_string(xml), WORLDS, device=device)
    return SeeingEnv(prepare, see, EnvConfig(num_envs=WORLDS, decimation=1), sim, 1)


def eye(env: Any, **settings: Any) -> Camera:
    chosen: dict[str, Any] = {"near": NEAR, "far": FAR} | settings
    return Camera(env, "eye", 8, 6, **chosen)


def put(env: Any, *places: float) -> None:
    """Move the carts."""
    env.sim.qpos[:, 0] = torch.tensor(places).to(env.sim.qpos)
    env.sim.forward()


@ENGINES
def test_depth_is_in_metres_between_near_and_far(engine: str, device: str) -> None:
    env = make(eye, engine=engine, device=device)
    put(env, 0.0, 2.9, -20.0, 30.0)  # The last one is behind the wall and sees nothing.
    depth = env.part()["depth"].cpu()
    assert depth.dtype == torch.float32
    assert depth.shape == (WORLDS, 1, 6, 8)
    expected = torch.tensor([3.0, NEAR, FAR, FAR]).view(-1, 1, 1, 1).expand_as(depth)
    torch.testing.assert_close(depth, expected)


@ENGINES
def test_distance_is_that_along_the_ray_of_a_pixel_for_each_field_of_view(
    engine: str, device: str
) -> None:
    def prepare(env: Any) -> Any:
        vary(env, "cam_fovy", "eye", "set", (40.0, 80.0))
        return eye(env, kinds=("depth", "distance"))

    env = make(prepare, lambda env: env.part()["distance"], engine, device)
    fovy = env.sim.expanded["cam_fovy"][:, 0].double().cpu()
    assert fovy.std() > 1
    x = (torch.arange(8).double() + 0.5) / 8 * 2 - 1
    y = (torch.arange(6).double() + 0.5) / 6 * 2 - 1
    half = torch.tan(torch.deg2rad(fovy) / 2).view(-1, 1, 1)
    expected = 3.0 * (1 + (half * x * 8 / 6) ** 2 + (half * y.view(1, -1, 1)) ** 2).sqrt()
    found = env.part()
    torch.testing.assert_close(found["distance"][:, 0].double().cpu(), expected, atol=1e-4, rtol=0)
    torch.testing.assert_close(found["depth"].cpu(), torch.full((WORLDS, 1, 6, 8), 3.0))


@ENGINES
def test_an_environment_that_was_reset_in_a_step_shows_its_new_pose(
    engine: str, device: str
) -> None:
    env = make(eye, engine=engine, device=device)
    env.episode_length_buf[1] = env.max_episode_length - 1
    put(env, 1.0, 1.0, 1.0, 1.0)
    observations, _, dones, _ = env.step(torch.zeros(WORLDS, 1, device=env.device))
    assert dones.tolist() == [False, True, False, False]
    seen = observations["actor"][:, 0, 3, 4].tolist()
    assert seen == pytest.approx([2.0, 3.0, 2.0, 2.0], abs=1e-4)


def test_a_step_renders_once_and_building_an_environment_too() -> None:
    env = make(eye, lambda env: env.part()["depth"] + env.part()["depth"])
    assert env.renderings == 1
    for _ in range(3):
        env.step(torch.zeros(WORLDS, 1))
    assert env.renderings == 4


@ENGINES
def test_images_between_renderings_are_kept_and_a_reset_shows_far_until_the_next(
    engine: str, device: str
) -> None:
    env = make(lambda env: eye(env, every=3), engine=engine, device=device)
    env.sim.qvel.fill_(1.0)
    seen, first = [], env.renderings
    for step in range(1, 7):
        env.episode_length_buf[1] = env.max_episode_length - 1 if step == 4 else 0
        observations, *_ = env.step(torch.zeros(WORLDS, 1, device=env.device))
        seen.append(observations["actor"][:2, 0, 3, 4].cpu())
    seen = torch.stack(seen)
    assert env.renderings - first == 2
    assert seen[0].tolist() == seen[1].tolist() == pytest.approx([3.0, 3.0])
    after = 3.0 - 3 * env.step_dt
    assert seen[2].tolist() == pytest.approx([after, after], abs=1e-4)
    assert seen[3].tolist() == seen[4].tolist() == pytest.approx([after, FAR], abs=1e-4)
    assert seen[5].tolist() == pytest.approx([3.0 - 6 * env.step_dt, 3.0], abs=1e-4)


def test_new_episodes_everywhere_are_rendered_at_once() -> None:
    env = make(lambda env: eye(env, every=3))
    env.step(torch.zeros(WORLDS, 1))
    env.start_at_random_times()
    assert env.get_observations()["actor"].amax().item() == pytest.approx(3.0)


def test_kept_images_resume_bit_for_bit() -> None:
    def prepare(env: Any) -> Any:
        vary(env, "cam_quat", "eye", "add", (-0.2, 0.2), "reset")
        vary(env, "geom_rgba", "wall", "set", (0.2, 1.0), "reset", columns=(0, 1, 2))
        return eye(env, every=3, kinds=("rgb", "distance", "segmentation"))

    def see(env: Any) -> Any:
        images = env.part()
        return torch.cat([images[kind].float() for kind in images], dim=1)

    env, other = make(prepare, see), make(prepare, see)
    env.sim.qvel.fill_(1.0)
    for _ in range(4):
        env.step(torch.zeros(WORLDS, 1))
    other.sim.restore({name: field.clone() for name, field in env.sim.state().items()})
    other.load_state_dict(env.state_dict())
    for _ in range(4):
        one, two = (each.step(torch.ones(WORLDS, 1))[0]["actor"] for each in (env, other))
        assert one.equal(two)
        assert one[:, :3].std() > 1


def test_images_of_bytes_stay_bytes_also_in_histories_and_delays() -> None:
    def prepare(env: Any) -> Any:
        history = History(env, (3, 6, 8), 2, dtype=torch.uint8)
        delay = Delay(env, (6, 6, 8), 1, 1, repeat_first=True, dtype=torch.uint8)
        camera = eye(env, kinds=("rgb",))
        return lambda: delay(history(camera()["rgb"]))

    env = make(prepare, lambda env: env.part())
    env.on_nan = "reset"
    first = env.get_observations()["actor"]
    assert first.dtype == torch.uint8
    assert first.shape == (WORLDS, 6, 6, 8)
    assert first[:, :3].equal(first[:, 3:])
    put(env, *[2.0] * WORLDS)
    env.sim.qvel.fill_(20.0)
    rows = [env.step(torch.zeros(WORLDS, 1))[0]["actor"] for _ in range(3)]
    assert rows[0].equal(first)
    assert rows[1][:, :3].equal(first[:, 3:])
    assert rows[2][:, :3].equal(rows[1][:, 3:])


@ENGINES
def test_what_is_varied_is_seen_in_each_environment(engine: str, device: str) -> None:
    fields = {
        "cam_pos": ("eye", "add", (-0.3, 0.3)),
        "cam_quat": ("eye", "add", (-0.3, 0.3)),
        "mat_rgba": ("paint", "scale", (0.3, 0.9)),
        "light_pos": ("lamp", "add", (-1.0, 1.0)),
        "light_diffuse": ("lamp", "scale", (0.5, 1.0)),
    }

    def see(env: Any) -> Any:
        return torch.cat((env.part()["depth"], env.part()["rgb"]), dim=1)

    plain = make(lambda env: eye(env, kinds=("depth", "rgb")), see, engine, device)
    for field, arguments in fields.items():

        def prepare(env: Any, field: str = field, arguments: Any = arguments) -> Any:
            vary(env, field, *arguments)
            return eye(env, kinds=("depth", "rgb"))

        env = make(prepare, see, engine, device)
        seen = env.get_observations()["actor"]
        assert (seen != plain.get_observations()["actor"]).flatten(1).any(dim=1).all(), field
        assert (seen[1:] != seen[:1]).flatten(1).any(dim=1).all(), field
        if field == "cam_quat":
            norms = env.sim.expanded["cam_quat"].norm(dim=-1)
            torch.testing.assert_close(norms, torch.ones_like(norms))


def test_a_camera_that_turns_by_an_angle_sees_the_wall_that_far_away() -> None:
    def prepare(env: Any) -> Any:
        vary(env, "cam_quat", "eye", "add", (0.3, 0.3))
        return Camera(env, "eye", 1, 1, far=FAR)

    env = make(prepare)
    own = mujoco.MjData(env.sim.model)
    mujoco.mj_forward(env.sim.model, own)
    turn, axes = torch.zeros(4, dtype=torch.float64), torch.zeros(9, dtype=torch.float64)
    angle = 0.3 * math.sqrt(3)
    mujoco.mju_axisAngle2Quat(turn.numpy(), [1 / math.sqrt(3)] * 3, angle)
    mujoco.mju_quat2Mat(axes.numpy(), turn.numpy())
    axes = torch.from_numpy(own.cam_xmat[0].reshape(3, 3)) @ axes.view(3, 3)
    torch.testing.assert_close(env.sim.cam_xmat[0, 0].view(3, 3), axes)
    assert env.part()["depth"].flatten().tolist() == pytest.approx(
        [3.0 / -float(axes[0, 2])] * WORLDS
    )


def test_two_cameras_may_turn_together() -> None:
    twice = ROOM.replace("</body>", '<camera name="other" xyaxes="0 -1 0 0 0 1"/></body>')

    def prepare(env: Any) -> Any:
        vary(env, "cam_quat", ".*", "add", (-0.3, 0.3), together=True)
        return eye(env)

    axes = make(prepare, xml=twice).sim.cam_xmat
    assert axes.std(dim=0).amax() > 0.01
    torch.testing.assert_close(axes[:, 0], axes[:, 1])


def test_intrinsics_are_those_of_the_lens_or_of_the_sensor() -> None:
    lens = make(eye).part.intrinsics()
    focal = 3.0 / math.tan(math.radians(30))
    assert lens == pytest.approx({"fx": focal, "fy": focal, "cx": 4.0, "cy": 3.0})
    sensor = 'sensorsize="8 6" focal="5 4" principal="1 .5" resolution="8 6"'
    env = make(
        lambda env: eye(env, kinds=("depth", "distance")), xml=ROOM.replace('fovy="60"', sensor)
    )
    assert env.part.intrinsics() == pytest.approx({"fx": 5.0, "fy": 4.0, "cx": 3.0, "cy": 2.5})
    found = env.part()
    # The ray of a pixel reaches the wall at (x - cx) / fx and (y - cy) / fy of its depth.
    x, y = (torch.arange(8) + 0.5 - 3.0) / 5.0, (torch.arange(6) + 0.5 - 2.5).view(-1, 1) / 4.0
    expected = (3.0 * (1 + x**2 + y**2).sqrt()).expand(WORLDS, 1, 6, 8)
    torch.testing.assert_close(found["distance"], expected, atol=1e-4, rtol=0)


def test_pictures_for_people_have_colours() -> None:
    kinds = ("depth", "rgb", "segmentation")
    shown = list[torch.Tensor]()
    for kind in kinds:
        env = make(lambda env, k=kind: eye(env, kinds=(k,)), lambda env: env.sim.qpos)
        shown.append(env.part.pictures())
    assert all(picture.shape == (WORLDS, 6, 8, 3) for picture in shown)
    assert all(picture.dtype == torch.uint8 for picture in shown)
    share = (FAR - 3.0) / (FAR - NEAR)
    assert shown[0].float().mean().item() == pytest.approx(255 * share, abs=1)
    red, _, blue = shown[1].float().mean(dim=(0, 1, 2)).tolist()
    assert red > blue
    assert shown[2].flatten(0, 2).unique(dim=0).tolist() == [[64, 64, 64]]  # The geom 0.


def test_no_step_with_a_camera_waits_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def prepare(env: Any) -> Any:
        vary(env, "cam_quat", "eye", "add", (-0.2, 0.2), "reset")
        return eye(env, every=2, kinds=("rgb", "depth", "distance", "segmentation"))

    def see(env: Any) -> Any:
        images = env.part()
        depth = gaussian_depth(env, images["depth"], constant=0.01)
        depth = blurred_edges(env, depth, share=0.5, step=0.1)
        return torch.cat((holes(env, depth, share=0.1, value=FAR), images["rgb"]), dim=1)

    env = make(prepare, see, "warp")
    env.step(torch.zeros(WORLDS, 1))
    with no_host_synchronisation(monkeypatch):
        for _ in range(3):
            env.step(torch.zeros(WORLDS, 1))


def test_a_camera_is_added_to_a_model_that_has_none() -> None:
    spec = mujoco.MjSpec.from_string(ROOM)
    add_camera(spec, "new", "cart", pos=(0.5, 0.0, 0.0), quat=(0.5, 0.5, -0.5, -0.5), fovy=30.0)
    env = make(lambda env: Camera(env, "new", 4, 4, far=FAR), xml=spec.to_xml())
    assert env.part()["depth"].flatten().tolist() == pytest.approx([2.5] * 16 * WORLDS)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"name": "eey"}, "SeeingEnv: Camera 'eey': no camera 'eey'; the model has: eye."),
        ({"name": None}, "Camera None: no camera None; the model has: eye."),
        ({"width": 0}, "width is 0; it must be a whole number of pixels above 0."),
        ({"kinds": ("depths",)}, r"kinds is \('depths',\); it must be some of \('depth', 'distan"),
        ({"kinds": "depth"}, "kinds is 'depth'; it must be some of"),
        ({"kinds": ()}, r"kinds is \(\); it must be some of"),
        ({"every": 0}, "every is 0; it must be a whole number of steps above 0."),
        ({"near": 2.0, "far": 2.0}, "near is 2.0 and far 2.0; they must be numbers, 0 <= near <"),
        ({"far": math.inf}, "near is 0.2 and far inf;"),
        ({"groups": (4,)}, "no geom to see is in the groups"),
    ],
)
def test_a_camera_that_cannot_be_is_one_message(changed: dict[str, Any], text: str) -> None:
    settings: dict[str, Any] = {"name": "eye", "width": 8, "height": 6, "near": NEAR, "far": FAR}
    with pytest.raises(UserError, match=text):
        make(lambda env: Camera(env, **settings | changed))


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"name": "eye"}, r"add_camera\('eye'\): a camera needs a name of its own."),
        ({"body": "crat"}, r"no body 'crat'; the model has: world, cart."),
        (
            {"pos": (0.0, 1.0)},
            r"pos is \(0.0, 1.0\) and quat \(1.0, .*; they must be three numbers",
        ),
        ({"quat": (0.0, 0.0, 0.0, 0.0)}, "and four, not all of them 0"),
        ({"fovy": 180.0}, "fovy is 180.0; it must be between 0 and 180 degrees."),
    ],
)
def test_a_camera_that_cannot_be_added_is_one_message(changed: dict[str, Any], text: str) -> None:
    settings: dict[str, Any] = {"name": "new"} | changed
    with pytest.raises(UserError, match=text):
        add_camera(mujoco.MjSpec.from_string(ROOM), **settings)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("cam_quat", "eye", "scale", (0.5, 1.0)), 'turns about three axes: use "add" without'),
        (("cam_fovy", "eye", "set", (20.0, 190.0)), "must not be above 179; it is 60 in the mod"),
        (("mat_rgba", "paint", "scale", (0.5, 2.0)), "must not be above 1; it is 1 in the model"),
        (("light_diffuse", "lmap", "scale", (0.5, 1.0)), "'lmap' matches no light of: lamp."),
        (("cam_pos", "eeye", "add", (0.0, 1.0)), "'eeye' matches no camera of: eye."),
    ],
)
def test_what_cannot_be_varied_of_what_is_seen_is_one_message(arguments: Any, text: str) -> None:
    with pytest.raises(UserError, match=text):
        make(lambda env: vary(env, *arguments) or eye(env))


def test_noise_of_depths_grows_with_the_distance_and_keeps_what_is_even() -> None:
    env = make(eye)
    depth = torch.full((WORLDS, 1, 64, 64), 2.0)
    noisy = gaussian_depth(env, depth, constant=0.01, quadratic=0.01)
    assert (noisy - depth).std().item() == pytest.approx(0.05, rel=0.05)
    assert blurred_edges(env, depth, share=1.0, step=0.1).equal(depth)
    depth[..., 32:] = 3.0
    blurred = blurred_edges(env, depth, share=0.5, step=0.1)
    changed = blurred != depth
    assert not changed[..., :31].any()
    assert not changed[..., 32:].any()
    assert changed[..., 31].float().mean().item() == pytest.approx(0.5, abs=0.1)


def test_holes_have_a_value_and_may_be_whole_images() -> None:
    env = make(eye)
    image = torch.ones(WORLDS, 1, 64, 64)
    found = holes(env, image, share=0.25, value=7.0, size=4)
    assert (found == 7.0).float().mean().item() == pytest.approx(0.25, abs=0.05)
    squares = found.view(WORLDS, 16, 4, 16, 4)
    assert (squares == squares[:, :, :1, :, :1]).all()
    with pytest.raises(UserError, match="holes: size is 0; it must be a whole number of pixels"):
        holes(env, image, share=0.25, value=7.0, size=0)
    dropped = [holes(env, image, share=0.5, value=0.0, size=64).flatten(1) for _ in range(20)]
    shares = torch.stack(dropped).float().mean(dim=2)
    assert {*shares.flatten().tolist()} == {0.0, 1.0}
