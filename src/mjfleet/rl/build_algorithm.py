"""Chooses the algorithm that a configuration names, and builds it with networks and storage."""

import contextlib
import io
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from inspect import signature
from typing import Any

import torch
from rsl_rl import algorithms, models
from rsl_rl.extensions import resolve_rnd_config, resolve_symmetry_config
from rsl_rl.storage import RolloutStorage
from rsl_rl.utils import resolve_obs_groups
from tensordict import TensorDict

from mjfleet.config import ActorConfig, AgentConfig, PPOConfig, SymmetryConfig, to_dict
from mjfleet.config.validation import is_class_path
from mjfleet.env import Env
from mjfleet.errors import UserError
from mjfleet.rl import loss_check
from mjfleet.rl.algorithm import Algorithm
from mjfleet.rl.collectives import Collectives
from mjfleet.rl.graph_capture import Capture
from mjfleet.rl.ppo import PPO
from mjfleet.rl.runner_hook import RunnerHook
from mjfleet.utils.packages import need_part

ALGORITHMS = {
    "ppo": "ppo:PPO",
    "grpo": "ppo:PPO",
    "rsl_rl": "algorithm:Algorithm",
    "own": "adapters.rsl_rl_adapter:OwnPPO",
    "distillation": "adapters.rsl_rl_adapter:Distillation",
    "skrl": "adapters.skrl_adapter:SkrlPPO",
    "skrl-jax": "adapters.skrl_jax_adapter:JaxPPO",
    "rl_games": "adapters.rl_games_adapter:RlGamesPPO",
}
"""Module and class of each algorithm. Libraries are imported when they are chosen: `rsl_rl` is its
own update, for what our PPO lacks; `own` holds a subclass of its PPO."""


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
    kind, fallback_reason = choose_algorithm(agent, load)
    mirror = augmentation(agent.algorithm.symmetry_cfg, load)
    settings = _own_settings(kind, agent.algorithm)
    if issubclass(kind, PPO):
        mirror = partial(mirror, env) if mirror and agent.algorithm.ties_weights else None
        settings |= {"capture": capture, "mirror": mirror}
        fallback_reason = None
    else:
        graphs = "; it captures no CUDA graphs" if capture else ""
        tied = "; networks are not equivariant" if agent.algorithm.ties_weights else ""
        fallback_reason = f"{fallback_reason}, which is slower{graphs}{tied}"
    make = kind if issubclass(kind, Algorithm) else partial(_class("own"), kind)
    make = partial(make, **settings)
    alg = build_algorithm(make, env, agent, device, load, collectives, num_threads)
    alg.fallback_reason = fallback_reason
    loss_check.check_networks(alg)
    if isinstance(alg, PPO):
        loss_check.check(alg, env.get_observations())
    return alg


def load_classes(agent: AgentConfig, load: Callable[..., Any]) -> None:
    """Raise UserError if a class that `agent` names cannot be loaded; see Runner for `load`."""
    choose_algorithm(agent, load)
    if agent.runner_hook:
        load(agent.runner_hook, RunnerHook)


def choose_algorithm(
    agent: AgentConfig, load: Callable[..., Any]
) -> tuple[type[algorithms.PPO], str]:
    """Return the class that `agent` names, and why it is used instead of our PPO, if it is.

    Raises:
        UserError: it cannot be loaded, or lacks something that `agent` asks for.
    """
    name, missing = agent.algorithm.name, _missing(agent, load)
    if is_class_path(name):
        own = load(name, algorithms.PPO)
        if issubclass(own, PPO) and missing:
            raise UserError(
                f"--agent.algorithm.name {name} is a subclass of {PPO.__module__}.PPO, which has "
                f"no {missing}: derive it from {Algorithm.__module__}.Algorithm."
            )
        return own, f"{name}: learning takes its own path"
    if agent.library != "rsl_rl":
        return _class(agent.library), f"--agent.library {agent.library}: learning takes its path"
    if agent.distils:
        return _class(name), "distillation: learning takes rsl_rl's own path"
    if missing and name == "grpo":
        raise UserError(f"--agent.algorithm.name grpo does not support {missing}; ppo does.")
    reason = f"{missing}: learning takes rsl_rl's own path"
    return _class("rsl_rl" if missing else name), reason


def _class(name: str) -> Any:
    """Return the class of one of ALGORITHMS."""
    module, class_name = ALGORITHMS[name].split(":")
    return getattr(need_part(f"mjfleet.rl.{module}", f"the algorithm {name}"), class_name)


def _own_settings(kind: type[Any], config: PPOConfig) -> dict[str, Any]:
    """Return the fields that a class derived from PPOConfig adds, for a class of the user's.

    A constructor gets those that it names. Others find them in `config` of the algorithm.
    """
    if not is_class_path(config.name):
        return {}
    added = {field.name for field in fields(config)} - {field.name for field in fields(PPOConfig)}
    makers = (vars(owner).get("__init__") for owner in kind.__mro__)
    parameters = {name for make in makers if make for name in signature(make).parameters}
    return {name: getattr(config, name) for name in added & parameters}


def _missing(agent: AgentConfig, load: Callable[..., Any]) -> str | None:
    """Return a feature of the configuration that our PPO lacks, or None."""
    algorithm, base = agent.algorithm, models.MLPModel
    # It computes observations' latents once per update, and gradients of the layers after them.
    for name in (agent.actor.class_name, agent.critic.class_name):
        kind = model_class(name, load)
        has_own = kind.forward is not base.forward or kind.get_latent is not base.get_latent
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


