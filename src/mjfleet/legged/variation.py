"""Makes the robots of the environments differ from each other. Runs in a worker."""

import re

import torch

from mjfleet.env import Env
from mjfleet.errors import UserError
from mjfleet.legged.config import VelocityConfig
from mjfleet.parts import vary


def vary_robots(env: Env[VelocityConfig], base: str, feet: tuple[str, ...]) -> torch.Tensor:
    """Vary the robot of each environment, once, by the worker's seed, as `cfg.random` says.

    `base` is the body with the payload, `feet` are geoms, or bodies whose geoms are feet.

    Returns:
        The robots' masses, `(num_envs,)`, kg.

    Raises:
        UserError: a payload takes away the whole base, or its centre of mass cannot vary.
    """
    cfg, mass, trunk = env.cfg.random, env.sim.model.body(base).mass[0], re.escape(base)
    if cfg.payload[0] <= -mass:
        raise UserError(
            f"--env.random.payload is {cfg.payload}; the first must be above {-mass:.3g}, since "
            f"{base!r} has a mass of {mass:.3g} kg."
        )
    vary(
        env, "geom_friction", [re.escape(foot) for foot in feet], "set", cfg.friction, together=True
    )
    vary(env, "body_mass", trunk, "add", cfg.payload)
    vary(env, "body_ipos", trunk, "add", cfg.center_of_mass)
    vary(env, "gains", ".*", "scale", cfg.gains)
    vary(env, "actuator_forcerange", ".*", "scale", cfg.strength)
    return env.sim.expand("body_mass").sum(dim=1)
