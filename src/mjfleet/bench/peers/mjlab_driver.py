"""Trains a task of mjlab's by mjlab's own command `train`, with settings that are given.

    <mjlab's Python> mjlab_driver.py <request as JSON>

Runs in a child process, by the Python of mjlab's own environment: nothing of mjfleet is imported.
It prints a line of JSON that says what could not be made the same, then one for each iteration.
"""

import json
import sys
from dataclasses import fields, replace
from typing import Any

# A script finds what is in its own folder.
from iteration_lines import IterationLines  # pyright: ignore[reportMissingImports]


def main(argument: str) -> None:
    """Train.

    The request holds:
        task: mjlab's name of it.
        num_envs, decimation, episode_seconds, timestep (s), integrator: of the environment.
        agent: our configuration of the agent.
        gpu: index of a GPU, or null for the CPU.
        log_root: folder for its runs.
        counts_rewards: whether lines tell the mean reward.
    """
    lines = IterationLines()
    request: dict[str, Any] = json.loads(argument)
    import rsl_rl.utils.logger
    from mjlab.scripts import train  # pyright: ignore[reportMissingImports]

    lines.follow(rsl_rl.utils.logger.Logger, request["counts_rewards"])
    defaults = train.TrainConfig.from_task
    notes = _set_reward() if "Cartpole" in request["task"] else []

    def from_task(task: str) -> Any:
        """What its command line starts from: the task's configuration with our settings."""
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
    """Give it our settings of runner, networks and PPO; returns which it does not know."""
    unknown = []
    for name in ("seed", "num_steps_per_env", "max_iterations", "save_interval"):
        setattr(config, name, agent[name])
    config.logger, config.upload_model = "tensorboard", False
    config.obs_groups = {name: tuple(agent["obs_groups"][name]) for name in ("actor", "critic")}
    for part in ("actor", "critic", "algorithm"):
        known = {field.name for field in fields(getattr(config, part))}
        settings = dict(agent[part])
        if distribution := settings.pop("distribution", None):
            settings["distribution_cfg"] = _distribution(distribution, unknown)
        feed_forward = settings.get("class_name") == "MLPModel"
        for name, value in settings.items():
            if feed_forward and name.startswith("rnn_"):
                continue
            if name in known:
                setattr(getattr(config, part), name, value)
            elif value:
                unknown.append(f"it has no setting {part}.{name}, ours is {value!r}")
    return unknown


def _distribution(settings: dict[str, Any], unknown: list[str]) -> dict[str, Any]:
    """The settings of the action distribution that its rsl_rl takes."""
    import inspect

    from rsl_rl.modules import distribution

    known = inspect.signature(getattr(distribution, settings["class_name"])).parameters
    if missing := [name for name in settings if name not in known and name != "class_name"]:
        unknown.append(f"its action distribution has no {', '.join(missing)}")
    return {name: value for name, value in settings.items() if name not in missing}


if __name__ == "__main__":
    main(sys.argv[1])
