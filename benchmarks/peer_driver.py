"""Trains by mjlab's own command `train`, or our environment by rsl_rl's stock runner and PPO.

    <Python> peer_driver.py <request as JSON>

Runs in a child process; for mjlab by the Python of mjlab's own environment, which lacks mjfleet.
"""

import inspect
import json
import os
import sys
from collections.abc import Callable
from ctypes.util import find_library
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

Write = Callable[[dict[str, Any]], object]


def take_output() -> Write:
    """Return a function that prints lines of JSON to standard output; nothing else does then."""
    output = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return lambda values: os.write(output, json.dumps(values).encode() + b"\n")


def follow(logger: Any, write: Write) -> None:
    """Print a line, with the mean reward of its steps, whenever a runner's logger has logged an
    iteration."""
    log, process = logger.log, logger.process_env_step
    rewards: list[Any] = []

    def process_env_step(reward: Any, *others: Any) -> None:
        rewards.append(reward.mean())
        process(reward, *others)

    def log_and_print(**values: Any) -> None:
        log(**values)
        times = {f"{part}_seconds": values[f"{part}_time"] for part in ("collect", "learn")}
        mean = {"mean_reward": float(sum(rewards) / len(rewards))}
        rewards.clear()
        write({"iteration": values["it"] + 1} | times | mean)

    logger.log, logger.process_env_step = log_and_print, process_env_step


def train_rsl_rl(worker: dict[str, Any], write: Write) -> None:
    """Train our environment by rsl_rl's stock runner."""
    from rsl_rl.runners import OnPolicyRunner

    import mjfleet
    from mjfleet.config import from_dict
    from mjfleet.env.random_numbers import seed_everything
    from mjfleet.registry import find_task
    from mjfleet.rl.networks import rsl_rl_config
    from mjfleet.worker.torch_settings import apply_settings

    found, device = find_task(worker["task"], Path(worker["task_folder"])), worker["devices"][0]
    config = from_dict(found.defaults(), worker["config"])
    agent, place = config.agent, {"device": device, "tasks_dir": config.tasks_dir}
    apply_settings(config)
    seed_everything(agent.seed)
    with mjfleet.make(found.name, config=worker["config"], **place) as env:
        settings = rsl_rl_config(agent, found.load) | {"logger": "tensorboard"}
        runner = OnPolicyRunner(env, settings, log_dir=worker["run_dir"], device=device)
        write({"lacks": []})
        follow(runner.logger, write)
        runner.learn(agent.max_iterations, agent.init_at_random_ep_len)


def train_mjlab(worker: dict[str, Any], peer_task: dict[str, Any], write: Write) -> None:
    """Train a task of mjlab's with our settings, as its command line does.

    The task with our settings is registered as one more of mjlab's tasks.
    """
    if not find_library("EGL"):
        os.environ.setdefault("MUJOCO_GL", "disabled")  # mjlab would choose EGL.
    device = ["--gpu-ids", "None"]
    if gpu := worker["devices"][0].partition(":")[2]:  # mjlab takes the first that is visible.
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        os.environ["CUDA_VISIBLE_DEVICES"] = visible.split(",")[int(gpu)] if visible else gpu
        device = []
    import_module("mjlab.tasks")  # Registers mjlab's tasks.
    registry, train = import_module("mjlab.tasks.registry"), import_module("mjlab.scripts.train")
    name = peer_task["name"]
    env, agent = registry.load_env_cfg(name), registry.load_rl_cfg(name)
    kind: Any = registry.load_runner_cls(name) or import_module("mjlab.rl").MjlabOnPolicyRunner

    class FollowedRunner(kind):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            follow(self.logger, write)

    config, ours = worker["config"], f"{name}-mjfleet"
    _set_env(env, config["env"], peer_task)
    if clip := peer_task.get("clip"):
        motion = Path(worker["run_dir"], "motion.npz")
        write_motion(env.scene.entities["robot"].spec_fn().compile(), Path(clip), motion)
        env.commands["motion"].motion_file = str(motion)
    write({"lacks": _set_agent(agent, config["agent"])})
    settings = {"play_env_cfg": env, "rl_cfg": agent, "runner_cls": FollowedRunner}
    registry.register_mjlab_task(ours, env, **settings)
    sys.argv = ["train", ours, "--log-root", worker["run_dir"], *device]
    train.main()


