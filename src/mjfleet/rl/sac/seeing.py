"""SAC's networks for an environment, with convolutions where it has images. Runs in a worker."""

import contextlib
import io
from typing import Any

import torch
from rsl_rl.models import CNNModel, MLPModel

from mjfleet.config import AgentConfig, to_dict
from mjfleet.env import Env
from mjfleet.errors import UserError
from mjfleet.rl.networks import convolutions, encoders_of, prepare_encoders
from mjfleet.rl.sac.networks import Critics, SquashedActor


class SeeingActor(SquashedActor, CNNModel):
    """A policy that also observes images, by convolutions."""


class SeeingCritics(Critics, CNNModel):
    """Critics that also observe images, by convolutions."""


def build_actor(env: Env[Any], agent: AgentConfig) -> Any:
    """Return the policy; UserError as for `_build`."""
    config: Any = agent.algorithm
    first = config.first_actions if env.zero_is_home else 1.0
    sizes = limits_of(env), config.actor_hidden_dims, (config.log_std_min, config.log_std_max)
    return _build((SquashedActor, SeeingActor), env, agent, *sizes, first)


def build_critics(env: Env[Any], agent: AgentConfig, actor: MLPModel) -> Any:
    """Return the critics of a policy; UserError as for `_build`."""
    config: Any = agent.algorithm
    sizes = env.num_actions, config.critic_hidden_dims, config.num_atoms, config.support
    # Around a home pose, noise is a small share of a limit: critics would hardly see it.
    unit = config.target_std if env.zero_is_home else 1.0
    more = config.first_return_std, unit
    return _build((Critics, SeeingCritics), env, agent, *sizes, *more, actor=actor)


def _build(
    kinds: tuple[type[MLPModel], type[CNNModel]], env: Env[Any], agent: AgentConfig, *sizes: Any,
    actor: MLPModel | None = None,
) -> Any:  # fmt: skip
    """Return an actor, or the critics of `actor`, on the device of the environment.

    Args:
        kinds: the class without images, and that with images.
        sizes: further arguments of these classes.
        actor: whose critics they are.

    Raises:
        UserError: images and convolutions do not fit each other.
    """
    algorithm: Any = agent.algorithm
    name, obs = "critic" if actor else "actor", env.get_observations()
    groups, cnn = list(getattr(agent.obs_groups, name)), getattr(agent, name).cnn_cfg
    images = [group for group in groups if obs[group].ndim > 2]
    kind, is_shared = kinds[bool(images)], actor and algorithm.share_cnn_encoders
    try:
        if images and not (cnn or is_shared):
            where = f"agent.{name}.cnn_cfg in the task's configuration or in a file"
            raise ValueError(f"`{images[0]}` is an image, which needs {where}")
        more = {"cnn_cfg": convolutions(to_dict(cnn))} if images else {}
        more = encoders_of(actor, kind) if is_shared else more
        with contextlib.redirect_stdout(io.StringIO()):  # It says which encoders are shared.
            network = kind(obs, {name: groups}, *sizes, **more).to(env.device)
        if not is_shared:
            prepare_encoders(name, network, obs)
    except ValueError as error:
        raise UserError(f"the networks cannot be built: {error}") from error
    return network


def limits_of(env: Env[Any]) -> torch.Tensor:
    """Return each action's limit `(num_actions,)`; UserError if one is not above 0 and finite."""
    limit = torch.as_tensor(env.action_limit, dtype=torch.float32, device=env.device)
    sizes = (), (1,), (env.num_actions,)
    if limit.shape in sizes and ((limit > 0) & limit.isfinite()).all():
        return limit.expand(env.num_actions).clone()
    raise UserError(
        f"{type(env).__name__}.action_limit is {limit.tolist()}; for sac it must be a finite "
        f"number above 0, or {env.num_actions} of them, one for each action."
    )
