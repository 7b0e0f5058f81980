"""Cart-pole balance and swing-up of dm_control/suite/cartpole.py, at a fifth of its rate."""

import math
from typing import Any, ClassVar

import mujoco
import torch

from mjfleet.env import Env, History
from mjfleet.parts import Camera, add_camera

from .config import CartpoleConfig

NEAR, FAR = 1.6, 2.4
"""What is seen in depth, m: cart and pole are 2 m before the camera."""
SIZE = 32
"""Width and height of an image, pixels."""


class CartpoleEnv(Env[CartpoleConfig]):
    """A pole on a cart; one action in [-1, 1] pushes the cart with up to 10 N."""

    model_file: ClassVar[str] = "cartpole.xml"

    def reset_worlds(self, mask: torch.Tensor) -> None:
        """Draw states as the suite does: positions in m and rad, velocities in m/s and rad/s."""
        if self.cfg.swing_up:
            start = self.normal(2, 0.01)
            start[:, 1].add_(math.pi)
        else:
            start = torch.cat((self.uniform(1, -0.1, 0.1), self.uniform(1, -0.034, 0.034)), dim=1)
        self.write(mask, self.sim.qpos, start)
        self.write(mask, self.sim.qvel, self.normal(2, 0.01))

    def apply(self, action: torch.Tensor) -> None:
        self.sim.ctrl[:] = action.clamp(-1.0, 1.0)

    def observe(self) -> dict[str, torch.Tensor]:
        """Cart position (m), cosine and sine of the pole's angle, both speeds (m/s, rad/s)."""
        cart, angle = self.sim.qpos.split(1, dim=1)
        state = torch.cat((cart, angle.cos(), angle.sin(), self.sim.qvel), dim=1)
        return {"actor": state, "critic": state}

    def rewards(self) -> dict[str, torch.Tensor]:
        """The suite's smooth reward, a product of four factors, at most 1 a step."""
        cart, angle = self.sim.qpos.unbind(dim=1)
        upright = 1 + angle.cos()
        centered = 1 + gaussian(cart, margin=2.0)
        small_velocity = 1 + gaussian(self.sim.qvel[:, 1], margin=5.0)
        small_control = 5 - self.sim.ctrl[:, 0].square()
        return {"balance": upright * centered * small_velocity * small_control / 40}

    def deployment(self) -> dict[str, Any]:
        """Return what a robot's program must know: what it observes and what an action means."""
        parts = [
            {"name": "cart", "size": 1, "unit": "m", "meaning": "position on the rail"},
            {"name": "cosine", "size": 1, "meaning": "of the pole's angle, 0 when upright"},
            {"name": "sine", "size": 1},
            {"name": "cart_speed", "size": 1, "unit": "m/s"},
            {"name": "pole_speed", "size": 1, "unit": "rad/s"},
        ]
        return {"observations": {"actor": parts}, "force": "gear * action, within [-1, 1], in N"}


class CartpoleDepthEnv(CartpoleEnv):
    """The same cart-pole, of which no position and no speed is known but what images show."""

    @classmethod
    def make_model(cls, cfg: CartpoleConfig) -> mujoco.MjModel:
        spec = mujoco.MjSpec.from_file(str(cls.model_path()))
        level = (math.sqrt(0.5), math.sqrt(0.5), 0.0, 0.0)
        add_camera(spec, "eye", pos=(0.0, -2.0, 1.4), quat=level, fovy=60.0)
        return spec.compile()

    def setup(self) -> None:
        self.camera = Camera(self, "eye", SIZE, SIZE, near=NEAR, far=FAR)
        self.seen = History(self, (1, SIZE, SIZE), 2)

    def observe(self) -> dict[str, torch.Tensor]:
        """The depths of this step and of the step before, `(num_envs, 2, SIZE, SIZE)`, from 0 for
        what is farther than cart and pole to 1."""
        depth = self.camera()["depth"]
        images = self.seen((FAR - depth) / (FAR - NEAR))
        return {"actor": images, "critic": images}

    def deployment(self) -> dict[str, Any]:
        """Return what a robot's program must know: how images become numbers."""
        image = f"({FAR} - depth) / ({FAR} - {NEAR}), depth in m; before, now"
        return {"image": image, "force": "gear * action, within [-1, 1], in N"}


def gaussian(x: torch.Tensor, margin: float) -> torch.Tensor:
    """1 at zero, 0.1 at `margin`: dm_control's `rewards.tolerance` with its default sigmoid."""
    return torch.exp(math.log(0.1) / margin**2 * x.square())
