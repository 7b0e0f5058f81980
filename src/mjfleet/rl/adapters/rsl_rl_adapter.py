"""rsl_rl's networks, storage and optimiser, and its own update. Runs in a worker."""

import contextlib
import io
import os
import shutil
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from rsl_rl import models
from rsl_rl.algorithms import PPO

from mjfleet.config import ActorConfig, AgentConfig, PPOConfig, SymmetryConfig, to_dict
from mjfleet.config.validation import is_class_path
from mjfleet.env import Env
from mjfleet.errors import UserError
from mjfleet.rl.algorithm import Algorithm
from mjfleet.rl.collectives import Collectives

COMPILERS = {"CXX": ("g++",), "CC": ("gcc", "clang")}
"""What torch (on a CPU) and triton (on a GPU) look for unless this variable names another."""


class RslRlUpdate(Algorithm):
    """rsl_rl's own update, for the features that ours lacks, see algorithm_choice.py.

    Over several ranks, gradients are averaged by one all-reduce per minibatch.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.optimizer.register_step_pre_hook(lambda *_: self.on_minibatch())
        self.is_multi_gpu = self.is_distributed  # The update then calls reduce_parameters.
        self.gpu_global_rank, self.gpu_world_size = (
            self.collectives.rank,
            self.collectives.world_size,
        )


def build_algorithm(
    kind: Callable[..., Algorithm],
    env: Env[Any],
    agent: AgentConfig,
    device: str,
    load: Callable[..., Any],
    collectives: Collectives,
    num_threads: int,
) -> Any:
    """Build networks, storage and an algorithm of this kind; for the arguments see Runner.

    Raises:
        UserError: the networks cannot be built, or not be compiled.
    """
    if agent.torch_compile_mode is not None:
        _check_compiler("CXX" if device == "cpu" else "CC")
    config = rsl_rl_config(agent, load)
    config["multi_gpu"] = None
    if agent.distils:
        make, teacher = config["critic"].pop("class_name"), config["critic"]
        config["critic"] = teacher | {
            # Where a critic has one output, it has one for each action.
            "class_name": lambda obs, groups, name, _, **settings: make(
                obs, groups, name, env.num_actions, **settings
            )
        }
    config["algorithm"]["class_name"] = lambda *parts, **settings: kind(
        agent, collectives, num_threads, *parts, **settings
    )
    with contextlib.redirect_stdout(io.StringIO()):  # rsl_rl prints both networks.
        try:
            return PPO.construct_algorithm(env.get_observations(), env, config, device)
        except ValueError as error:
            raise UserError(f"the networks cannot be built: {error}") from error


def _check_compiler(variable: str) -> None:
    """Raise UserError if there is no compiler for what torch generates when it is first called."""
    chosen, usual = os.environ.get(variable, "").split(), COMPILERS[variable]
    if not any(map(shutil.which, chosen[:1] or usual)):
        raise UserError(
            "--agent.torch-compile-mode needs a compiler: there is no "
            f"{chosen[0] if chosen else ' or '.join(usual)} here. Install one (on Debian, "
            f"`apt install g++`), name it by {variable}, or leave the flag out."
        )


def rsl_rl_config(agent: AgentConfig, load: Callable[..., Any]) -> dict[str, Any]:
    """Return the nested dictionary that rsl_rl's runner takes; our fields have its names.

    `load` finds `module:name`, see FoundTask.load.
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