def write_motion(model: Any, clip: Path, output: Path) -> None:
    """Write a clip of ours as mjlab reads it: joints and bodies of its own `model`."""
    import mujoco
    import numpy as np

    with np.load(clip) as arrays:
        rate, names = float(arrays["rate"]), arrays["joints"].tolist()
        qpos = arrays["qpos"].astype(float)
    order = [7 + names.index(model.joint(i).name) for i in range(1, model.njnt)]
    qpos, data = np.concatenate((qpos[:, :7], qpos[:, order]), axis=1), mujoco.MjData(model)
    places, turns, speeds = (np.zeros((len(qpos), model.nbody - 1, n)) for n in (3, 4, 6))
    qvel = np.zeros((len(qpos), model.nv))
    for i, row in enumerate(qpos):
        before, after = max(i - 1, 0), min(i + 1, len(qpos) - 1)
        seconds = (after - before) / rate
        mujoco.mj_differentiatePos(model, qvel[i], seconds, qpos[before], qpos[after])
        data.qpos[:], data.qvel[:] = row, qvel[i]
        mujoco.mj_forward(model, data)
        places[i], turns[i] = data.xpos[1:], data.xquat[1:]
        for body, speed in enumerate(speeds[i], start=1):
            kind = mujoco.mjtObj.mjOBJ_XBODY
            mujoco.mj_objectVelocity(model, data, kind, body, speed, 0)
    np.savez(
        output, fps=[rate], joint_pos=qpos[:, 7:], joint_vel=qvel[:, 6:], body_pos_w=places,
        body_quat_w=turns, body_lin_vel_w=speeds[:, :, 3:], body_ang_vel_w=speeds[:, :, :3],
    )  # fmt: skip


def like_dm_control(theirs: Callable[..., Any]) -> Callable[..., Any]:
    """Return mjlab's reward for the cart-pole, `theirs`, as dm_control and we have it.

    mjlab's differs in that control at its limit earns 0.1 of what no control earns.
    """

    def reward(env: Any, cart_cfg: Any, hinge_cfg: Any) -> Any:
        control = env.action_manager.action.squeeze(-1).square()
        ours, own = (4 + (1 - share * control).clamp(min=0.0) for share in (1.0, 0.9))
        return theirs(env, cart_cfg, hinge_cfg) * ours / own

    return reward


def _set_env(env: Any, ours: dict[str, Any], peer_task: dict[str, Any]) -> None:
    """Make mjlab's environment like ours."""
    env.decimation, env.episode_length_s = ours["decimation"], ours["episode_seconds"]
    env.sim.mujoco.timestep = peer_task["timestep"]
    env.sim.mujoco.integrator = peer_task["integrator"]
    if "smooth_reward" in env.rewards:
        env.rewards["smooth_reward"].func = like_dm_control(env.rewards["smooth_reward"].func)
        env.scale_rewards_by_dt = False
    env.scene.num_envs = ours["num_envs"]


def _set_agent(agent: Any, ours: dict[str, Any]) -> list[str]:
    """Give mjlab's runner, networks and PPO our settings; returns which of them it lacks."""
    from rsl_rl.modules import distribution as distributions

    lacks = []
    for name in ("seed", "num_steps_per_env", "max_iterations", "save_interval"):
        setattr(agent, name, ours[name])
    agent.logger, agent.upload_model = "tensorboard", False
    agent.obs_groups = {name: tuple(ours["obs_groups"][name]) for name in ("actor", "critic")}
    for part in ("actor", "critic", "algorithm"):
        known = {field.name for field in fields(getattr(agent, part))}
        settings = dict(ours[part])
        if distribution := settings.pop("distribution", None):
            kind = getattr(distributions, distribution["class_name"])
            accepted = {"class_name", *inspect.signature(kind).parameters}
            missing = [name for name in distribution if name not in accepted]
            lacks += [f"Its action distribution has no {name}." for name in missing]
            settings["distribution_cfg"] = {k: v for k, v in distribution.items() if k in accepted}
        for name, value in settings.items():
            if settings.get("class_name") == "MLPModel" and name.startswith("rnn_"):
                continue
            if name in known:
                setattr(getattr(agent, part), name, value)
            elif value:
                lacks.append(f"It has no setting {part}.{name}, ours is {value!r}.")
    return lacks


def main(request: dict[str, Any]) -> None:
    """Train; print a line of JSON with the settings that mjlab lacks, and one for each iteration.

    The request holds `worker` (the WorkerArgs of our own training) and `peer_task` (for mjlab its
    `name` of the task, our `timestep` in s and `integrator`, and the `clip` that robots follow).
    """
    write = take_output()
    if request["peer_task"]:
        train_mjlab(request["worker"], request["peer_task"], write)
    else:
        train_rsl_rl(request["worker"], write)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
