"""What the configuration says, in rsl_rl's and torch's terms."""

import math
from collections.abc import Callable
from typing import Any

from mjfleet.config import AgentConfig, to_dict

NUMBERS_LIKE_PYTHON = 2**15
"""Activations of a layer in a minibatch that take about as long as Python's part of it."""


def worthwhile_threads(agent: AgentConfig, num_envs: int) -> int:
    """How many CPU threads can share a minibatch so that one more would still make it faster.

    n threads take an nth of the time for the numbers, and n times the time for Python's part, which
    one does at a time: the best n goes with the square root of their ratio. It follows from the
    configuration alone: another n would round differently, and a run could not be repeated.
    """
    rows = num_envs * agent.num_steps_per_env // agent.algorithm.num_mini_batches
    widest = max(*agent.actor.hidden_dims, *agent.critic.hidden_dims)
    return max(1, math.isqrt(rows * widest // NUMBERS_LIKE_PYTHON))


def rsl_rl_config(agent: AgentConfig, load: Callable[[str], Any]) -> dict[str, Any]:
    """The nested dictionary that rsl_rl's runner takes.

    Args:
        agent: our configuration, whose fields have rsl_rl's names.
        load: finds `module:name` in the task folder.
    """
    plain = to_dict(agent)
    algorithm = plain["algorithm"]
    if algorithm["symmetry_cfg"] is not None:
        mirror = algorithm["symmetry_cfg"]["data_augmentation_func"]
        algorithm["symmetry_cfg"]["data_augmentation_func"] = load(mirror)
    actor, critic = _model(plain["actor"]), _model(plain["critic"])
    distribution = actor.pop("distribution")
    if distribution["class_name"] != "GaussianDistribution":
        del distribution["learn_std"]
    return {
        "num_steps_per_env": agent.num_steps_per_env,
        "save_interval": agent.save_interval,
        "torch_compile_mode": agent.torch_compile_mode,
        "check_for_nan": False,
        "obs_groups": plain["obs_groups"],
        "actor": actor | {"distribution_cfg": distribution},
        "critic": critic,
        "algorithm": {"class_name": "PPO"} | algorithm,
    }


def _model(plain: dict[str, Any]) -> dict[str, Any]:
    """A network's configuration without the fields that its class does not take."""
    recurrent = plain["class_name"] == "RNNModel"
    return {k: v for k, v in plain.items() if recurrent or not k.startswith("rnn_")}
