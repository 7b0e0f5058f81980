"""Finds a physics step with which a robot's controllers are stable."""

from copy import copy

import mujoco
import numpy as np
from mujoco.batch import Batch

from mjfleet.sim.actuators import position_actuators
from mjfleet.tools.from_model.control_ranges import ON_JOINT
from mjfleet.tools.from_model.robot import Robot

STEPS = (0.002, 0.001, 0.0005)
"""Physics steps to choose from, s."""
MUJOCOS = 0.002
"""The physics step of a file that gives none, s."""
ROLLOUTS, SECONDS, HOLD = 20, 2.0, 0.02
"""How many rollouts with random controls tell whether a step is stable, how long they are, and for
how long a control is held, s."""
LARGEST_SPEED = 1000.0
"""Speed beyond which a simulation diverges, m/s or rad/s."""
BAD = [int(getattr(mujoco.mjtWarning, f"mjWARN_BAD{kind}")) for kind in ("QPOS", "QVEL", "QACC")]
"""Warnings with which MuJoCo resets a state that is not finite."""


def longest_step(robot: Robot) -> float:
    """Return the longest physics step, s, that is stable with random controls: at most the file's,
    or where that is MuJoCo's own, 5 ms with legs and 2 ms without.

    If none is, the shortest, and a question is added.
    """
    model = robot.spec.compile()
    longest = 0.005 if robot.feet and not robot.is_closed else MUJOCOS
    if model.opt.timestep != MUJOCOS:
        longest = model.opt.timestep
    on_joint = position_actuators(model) & np.isin(model.actuator_trntype, ON_JOINT)
    kp = (model.actuator_gainprm[:, 0] * model.actuator_gear[:, 0] ** 2)[on_joint]
    dofs = model.jnt_dofadr[model.actuator_trnid[on_joint, 0]]
    # A spring without damping swings up from kp / mass = 4 / step**2 on.
    fastest = float((kp * model.dof_invweight0[dofs]).max(initial=0.0))
    for step in (longest, *(step for step in STEPS if step < longest)):
        if fastest * step**2 < 3 and is_stable(model, step):
            return step
    robot.questions.append(
        f"Are gains and masses right? With random controls the robot's speeds grow without bounds, "
        f"even with a physics step of {1000 * STEPS[-1]:g} ms."
    )
    return STEPS[-1]


def is_stable(model: mujoco.MjModel, step: float) -> bool:
    """Return whether rollouts from the keyframe, with random controls, stay below LARGEST_SPEED."""
    model = copy(model)
    model.opt.timestep, rng = step, np.random.default_rng(0)
    has_range = model.actuator_ctrllimited[:, None] > 0
    around_home = model.key_ctrl[0][:, None] + (-1.0, 1.0)
    low, high = np.where(has_range, model.actuator_ctrlrange, around_home).T
    batch, holds = Batch(model, ROLLOUTS, 1, persistent=True), round(SECONDS / HOLD)
    batch.reset(keyframe=0, stage=mujoco.mjtStage.mjSTAGE_NONE.value)
    controls = rng.uniform(low, high, (ROLLOUTS, holds, model.nu))
    for hold in range(holds):
        batch.ctrl[:] = controls[:, hold]
        batch.step(nstep=round(HOLD / step))
        if batch.warning[:, BAD, 1].any() or np.abs(batch.qvel).max() > LARGEST_SPEED:
            return False
    return True