def build_algorithm(
    make: Callable[..., Any],
    env: Env[Any],
    agent: AgentConfig,
    device: str,
    load: Callable[..., Any],
    collectives: Collectives,
    num_threads: int,
) -> Any:
    """Build networks, storage and, by `make`, an algorithm; for the others see Runner.

    Raises:
        UserError: the networks cannot be built.
    """
    config, obs = rsl_rl_config(agent, load), env.get_observations()
    sets = ["actor", "critic", *["rnd_state"] * (agent.algorithm.rnd_cfg is not None)]
    sizes = {"actor": env.num_actions, "critic": env.num_actions if agent.distils else 1}
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # rsl_rl prints the groups.
            groups = resolve_obs_groups(obs, config["obs_groups"], sets)
        settings = resolve_rnd_config(config["algorithm"], obs, groups, env)
        settings = resolve_symmetry_config(settings, env)
        del settings["class_name"]
        parts: list[Any] = []
        for name, size in sizes.items():
            kind = config[name].pop("class_name")
            parts.append(kind(obs, groups, name, size, **config[name]).to(device))
            if kind is models.CNNModel:
                _try_images(parts[-1], obs)
        shape = env.num_envs, agent.num_steps_per_env
        parts.append(RolloutStorage("rl", *shape, obs, [env.num_actions], device))
        alg = make(agent, collectives, num_threads, *parts, device=device, **settings)
    except ValueError as error:
        raise UserError(f"the networks cannot be built: {error}") from error
    alg.compile(agent.torch_compile_mode)
    return alg


def _try_images(network: models.CNNModel, obs: TensorDict) -> None:
    """Raise a ValueError if the images are smaller than the kernels of a network for them."""
    try:
        with torch.no_grad():
            network.eval()(obs)
    except RuntimeError as error:
        raise ValueError(error) from error
    network.train()


def rsl_rl_config(agent: AgentConfig, load: Callable[..., Any]) -> dict[str, Any]:
    """Return the nested dictionary that rsl_rl's runner takes; our fields have its names.

    `load` finds `module:name`, see FoundTask.load.

    Raises:
        UserError: a class or a function cannot be loaded, or there is no teacher to distil.
    """
    plain = to_dict(agent)
    own = ("name", "group_size", "backprop", "learning_threads", "gradient_length", "loss_type")
    algorithm = _without_added(plain["algorithm"], PPOConfig)
    algorithm = {name: value for name, value in algorithm.items() if name not in own}
    if agent.algorithm.mirrors_samples:
        symmetry = algorithm["symmetry_cfg"]
        del symmetry["use_equivariant_networks"]
        symmetry["data_augmentation_func"] = augmentation(agent.algorithm.symmetry_cfg, load)
    else:
        algorithm["symmetry_cfg"] = None
    groups = plain["obs_groups"]
    if agent.distils:
        if (teacher := plain["teacher"]) is None:
            raise UserError("--agent.algorithm.name distillation needs --teacher RUN.")
        groups["critic"], plain["critic"] = teacher.pop("obs_groups"), teacher
        del teacher["checkpoint"]
    return {
        "num_steps_per_env": agent.num_steps_per_env,
        "save_interval": agent.save_interval,
        "torch_compile_mode": agent.torch_compile_mode,
        "check_for_nan": False,
        "obs_groups": groups,
        "actor": _model(plain["actor"], load),
        "critic": _model(plain["critic"], load),
        "algorithm": {"class_name": "PPO"} | algorithm,
    }


def augmentation(symmetry: SymmetryConfig | None, load: Callable[..., Any]) -> Any:
    """Return the function that mirrors samples, or None.

    Raises:
        UserError: it cannot be loaded, or is no function.
    """
    if symmetry is None:
        return None
    function = load(name := symmetry.data_augmentation_func)
    if not callable(function) or isinstance(function, type):
        flag = "--agent.algorithm.symmetry-cfg.data-augmentation-func"
        raise UserError(f"{flag} {name}: it must be a function.")
    return function


def model_class(name: str, load: Callable[..., Any]) -> type[models.MLPModel]:
    """Return the class of a network: rsl_rl's of that name, or `module:Class`.

    Raises:
        UserError: that is not there, or is no subclass of rsl_rl's models.
    """
    return load(name, models.MLPModel) if ":" in name else getattr(models, name)


def _without_added(plain: dict[str, Any], base: type[Any]) -> dict[str, Any]:
    """Return a configuration without the fields that a class derived from `base` adds."""
    known = {field.name for field in fields(base)}
    return {name: value for name, value in plain.items() if name in known}


def _model(plain: dict[str, Any], load: Callable[..., Any]) -> dict[str, Any]:
    """Return a network's configuration without the fields that its classes do not take."""
    if not is_class_path(plain["class_name"]):
        plain = _without_added(plain, ActorConfig)
    if distribution := plain.pop("distribution", None):
        plain["distribution_cfg"] = distribution
        if distribution["class_name"] != "GaussianDistribution":
            del distribution["learn_std"]
    kind = model_class(plain["class_name"], load)
    if not issubclass(kind, models.RNNModel):
        plain = {k: v for k, v in plain.items() if not k.startswith("rnn_")}
    convolutions = plain.pop("cnn_cfg")
    if issubclass(kind, models.CNNModel) and convolutions:
        for name in ("kernel_size", "stride"):
            if len(convolutions[name]) == 1:
                convolutions[name] = convolutions[name][0]
        plain["cnn_cfg"] = convolutions
    return plain | {"class_name": kind}
