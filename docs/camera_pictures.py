"""Draws docs/images/camera-*.png, kinds of images: `python docs/camera_pictures.py`."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mujoco
import torch
from PIL import Image

from mjfleet.parts.camera import Camera, Kind, add_camera
from mjfleet.sim import make_simulation

KINDS: tuple[Kind, ...] = "depth", "rgb", "segmentation"
SCENE = """<mujoco>
<asset>
  <texture name="tiles" type="2d" builtin="checker" rgb1=".8 .8 .8" rgb2=".5 .5 .6" width="64"
           height="64"/>
  <material name="tiled" texture="tiles" texrepeat="4 4" texuniform="true"/>
</asset>
<worldbody>
  <light pos="1 -2 4" dir="-.2 .4 -1"/>
  <geom type="plane" size="0 0 1" material="tiled"/>
  <geom type="box" size=".3 .2 .4" pos="-.6 .2 .4" euler="0 0 30" rgba=".8 .2 .2 1"/>
  <geom size=".35" pos=".3 -.2 .35" rgba=".2 .6 .3 1"/>
  <geom type="cylinder" size=".25 .6" pos=".9 1 .6" rgba=".2 .3 .8 1"/>
</worldbody></mujoco>"""


def main() -> None:
    """Render a scene once for each kind, and write what `Camera.pictures` makes of it."""
    spec = mujoco.MjSpec.from_string(SCENE)
    turn = (0.836, 0.549, 0.0, 0.0)  # 66 degrees about x, from looking down.
    add_camera(spec, "eye", pos=(0.0, -2.6, 1.7), quat=turn, fovy=55.0)
    sim = make_simulation("native", spec.compile(), 1)
    env: Any = SimpleNamespace(sim=sim, device=torch.device("cpu"), policy_cameras=[])
    for kind in KINDS:
        camera = Camera(env, "eye", 160, 120, (kind,), far=6.0)
        picture = Image.fromarray(camera.pictures()[0].numpy()).resize((240, 180), 0)
        picture.save(Path(__file__).parent / f"images/camera-{kind}.png", optimize=True)


if __name__ == "__main__":
    main()
