"""Chooses and builds the learning algorithm that a configuration asks for. Runs in a worker."""

from collections.abc import Callable
from dataclasses import fields
from functools import partial
from importlib import import_module
from inspect import signature
from typing import Any

from rsl_rl import algorithms
from rsl_rl.models import MLPModel

from mjfleet.config import AgentConfig, PPOConfig
from mjfleet.config.validation import is_class_path
from mjfleet.env import Env
from mjfleet.errors import UserError
from mjfleet.rl import loss_check
from mjfleet.rl.adapters.rsl_rl_adapter import (
    RslRlUpdate,
    augmentation,
    build_algorithm,
    model_class,
)
from mjfleet.rl.algorithm import Algorithm
from mjfleet.rl.captured import Capture
from mjfleet.rl.collectives import Collectives
from mjfleet.rl.distillation import Distillation
from mjfleet.rl.ppo import PPO
from mjfleet.utils.console import print_line

LIBRARIES = {
    "skrl": "skrl_adapter:SkrlPPO",
    "skrl-jax": "skrl_jax_adapter:JaxPPO",
    "rl_games": "rl_games_adapter:RlGamesPPO",
}
"""The adapters of other libraries, which may not be installed."""


def make_algorithm(
    env: Env[Any],
    agent: AgentConfig,
    device: str,
    num_threads: int,
    load: Callable[..., Any],
    collectives: Collectives,
    capture: Capture | None,
) -> Algorithm:
    """Build the algorithm that `agent` names; for the arguments see Runner.

    Raises:
        UserError: a class of the user's cannot be loaded, or does not fit the others.
    """
    kind, slower = choose_algorithm(agent, load)
    mirror = augmentation(agent.algorithm.symmetry_cfg, load)
    settings = _own_settings(kind, agent.algorithm)
    if issubclass(kind, PPO):
        mirror = partial(mirror, env) if mirror and agent.algorithm.ties_weights else None
        settings |= {"capture": capture, "mirror": mirror}
    elif slower and collectives.rank == 0:
        graphs = "; it captures no CUDA graphs" if capture else ""
        tied = "; networks are not equivariant" if agent.algorithm.ties_weights else ""
        print_line(f"{slower}, which is slower{graphs}{tied}")
    make = partial(kind, **settings)
    alg = build_algorithm(make, env, agent, device, load, collectives, num_threads)
    if isinstance(alg, PPO):
        loss_check.check(alg, env.get_observations())
    return alg


def choose_algorithm(
    agent: AgentConfig, load: Callable[..., Any]
) -> tuple[type[Algorithm], str | None]:
    """Return the class of the algorithm that `agent` names, and what is slower than our PPO."""
    name, missing = agent.algorithm.name, _missing(agent, load)
    if is_class_path(name):
        return _own_algorithm(name, load, missing)
    if agent.library in LIBRARIES:
        module, class_name = LIBRARIES[agent.library].split(":")
        kind = getattr(import_module(f"mjfleet.rl.adapters.{module}"), class_name)
        return kind, f"--agent.library {agent.library}: learning takes its own path"
    if agent.distils:
        return Distillation, "distillation: learning takes rsl_rl's own path"
    if missing and name == "grpo":
        raise UserError(f"--agent.algorithm.name grpo does not support {missing}; ppo does.")
    slower = f"{missing}: learning takes rsl_rl's own path" if missing else None
    return RslRlUpdate if missing else PPO, slower


def _own_algorithm(
    name: str, load: Callable[..., Any], missing: str | None
) -> tuple[type[Algorithm], str | None]:
    """Return what `choose_algorithm` does, for a class of the user's."""
    own = load(name, algorithms.PPO)
    if issubclass(own, PPO) and missing:
        raise UserError(
            f"--agent.algorithm.name {name} is a subclass of {PPO.__module__}.PPO, which has "
            f"no {missing}: derive it from {RslRlUpdate.__module__}.RslRlUpdate."
        )
    if issubclass(own, Algorithm):
        return own, None if issubclass(own, PPO) else f"{name} takes a path of its own"
    # A class of rsl_rl's gets what the training loop needs besides.
    return type(own.__name__, (RslRlUpdate, own), {}), f"{name} takes rsl_rl's path"


def _own_settings(kind: type[Algorithm], config: PPOConfig) -> dict[str, Any]:
    """Return the fields that a class derived from PPOConfig adds, for a class of the user's.

    A constructor gets those that it names. Others find them in `config` of the algorithm.
    """
    if not is_class_path(config.name):
        return {}
    added = {field.name for field in fields(config)} - {field.name for field in fields(PPOConfig)}
    makers = (vars(owner).get("__init__") for owner in kind.__mro__)
    named = {name for make in makers if make for name in signature(make).parameters}
    return {name: getattr(config, name) for name in added & named}


def _missing(agent: AgentConfig, load: Callable[..., Any]) -> str | None:
    """Return a feature of the configuration that our PPO lacks, or None."""
    algorithm = agent.algorithm
    # It computes observations' latents once per update, and gradients of the layers after them.
    for name in (agent.actor.class_name, agent.critic.class_name):
        kind = model_class(name, load)
        has_own = kind.forward is not MLPModel.forward or kind.get_latent is not MLPModel.get_latent
        if has_own and not agent.is_recurrent:
            return f"network {name} with a forward pass of its own"
    lacking = {
        "a recurrent network": agent.is_recurrent,
        "random network distillation": algorithm.rnd_cfg is not None,
        "symmetry": algorithm.mirrors_samples,
        "torch.compile": agent.torch_compile_mode is not None,
        f"the optimiser {algorithm.optimizer}": algorithm.optimizer == "rmsprop",
    }
    return next((what for what, is_wanted in lacking.items() if is_wanted), None)
