"""Makes the robots of the environments differ from each other. Runs in a worker."""

import torch

from mjfleet.env import Env
from mjfleet.errors import UserError
from mjfleet.legged.config import VelocityConfig


def vary_robots(env: Env[VelocityConfig], base: str, feet: tuple[str, ...]) -> torch.Tensor:
    """Vary the robot of each environment, once, by the worker's seed, as `cfg.random` says.

    `base` is the body with the payload, `feet` are geoms, or bodies whose geoms are feet.

    Returns:
        The robots' masses, `(num_envs,)`, kg.

    Raises:
        UserError: a payload takes away the whole base.
    """
    sim, cfg, model, joints = env.sim, env.cfg.random, env.sim.model, env.num_actions
    geoms = range(model.ngeom)
    soles = [
        i for i in geoms if {model.geom(i).name, model.body(model.geom_bodyid[i]).name} & {*feet}
    ]
    body, mass = model.body(base).id, model.body(base).mass[0]
    if cfg.payload[0] <= -mass:
        raise UserError(
            f"--env.random.payload is {cfg.payload}; the first must be above {-mass:.3g}, since "
            f"{base!r} has a mass of {mass:.3g} kg."
        )
    sim.expand("geom_friction")[:, soles, 0] = env.uniform(1, *cfg.friction).to(sim.qpos)
    sim.expand("body_mass")[:, body] += env.uniform(1, *cfg.payload).squeeze(1)
    sim.expand("body_ipos")[:, body] += env.uniform(3, *cfg.center_of_mass)
    gains = env.uniform(joints, *cfg.gains).unsqueeze(2)
    sim.expand("actuator_gainprm")[:, :, :1] *= gains
    sim.expand("actuator_biasprm")[:, :, 1:3] *= gains
    sim.expand("actuator_forcerange")[:] *= env.uniform(joints, *cfg.strength).unsqueeze(2)
    sim.set_const()
    return sim.expand("body_mass").sum(dim=1)
