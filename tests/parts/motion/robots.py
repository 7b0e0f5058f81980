"""A robot whose bodies have another order breadth-first, an analytic motion of it, and a task."""

from pathlib import Path
from typing import Any, ClassVar

import mujoco
import numpy as np
import torch

from mjfleet.config import EnvConfig, SamplingConfig
from mjfleet.env import EnvShard
from mjfleet.parts import Motion
from mjfleet.parts.motion.clips import Clip, Robot
from mjfleet.quaternions import multiply

from ...env.test_env import PlainEnv
from ...sim.test_contract import build as simulate

STEP = 0.02
XML = """
<mujoco>
  <option timestep="0.01" integrator="implicitfast"/>
  <worldbody>
    <geom name="floor" type="plane" size="9 9 0.1" contype="0" conaffinity="0"/>
    <body name="trunk" pos="0 0 1">
      <freejoint name="base"/>
      <geom size="0.1" mass="2" contype="0" conaffinity="0"/>
      <body name="left_upper" pos="0 0.2 0">
        <joint name="left_hip" axis="0 1 0"/>
        <geom type="capsule" fromto="0 0 0 0 0 -0.3" size="0.03" mass="0.5" contype="0"/>
        <body name="left_lower" pos="0 0 -0.3">
          <joint name="left_knee" axis="0 1 0"/>
          <geom type="capsule" fromto="0 0 0 0 0.1 -0.3" size="0.03" mass="0.3" contype="0"/>
        </body>
      </body>
      <body name="right_upper" pos="0 -0.2 0">
        <joint name="right_hip" axis="1 0 0"/>
        <geom type="capsule" fromto="0 0 0 0 0 -0.3" size="0.03" mass="0.5" contype="0"/>
      </body>
    </body>
  </worldbody>
  <actuator>
    <position joint="left_hip" kp="20" kv="1"/>
    <position joint="left_knee" kp="20" kv="1"/>
    <position joint="right_hip" kp="20" kv="1"/>
  </actuator>
</mujoco>
"""
BODIES = "trunk", "left_lower", "right_upper"
MODEL = mujoco.MjModel.from_xml_string(XML)


def positions(times: np.ndarray) -> np.ndarray:
    """A robot that moves ahead, turns about two axes at once, and swings its legs."""
    yaw, roll = 0.7 * times, np.sin(2 * times)
    zero = 0 * times
    turns = torch.from_numpy(np.stack((np.cos(yaw / 2), zero, zero, np.sin(yaw / 2)), axis=1))
    tilts = torch.from_numpy(np.stack((np.cos(roll / 2), np.sin(roll / 2), zero, zero), axis=1))
    ahead = np.stack((0.5 * times, 0.1 * np.sin(times), 1 + zero), axis=1)
    legs = np.stack((np.sin(times), 0.5 * np.cos(2 * times), 0.3 * np.sin(1.5 * times)), axis=1)
    return np.concatenate((ahead, multiply(turns, tilts).numpy(), legs), axis=1)


def moving(seconds: float = 3.0, rate: float = 50.0) -> Clip:
    frames = positions(np.arange(round(seconds * rate) + 1) / rate)
    return Clip("moving", rate, Robot(MODEL).joints, torch.from_numpy(frames))


def write(folder: Path, name: str = "moving", **numbers: float) -> str:
    """Write our own format; return the file's name."""
    path = folder / f"{name}.npz"
    moving(**numbers).write(path)
    return str(path)


class FollowingEnv(PlainEnv):
    """Fails where `failing` says so, and ends with its clip."""

    clips: Any = ()
    options: ClassVar[Any] = {}

    @classmethod
    def make_model(cls, cfg: EnvConfig) -> mujoco.MjModel:
        return mujoco.MjModel.from_xml_string(XML)

    def setup(self) -> None:
        self.motion = Motion(self, self.clips, BODIES, **self.options)
        self.failing = torch.zeros(self.num_envs, dtype=torch.bool, device=self.device)
        self.seen = self.add_state("seen", dtype=torch.long, reset="keep", persistent=False)
        self.cache("failing")

    def reset_worlds(self, mask: torch.Tensor) -> None:
        frame = self.motion.now()
        self.write(mask, self.sim.qpos, frame.qpos)
        self.write(mask, self.sim.qvel, frame.qvel)

    def after_physics(self) -> None:
        self.seen.copy_(self.motion.frame)

    def terminated(self) -> torch.Tensor:
        return self.failing.clone()

    def truncated(self) -> torch.Tensor:
        return self.motion.ended


def build(
    clips: list[str], engine: str = "native", num_envs: int = 4, shard: EnvShard | None = None,
    sampling: SamplingConfig | None = None,
) -> Any:  # fmt: skip
    """Build the task with these clips and arguments of Motion."""
    kind = type(
        "OneFollowingEnv", (FollowingEnv,), {"clips": clips, "options": {"sampling": sampling}}
    )
    cfg = EnvConfig(num_envs=num_envs, decimation=2, episode_seconds=100.0)
    return kind(cfg, simulate(engine, kind.make_model(cfg), num_envs), 1, shard)


def step(env: Any, count: int = 1) -> None:
    for _ in range(count):
        env.step(torch.zeros(env.num_envs, 3, device=env.device))
