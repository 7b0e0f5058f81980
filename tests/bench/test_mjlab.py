"""mjlab's installation and driver, with stand-ins for uv and mjlab: it is too large for CI."""

import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from mjfleet.bench import peers
from mjfleet.config import AgentConfig, EnvConfig, TrainConfig, to_dict

from ..conftest import Run

STAND_INS = {
    "rsl_rl/utils/logger.py": """
        class Logger:
            def process_env_step(self, rewards, dones, extras, intrinsic_rewards=None): pass
            def log(self, it, collect_time, learn_time, **others): pass
    """,
    "rsl_rl/modules/distribution.py": """
        class GaussianDistribution:
            def __init__(self, output_dim, init_std=1.0): pass
    """,
    "mjlab/rl.py": """
        from rsl_rl.utils.logger import Logger

        class MjlabOnPolicyRunner:
            def __init__(self):
                self.logger = Logger()
    """,
    "mjlab/tasks/registry.py": """
        from dataclasses import dataclass, field
        from types import SimpleNamespace as Space

        @dataclass
        class Network:
            hidden_dims: tuple = ()
            class_name: str = "MLPModel"
            distribution_cfg: dict | None = None
        @dataclass
        class Algorithm:
            gamma: float = 0.5
        @dataclass
        class Agent:
            actor: Network = field(default_factory=Network)
            critic: Network = field(default_factory=Network)
            algorithm: Algorithm = field(default_factory=Algorithm)

        TASKS = {}

        def load_env_cfg(task):
            assert task == "Mjlab-Cartpole-Balance"
            mujoco = Space(timestep=0.02, integrator="euler")
            return Space(decimation=5, episode_length_s=50.0, scale_rewards_by_dt=True,
                         sim=Space(mujoco=mujoco), scene=Space(num_envs=1),
                         rewards={"smooth_reward": Space(func=None)})
        def load_rl_cfg(task):
            return Agent()
        def load_runner_cls(task):
            return None
        def register_mjlab_task(task, env, play_env_cfg, rl_cfg, runner_cls):
            TASKS[task] = env, rl_cfg, runner_cls
    """,
    "mjlab/scripts/train.py": """
        import sys
        from types import SimpleNamespace as Space
        import torch
        from mjlab.tasks.registry import TASKS

        class Reward(float):
            def mean(self): return self

        def main():
            task, *flags = sys.argv[1:]
            assert flags == ["--log-root", "logs", "--gpu-ids", "None"]
            env, agent, runner = TASKS[task]
            assert env.scene.num_envs == 7 and env.sim.mujoco.timestep == 0.01
            assert agent.algorithm.gamma == 0.99
            assert agent.actor.hidden_dims == [256, 128, 64]
            assert "init_std" in agent.actor.distribution_cfg
            reward = env.rewards["smooth_reward"].func
            state = Space(joint_pos=torch.zeros(2, 2), joint_vel=torch.zeros(2, 2))
            world = Space(scene={"cartpole": Space(data=state)},
                          action_manager=Space(action=torch.tensor([[0.0], [1.0]])))
            slider, hinge = (Space(name="cartpole", joint_ids=[joint]) for joint in (0, 1))
            torch.testing.assert_close(reward(world, slider, hinge), torch.tensor([1.0, 0.8]))
            print("chatter")
            logger = runner().logger
            for it in range(agent.max_iterations):
                for reward in (1.0, 2.0):
                    logger.process_env_step(Reward(reward + it), None, None)
                logger.log(it=it, collect_time=0.25, learn_time=0.5)
    """,
}


@pytest.mark.slow
def test_the_driver_gives_our_settings_and_tells_each_iteration(tmp_path: Path) -> None:
    for name, text in STAND_INS.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        for package in list(path.parents)[: name.count("/")]:
            (package / "__init__.py").touch()  # Else the rsl_rl that is installed would win.
    config = TrainConfig(
        env=EnvConfig(num_envs=7, decimation=5, episode_seconds=50.0),
        agent=AgentConfig(max_iterations=2),
    )
    request = {
        "worker": {"config": to_dict(config), "devices": ["cpu"], "run_dir": "logs"},
        "peer_task": {"name": "Mjlab-Cartpole-Balance", "timestep": 0.01, "integrator": "euler"},
        "records_rewards": True,
    }
    driver = Path(peers.__file__).with_name("peer_driver.py")
    result = subprocess.run(
        [sys.executable, driver, json.dumps(request)],
        check=False, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    notes, *iterations = [json.loads(line) for line in result.stdout.splitlines()]
    assert "its timestep was set from 0.02 to 0.01, as ours" in notes["notes"]
    assert any("algorithm.desired_kl" in note for note in notes["notes"])
    assert not any("decimation" in note for note in notes["notes"])
    assert iterations == [
        {"iteration": n, "collect_seconds": 0.25, "learn_seconds": 0.5, "mean_reward": n + 0.5}
        for n in (1, 2)
    ]


@pytest.mark.parametrize("there", [False, True])
def test_an_installation_that_fails_is_told_and_leaves_nothing(
    run: Run, tmp_path: Path, there: bool
) -> None:
    programs, cache = tmp_path / "bin", tmp_path / "cache"
    programs.mkdir()
    if there:
        uv = programs / "uv"
        text = '#!/bin/sh\nfor last; do :; done\n[ $1 = venv ] && exec mkdir "$last"\n'
        uv.write_text(f"{text}echo no network >&2\nexit 1\n")
        uv.chmod(0o755)
        (programs / "mkdir").symlink_to(shutil.which("mkdir") or "/bin/mkdir")
    result = run(
        "mjfleet", "bench", "peer", "mjlab", "--gpu-ids", "None",
        PATH=str(programs), XDG_CACHE_HOME=str(cache),
    )  # fmt: skip
    assert result.returncode == (1 if there else 2)
    assert ("no network" if there else "`pip install uv`") in result.stderr
    assert not [path for path in cache.rglob("*") if "mjlab" in path.name]
    assert not (tmp_path / "benchmarks").exists()
