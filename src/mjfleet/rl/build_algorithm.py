"""Chooses the learner that a configuration names, and builds it. Runs in a worker."""

from collections.abc import Callable
from dataclasses import fields
from functools import partial
from inspect import signature
from typing import Any

from rsl_rl import algorithms
from torch import nn
from torch.optim import Optimizer

from mjfleet.config import AgentConfig, AlgorithmConfig, PPOConfig
from mjfleet.config.validation import is_class_path
from mjfleet.env import Env
from mjfleet.errors import UserError
from mjfleet.rl.algorithm import Algorithm
from mjfleet.rl.learner import Learner, Setup
from mjfleet.rl.networks import augmentation
from mjfleet.rl.ppo import PPO, loss_check
from mjfleet.rl.runner_hook import RunnerHook
from mjfleet.utils.packages import need_part

LEARNERS = {
    "ppo": "ppo:PPO",
    "grpo": "ppo:PPO",
    "rsl_rl": "algorithm:Algorithm",
    "own": "libraries.rsl_rl:OwnPPO",
    "sac": "sac:SAC",
    "distillation": "libraries.rsl_rl:Distillation",
    "skrl": "libraries.skrl:SkrlPPO",
    "skrl-jax": "libraries.skrl_jax:JaxPPO",
    "rl_games": "libraries.rl_games:RlGamesPPO",
}
"""Module and class of each learner. Libraries are imported when they are chosen: `rsl_rl` is its
own update, for what our PPO lacks; `own` holds a subclass of its PPO."""


def make_algorithm(setup: Setup) -> Learner:
    """Build the learner that `setup.agent` names.

    Raises:
        UserError: a class of the user's cannot be loaded, or does not fit the others.
    """
    agent, load = setup.agent, setup.load
    kind, reason = choose_algorithm(agent, load)
    augmentation(agent.ppo.symmetry_cfg, load)
    make: Any = kind if issubclass(kind, Learner) else partial(_class("own"), kind)
    try:
        learner: Learner = make(setup, **_own_settings(kind, agent.algorithm))
    except ValueError as error:
        if is_class_path(agent.algorithm.name):
            raise  # The traceback has the user's line.
        raise UserError(f"the networks cannot be built: {error}") from error
    if reason:
        graphs = "; it captures no CUDA graphs" if setup.capture else ""
        tied = "; networks are not equivariant" if agent.ppo.ties_weights else ""
        learner.fallback_reason = f"{reason}, which is slower than mjfleet's{graphs}{tied}"
    _check_parts(learner)
    loss_check.check_networks(learner.networks())
    learner.check(setup.env.get_observations())
    learner.begin_watching()
    return learner


def _check_parts(learner: Learner) -> None:
    """Raise UserError if networks and optimisers could not be saved and loaded by their names."""
    known, who = set[str](), type(learner).__name__
    for method, kind in (("networks", nn.Module), ("optimizers", Optimizer)):
        (parts, again), where = (getattr(learner, method)() for _ in range(2)), f"{who}.{method}()"
        if not (isinstance(parts, dict) and all(isinstance(x, kind) for x in parts.values())):
            items = parts.items() if isinstance(parts, dict) else ()
            shown = ", ".join(f"{k}: {type(v).__name__}" for k, v in items) or type(parts).__name__
            must = f"a dictionary whose values are each a {kind.__module__}.{kind.__name__}"
            raise UserError(f"{where} returns {shown}; it must return {must}.")
        for name, part in parts.items():
            if name in known or again[name] is not part:
                why = "a network has this name" if name in known else "it is another in each call"
                raise UserError(f"{where} returns {name!r}, which no checkpoint can hold: {why}.")
        known |= parts.keys()
        if "actor" not in known:
            raise UserError(f"{where} returns no `actor`: the policy must have this name.")


def policy_of(env: Env[Any], agent: AgentConfig, load: Callable[..., Any]) -> Any:
    """Build the policy network alone, whichever learner has trained it."""
    name, kind = agent.algorithm.name, Learner
    if agent.library == "rsl_rl":
        own = load(name, object) if is_class_path(name) else _class(name)
        kind = own if issubclass(own, Learner) else Learner
    return kind.policy_of(env, agent, load)


def load_classes(agent: AgentConfig, load: Callable[..., Any]) -> None:
    """Raise UserError if a class that `agent` names cannot be loaded; see Setup for `load`."""
    choose_algorithm(agent, load)
    if agent.runner_hook:
        load(agent.runner_hook, RunnerHook)


def choose_algorithm(agent: AgentConfig, load: Callable[..., Any]) -> tuple[type[Any], str | None]:
    """Return the class that `agent` names, and why it is used instead of our PPO, if it is.

    Raises:
        UserError: it cannot be loaded, or lacks something that `agent` asks for.
    """
    name = agent.algorithm.name
    if agent.library != "rsl_rl":
        kind, flag = _class(agent.library), f"--agent.library {agent.library}"
        if missing := kind.requires(agent, load):
            raise UserError(f"{flag} does not support {missing}; rsl_rl does.")
        return kind, f"{flag}: the update is {agent.library}'s"
    if is_class_path(name):
        own = load(name, (Learner, algorithms.PPO))
        _check_config(name, agent.algorithm, getattr(own, "Config", PPOConfig))
        missing = own.requires(agent, load) if issubclass(own, Learner) else None
        if missing:
            text = f"does not support {missing}."
            if issubclass(own, PPO):
                text = (
                    f"is a subclass of mjfleet.rl.ppo.PPO, which has no {missing}: derive it "
                    f"from {Algorithm.__module__}.Algorithm."
                )
            raise UserError(f"--agent.algorithm.name {name} {text}")
        is_fast = issubclass(own, Learner) and (
            issubclass(own, PPO) or not issubclass(own, Algorithm)
        )
        return own, None if is_fast else f"{name}: the update is its own"
    kind = _class(name)
    _check_config(name, agent.algorithm, kind.Config)
    if agent.distils:
        return kind, "distillation: the update is rsl_rl's"
    missing = kind.requires(agent, load)
    if not missing:
        return kind, None
    if name != "ppo":
        raise UserError(f"--agent.algorithm.name {name} does not support {missing}; ppo does.")
    return _class("rsl_rl"), f"{missing}: the update is rsl_rl's"


def _check_config(name: str, config: AlgorithmConfig, kind: type[AlgorithmConfig]) -> None:
    if not isinstance(config, kind):
        raise UserError(
            f"--agent.algorithm.name {name} needs `algorithm={kind.__name__}(...)` in an "
            f"AgentConfig, which has a {type(config).__name__}."
        )


def _class(name: str) -> Any:
    module, class_name = LEARNERS[name].split(":")
    return getattr(need_part(f"mjfleet.rl.{module}", f"the algorithm {name}"), class_name)


def _own_settings(kind: type[Any], config: AlgorithmConfig) -> dict[str, Any]:
    """Return the fields that a class derived from PPOConfig adds, for a class of the user's.

    A constructor gets those that it names. Others find them in `config` of the learner.
    """
    if not is_class_path(config.name):
        return {}
    added = {field.name for field in fields(config)} - {field.name for field in fields(PPOConfig)}
    makers = (vars(owner).get("__init__") for owner in kind.__mro__)
    parameters = {name for make in makers if make for name in signature(make).parameters}
    return {name: getattr(config, name) for name in added & parameters}
