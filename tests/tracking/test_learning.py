"""A planar robot of three joints learns to do what a clip shows, better than PD control does."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
import torch

from mjfleet.config import DistributionConfig, PPOConfig, SamplingConfig
from mjfleet.env import EnvShard
from mjfleet.env.random_numbers import seed_everything
from mjfleet.parts.motion.clips import Clip, Robot
from mjfleet.rl.evaluation.evaluator import Evaluator
from mjfleet.rl.runner import Runner
from mjfleet.tracking.config import AGENT, RandomConfig, TrackingConfig
from mjfleet.tracking.tracking_env import TrackingEnv

from ..sim.test_contract import build as simulate

LINK = """
<body name="{name}" pos="0 0 {below}"><joint name="{name}" axis="0 1 0"/>
  <geom type="capsule" fromto="0 0 0 0 0 -0.3" size="0.03" mass="1" contype="0"/>{inner}</body>"""
MOTOR = '<position joint="{}" kp="20" kv="2" forcerange="-12 12"/>'
LINKS = ("upper", "middle", "lower")
CONFIG = TrackingConfig(
    num_envs=256,
    decimation=2,
    episode_seconds=4.0,
    anchor="base",
    bodies=("base", *LINKS),
    end_bodies=("lower",),
    action_scale=1.0,
    random=RandomConfig(center_of_mass=(0, 0, 0), pushes=False),
)
SMALL = {"hidden_dims": (64, 64), "obs_normalization": True}
LEARNER = replace(
    AGENT,
    actor=replace(AGENT.actor, **SMALL, distribution=DistributionConfig(init_std=1.0)),
    critic=replace(AGENT.critic, **SMALL),
    algorithm=PPOConfig(entropy_coef=0.005),
)
SETTLING_FRAMES = 100  # Until it swings evenly.
EASY_SECONDS = 60


def robot(folder: Path) -> Path:
    inner = ""
    for name in reversed(LINKS):
        inner = LINK.format(name=name, below=0.0 if name == "upper" else -0.3, inner=inner)
    motors = "".join(map(MOTOR.format, LINKS))
    text = f"""<mujoco><option timestep="0.01" integrator="implicitfast"/><worldbody>
    <body name="base" pos="0 0 1"><geom size="0.05" contype="0"/>{inner}</body></worldbody>
    <actuator>{motors}</actuator></mujoco>"""
    path = folder / "planar.xml"
    path.write_text(text)
    return path


def feasible(
    path: Path, file: Path, seconds: float, targets: Callable[[float], np.ndarray | float]
) -> None:
    """Write what the robot does when its targets move: a motion that its motors can make."""
    model = mujoco.MjModel.from_xml_path(str(path))
    data, frames = mujoco.MjData(model), []
    for i in range(round(50 * seconds) + 1):
        frames.append(data.qpos.copy())
        data.ctrl[:] = targets(i / 50)
        mujoco.mj_step(model, data, 2)
    qpos = torch.from_numpy(np.array(frames[SETTLING_FRAMES:]))
    Clip(file.stem, 50.0, Robot(model).joints, qpos).write(file)


def swings(seconds: float) -> np.ndarray:
    """Targets that swing evenly, each at its own rate."""
    return np.sin(np.array((3.0, 4.5, 6.0)) * seconds)


def swings_once(seconds: float) -> np.ndarray | float:
    """Targets at rest but for one second, after EASY_SECONDS."""
    since = seconds - EASY_SECONDS - SETTLING_FRAMES / 50
    return np.sin(2 * np.pi * np.array((1.0, 1.0, 2.0)) * since) if 0 <= since < 1 else 0.0


class Reference:
    """Targets where the clip is: PD control alone."""

    def __init__(self, env: Any) -> None:
        self.env = env

    def __call__(self, _: Any) -> torch.Tensor:
        wanted = self.env.motion.now().qpos[:, self.env.motors.places]
        return (wanted - self.env.home) / self.env.action_scale

    def reset(self, *_: Any, **__: Any) -> None: ...

    def get_hidden_state(self) -> None: ...


def setting(
    folder: Path, seconds: float, targets: Callable[[float], np.ndarray | float]
) -> Callable[..., Any]:
    """Return a function that builds the task, whose clip has so many seconds."""
    path = robot(folder)
    feasible(path, folder / "swing.npz", seconds, targets)
    kind = type("PlanarEnv", (TrackingEnv,), {"model_file": str(path)})
    cfg = replace(CONFIG, clips=(str(folder / "swing.npz"),))

    def build(num_envs: int, shard: EnvShard | None = None, **fields: Any) -> Any:
        own = replace(cfg, num_envs=num_envs, **fields)
        return kind(own, simulate("native", kind.make_model(own), num_envs), 1, shard)

    return build


def trained(env: Any, iterations: int, seed: int) -> Runner:
    """Return the runner that has trained in these environments."""
    seed_everything(seed)
    agent = replace(LEARNER, max_iterations=iterations, seed=seed)
    runner = Runner(env, agent, "cpu", 1, lambda *_: None)
    runner.train(lambda row: None, lambda: None)
    return runner


def reward_of_the_hard_second(build: Callable[..., Any], policy: Any) -> float:
    """Return the mean reward from just before the hard second until its end or a failure."""
    env = build(32, episode_seconds=1.0)
    env.motion.frame.fill_(50 * EASY_SECONDS - 5)
    env.reset_worlds(torch.ones(32, dtype=torch.bool))
    env.sim.forward()
    alive, total = torch.ones(32), torch.zeros(32)
    with torch.inference_mode():
        for _ in range(49):
            _, rewards, dones, _ = env.step(policy(env.get_observations()))
            total += rewards * alive
            alive *= ~dones.bool()
    return float(total.mean())


@pytest.mark.slow
def test_starts_where_episodes_fail_teach_one_hard_second_of_a_minute_sooner(
    tmp_path: Path,
) -> None:
    build = setting(tmp_path, EASY_SECONDS + 5.0, swings_once)
    for seed in (1, 2, 3):
        found = {}
        for kind in ("adaptive", "uniform"):
            env = build(128, episode_seconds=1.0, sampling=SamplingConfig(kind=kind))
            policy = trained(env, 36, seed).alg.actor
            found[kind] = reward_of_the_hard_second(build, policy)
        assert found["adaptive"] > 1.2 * found["uniform"], (seed, found)


@pytest.mark.slow
def test_a_planar_robot_follows_a_clip_better_than_pd_control(tmp_path: Path) -> None:
    build = setting(tmp_path, 6.0, swings)
    runner = trained(build(256), 150, seed=1)
    errors = {}
    evaluated = build(4, EnvShard(0, 4, 4))
    for name, policy in (("learned", runner.alg.actor), ("pd", Reference(evaluated))):
        sums = Evaluator(evaluated, 1).evaluate(policy, lambda: None)
        errors[name] = {k: sums[f"clip/swing/{k}"] for k in ("joint_error", "success")}
        evaluated = build(4, EnvShard(0, 4, 4))
    means = {
        name: found["joint_error"][0] / found["joint_error"][1] for name, found in errors.items()
    }
    assert errors["learned"]["success"] == (4.0, 4.0)
    assert means["learned"] < 0.5 * means["pd"]
