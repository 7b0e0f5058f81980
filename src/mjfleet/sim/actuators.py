"""Kinds of a model's actuators. Runs in a worker, and where a model is made."""

import mujoco
import numpy as np


def position_actuators(model: mujoco.MjModel) -> np.ndarray:
    """Return which actuators have the force `kp * (ctrl - length) - kd * velocity`, `(nu,)`."""
    is_linear = model.actuator_gaintype == mujoco.mjtGain.mjGAIN_FIXED
    is_linear &= model.actuator_biastype == mujoco.mjtBias.mjBIAS_AFFINE
    kp, bias = model.actuator_gainprm[:, 0], model.actuator_biasprm[:, 1]
    return is_linear & (kp == -bias) & (kp > 0)
