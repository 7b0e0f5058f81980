"""Builds rsl_rl's networks, as the configuration describes them, and room for rollouts."""

import contextlib
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import torch
from rsl_rl import models
from rsl_rl.extensions import resolve_rnd_config, resolve_symmetry_config
from rsl_rl.storage import RolloutStorage
from rsl_rl.utils import resolve_obs_groups
from tensordict import TensorDict
from torch import nn

from mjfleet.config import ActorConfig, AgentConfig, PPOConfig, SymmetryConfig, to_dict
from mjfleet.config.validation import is_class_path
from mjfleet.env import Env
from mjfleet.env.random_numbers import own_random_numbers
from mjfleet.errors import UserError
from mjfleet.sim.device_memory import check_fits


def build_networks(
    env: Env[Any],
    agent: AgentConfig,
    device: str,
    load: Callable[..., Any],
    names: Sequence[str] = ("actor", "critic"),
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the networks of these names, and the settings of rsl_rl's PPO.

    Raises:
        UserError: the networks cannot be built.
    """
    config, obs = rsl_rl_config(agent, load), env.get_observations()
    sets = [*names, *["rnd_state"] * (agent.ppo.rnd_cfg is not None)]
    sizes = {"actor": env.num_actions, "critic": env.num_actions if agent.distils else 1}
    networks: dict[str, Any] = {}
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # rsl_rl prints the groups.
            groups = resolve_obs_groups(obs, config["obs_groups"], sets)
        settings = resolve_rnd_config(config["algorithm"], obs, groups, env)
        settings = resolve_symmetry_config(settings, env)
        del settings["class_name"]
        has_values = agent.algorithm.learns_values and not agent.distils
        is_shared = settings.pop("share_cnn_encoders") and has_values
        for name in names:
            kind = config[name].pop("class_name")
            more = encoders_of(networks["actor"], kind) if is_shared and networks else {}
            with contextlib.redirect_stdout(io.StringIO()):  # It says which encoders are shared.
                network = kind(obs, groups, name, sizes[name], **config[name], **more).to(device)
            networks[name] = network
            with torch.no_grad(), own_random_numbers(0, device):
                if type(network) is models.CNNModel and not more:  # A user's scales by itself.
                    prepare_encoders(name, network, obs)
                _try(name, network, obs, sizes[name])
    except ValueError as error:
        raise UserError(f"the networks cannot be built: {error}") from error
    return networks, settings


class BytesToUnits(nn.Module):
    """Turns images of bytes into numbers from 0 to 1, inside of a network and of its graphs."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.to(torch.get_default_dtype()) / 255.0


def image_dtypes(network: Any) -> dict[str, torch.dtype]:
    """Return the type of the images that a network's convolutions encode, by group."""
    firsts = {name: next(network.cnns[name].children(), None) for name in image_groups(network)}
    return {name: torch.uint8 if isinstance(first, BytesToUnits) else torch.float32
            for name, first in firsts.items()}  # fmt: skip


@torch.no_grad()
def prepare_encoders(name: str, network: Any, obs: TensorDict) -> None:
    """Let the network of this name, `actor` or `critic`, scale images of bytes; ValueError: images
    are smaller than its kernels."""
    for group in image_groups(network):
        encoder: Any = network.cnns[group]
        if obs[group].dtype == torch.uint8:
            encoder.insert(0, BytesToUnits())
        try:
            encoder.eval()(obs[group][:1])
        except RuntimeError as error:
            raise ValueError(f"agent.{name}.cnn_cfg, images of `{group}`: {error}") from error
        encoder.train()


def encoders_of(actor: Any, kind: type[models.MLPModel]) -> dict[str, Any]:
    """Return the encoders of an actor, for a critic of a class that takes them."""
    flag = "--agent.algorithm.share-cnn-encoders needs"
    if not image_groups(actor):
        raise ValueError(f"{flag} an actor that encodes images")
    if not issubclass(kind, models.CNNModel):
        raise ValueError(f"{flag} a critic that encodes the same images")
    return {"cnns": actor.cnns}


def make_storage(
    env: Env[Any], agent: AgentConfig, device: str, kind: str = "rl"
) -> RolloutStorage:
    """Return room for a rollout; UserError if it does not fit in the memory of the device."""
    obs = env.get_observations()
    seen: Any = obs.values()
    steps, observed = env.num_envs * agent.num_steps_per_env, sum(x[0].nbytes for x in seen)
    size = steps * (observed + 4 * env.num_actions)
    check_fits(f"{steps:,} steps of a rollout", size, env.num_envs, device)
    shape = env.num_envs, agent.num_steps_per_env
    return RolloutStorage(kind, *shape, obs, [env.num_actions], device)


def _try(name: str, network: Any, obs: TensorDict, size: int) -> None:
    """Raise a ValueError if a network's output has another size."""
    shape = tuple(network.eval()(obs).shape)
    if shape != (wanted := (len(obs), size)):
        raise ValueError(
            f"{name} {type(network).__name__} returns numbers of shape {shape}, and has to return "
            f"{wanted}"
        )
    network.reset()
    network.train()


def rsl_rl_config(agent: AgentConfig, load: Callable[..., Any]) -> dict[str, Any]:
    """Return the nested dictionary that rsl_rl's runner takes; our fields have its names.

    `load` finds `module:name`, see FoundTask.load.

    Raises:
        UserError: a class or a function cannot be loaded, or there is no teacher to distil.
    """
    plain = to_dict(agent)
    own = ("name", "group_size", "backprop", "learning_threads", "gradient_length", "loss_type")
    learning = agent.ppo
    algorithm = _without_added(to_dict(learning), PPOConfig)
    algorithm = {name: value for name, value in algorithm.items() if name not in own}
    if learning.mirrors_samples:
        symmetry = algorithm["symmetry_cfg"]
        del symmetry["use_equivariant_networks"]
        symmetry["data_augmentation_func"] = augmentation(learning.symmetry_cfg, load)
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


def lacking(agent: AgentConfig, load: Callable[..., Any]) -> str | None:
    """Return what a configuration asks for and our PPO lacks, which rsl_rl's update has.

    It normalises observations once per update, and encodes images in each minibatch.
    """
    algorithm, base = agent.ppo, models.MLPModel
    kinds = (base,) if algorithm.ties_weights else (base, models.CNNModel)
    known = [kind.get_latent for kind in kinds]
    for name in (agent.actor.class_name, agent.critic.class_name):
        kind = model_class(name, load)
        is_known = kind.forward is base.forward and kind.get_latent in known
        if not (is_known or agent.is_recurrent):
            return f"network {name} with a forward pass of its own"
    what = {
        "a recurrent network": agent.is_recurrent,
        "random network distillation": algorithm.rnd_cfg is not None,
        "symmetry": algorithm.mirrors_samples,
        "torch.compile": agent.torch_compile_mode is not None,
        f"the optimiser {algorithm.optimizer}": algorithm.optimizer == "rmsprop",
    }
    return next((name for name, is_wanted in what.items() if is_wanted), None)


def image_groups(network: Any) -> list[str]:
    """Return the groups of images that a network's convolutions encode."""
    return getattr(network, "obs_groups_2d", [])


def numbers_of(network: Any, observations: TensorDict) -> torch.Tensor:
    """Return the normalised observations of a network `(samples, size)`, without its images."""
    if network.obs_groups:
        return models.MLPModel.get_latent(network, observations)
    return next(network.parameters()).new_empty(len(observations), 0)


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
    cnn = plain.pop("cnn_cfg")
    more = {"cnn_cfg": convolutions(cnn)} if issubclass(kind, models.CNNModel) and cnn else {}
    return plain | more | {"class_name": kind}


def convolutions(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data of a CnnConfig as rsl_rl takes it."""
    one = {n: plain[n][0] for n in ("kernel_size", "stride") if len(plain[n]) == 1}
    return {**plain, **one}
