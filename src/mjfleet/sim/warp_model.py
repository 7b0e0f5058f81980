"""MuJoCo-Warp's copy of a model, and fields of it that differ between worlds. Runs in a worker."""

import copy
from operator import attrgetter

import mujoco
import mujoco_warp as mjw
import torch
import warp as wp

from mjfleet.errors import UserError
from mjfleet.utils.console import in_a_line

LACKING = int(mujoco.mjtDisableBit.mjDSBL_MIDPHASE | mujoco.mjtDisableBit.mjDSBL_AUTORESET)


def without_lacking(model: mujoco.MjModel) -> mujoco.MjModel:
    """Return a copy of a model without what MuJoCo-Warp lacks and no result depends on."""
    model = copy.copy(model)
    # MuJoCo-Warp has neither these parts nor the flags that turn them off.
    model.opt.disableflags &= ~LACKING
    if model.opt.solver == mujoco.mjtSolver.mjSOL_PGS:  # Which it lacks.
        model.opt.solver = mujoco.mjtSolver.mjSOL_NEWTON
    return model


def put_model(model: mujoco.MjModel, purpose: str, remedy: str) -> mjw.Model:
    """Return the model on warp's current device, where it has a `purpose`, such as "simulate".

    Raises:
        UserError: the model uses something that MuJoCo-Warp lacks. The message has the `remedy`.
    """
    try:
        return mjw.put_model(model)
    except (NotImplementedError, ValueError) as error:
        lacks = in_a_line(error).rstrip(".")
        raise UserError(f"MuJoCo-Warp cannot {purpose} this model: {lacks}. {remedy}") from None


def expand_field(model: mjw.Model, name: str, num_worlds: int) -> torch.Tensor:
    """Give each world its own values of a field of the model; return them, `(num_worlds, ...)`.

    Raises:
        ValueError: MuJoCo-Warp has no such field, or one for all worlds together.
    """
    *options, field = name.split(".")
    owner = attrgetter(*options)(model) if options else model
    shared = getattr(owner, field, None)
    # Arrays of the model have a dimension for the worlds if they have one for their objects.
    dims = 1 if options else 2
    if not isinstance(shared, wp.array) or shared.shape[0] != 1 or shared.ndim < dims:
        raise ValueError(f"MuJoCo-Warp keeps {name!r} for all worlds together")
    own = wp.to_torch(shared).repeat_interleave(num_worlds, dim=0)
    setattr(owner, field, wp.from_torch(own, dtype=shared.dtype))
    return own
