"""Trains by mjlab's own command `train`, or our environment by rsl_rl's stock runner and PPO.

    <Python> peer_driver.py <request as JSON>

Runs in a child process; for mjlab by the Python of mjlab's own environment, where there is no
mjfleet. It prints lines of JSON: for mjlab what could not be made the same, then each iteration.
"""

import inspect
import json
import os
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any


def main(request: dict[str, Any]) -> None:
    """Train.

    The request holds `records_rewards`: whether lines hold the mean reward. For rsl_rl:
        worker: the WorkerArgs.
    For mjlab:
        task: mjlab's name of it.
        num_envs, decimation, episode_seconds, timestep (s), integrator: of the environment.
        agent: our configuration of the agent.
        gpu: index of a GPU, or null for the CPU.
        log_root: folder for its runs.
    """
    lines = IterationLines()
    from rsl_rl.utils.logger import Logger

    lines.follow(Logger, request["records_rewards"])
    if "worker" in request:
        train_rsl_rl(request["worker"])
    else:
        train_mjlab(request, lines)


class IterationLines:
    """Prints a line for each iteration, after rsl_rl's own report."""

    def __init__(self) -> None:
        """Keep standard output for these lines; nobody reads what else is printed there."""
        self._output = os.dup(1)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)

    def write(self, values: dict[str, Any]) -> None:
        """Print a line."""
        os.write(self._output, json.dumps(values).encode() + b"\n")

    def follow(self, logger: Any, records_rewards: bool) -> None:
        """Print a line for each iteration that rsl_rl's class `Logger` logs.

        Recording the mean reward of the iteration's steps costs a mean for each step.
        """
        log, process = logger.log, logger.process_env_step
        rewards: list[Any] = []

        def process_env_step(self_: Any, reward: Any, *args: Any, **kwargs: Any) -> None:
            rewards.append(reward.mean())
            process(self_, reward, *args, **kwargs)

        def log_and_print(self_: Any, **values: Any) -> None:
            log(self_, **values)
            line = {
                "iteration": values["it"] + 1,
                "collect_seconds": values["collect_time"],
                "learn_seconds": values["learn_time"],
            }
            if rewards:
                line["mean_reward"] = float(sum(rewards) / len(rewards))
                rewards.clear()
            self.write(line)

        logger.log = log_and_print
        if records_rewards:
            logger.process_env_step = process_env_step


def train_rsl_rl(worker: dict[str, Any]) -> None:
    """Train our environment by rsl_rl's stock runner."""
    from rsl_rl.runners import OnPolicyRunner

    from mjfleet.config import from_dict
    from mjfleet.env.factory import build_env, on_device
    from mjfleet.registry import find_task
    from mjfleet.rl.adapters.rsl_rl_adapter import rsl_rl_config
    from mjfleet.rl.checkpoint_files import seed_everything
    from mjfleet.worker.worker_args import WorkerArgs

    args = WorkerArgs(**worker)
    found = find_task(args.task, Path(args.task_folder))
    config = from_dict(found.defaults(), args.config)
    device = args.devices[0]
    seed_everything(config.agent.seed)
    with on_device(args.engine, device):
        env = build_env(found, config, args.engine, device, args.threads)
        settings = rsl_rl_config(config.agent, found.load) | {"logger": "tensorboard"}
        runner = OnPolicyRunner(env, settings, log_dir=args.run_dir, device=device)
        runner.learn(config.agent.max_iterations, config.agent.init_at_random_ep_len)


def train_mjlab(request: dict[str, Any], lines: IterationLines) -> None:
    """Train a task of mjlab's with the request's settings, as its command line does."""
    from mjlab.scripts import train  # pyright: ignore[reportMissingImports]

    defaults = train.TrainConfig.from_task
    notes = _set_reward() if "Cartpole" in request["task"] else []

    def from_task(task: str) -> Any:
        """Return the configuration that its command line starts from, with our settings."""
        config = defaults(task)
        notes.extend(_set_env(config.env, request))
        notes.extend(_set_agent(config.agent, request["agent"]))
        gpu = request["gpu"]
        lines.write({"notes": notes})
        return replace(config, log_root=request["log_root"], gpu_ids=None if gpu is None else [gpu])

    train.TrainConfig.from_task = staticmethod(from_task)
    sys.argv = ["train", request["task"]]
    train.main()


def _set_reward() -> list[str]:
    """Make cart-pole's reward ours; returns what was changed."""
    from mjlab.tasks.cartpole import (  # pyright: ignore[reportMissingImports]
        cartpole_env_cfg as cartpole,
    )

    cartpole._QUADRATIC_SCALE = 1.0
    return [
        "its reward for small controls, which is 0.1 at full control, was set to 0 there, as ours "
        "and as in the suite"
    ]


def _set_env(env: Any, request: dict[str, Any]) -> list[str]:
    """Make the environment like ours as far as its configuration goes; returns what was changed."""
    mujoco = env.sim.mujoco
    wanted = [
        (env, "decimation", request["decimation"]),
        (env, "episode_length_s", request["episode_seconds"]),
        (mujoco, "timestep", request["timestep"]),
        (mujoco, "integrator", request["integrator"]),
    ]
    if "Cartpole" in request["task"]:
        wanted.append((env, "scale_rewards_by_dt", False))
    changed = []
    for owner, name, value in wanted:
        if (own := getattr(owner, name)) != value:
            changed.append(f"its {name} was set from {own!r} to {value!r}, as ours")
            setattr(owner, name, value)
    env.scene.num_envs = request["num_envs"]
    return changed


def _set_agent(config: Any, agent: dict[str, Any]) -> list[str]:
    """Give it our settings of runner, networks and PPO; returns which of them it lacks."""
    from rsl_rl.modules import distribution as distributions

    unknown = []
    for name in ("seed", "num_steps_per_env", "max_iterations", "save_interval"):
        setattr(config, name, agent[name])
    config.logger, config.upload_model = "tensorboard", False
    config.obs_groups = {name: tuple(agent["obs_groups"][name]) for name in ("actor", "critic")}
    for part in ("actor", "critic", "algorithm"):
        known = {field.name for field in fields(getattr(config, part))}
        settings = dict(agent[part])
        if distribution := settings.pop("distribution", None):
            kind = getattr(distributions, distribution["class_name"])
            accepted = {"class_name", *inspect.signature(kind).parameters}
            if missing := [name for name in distribution if name not in accepted]:
                unknown.append(f"its action distribution has no {', '.join(missing)}")
            settings["distribution_cfg"] = {k: v for k, v in distribution.items() if k in accepted}
        for name, value in settings.items():
            if settings.get("class_name") == "MLPModel" and name.startswith("rnn_"):
                continue
            if name in known:
                setattr(getattr(config, part), name, value)
            elif value:
                unknown.append(f"it has no setting {part}.{name}, ours is {value!r}")
    return unknown


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
