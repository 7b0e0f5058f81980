"""The model of a robot that follows clips, and its motors. Runs where a model is compiled."""

from pathlib import Path
from typing import Any

import mujoco
import torch
from mujoco import mjtConDataField, mjtJoint, mjtObj, mjtSensor

from mjfleet.errors import UserError
from mjfleet.legged.scene import FOUND, HOME, add_ground
from mjfleet.sim.actuators import position_actuators
from mjfleet.tracking.config import TrackingConfig

FAR = 1e3  # Where the range of a joint without limits ends, rad or m.
TOUCH = "tracking/"  # Before the names of sensors that count contacts with the world.
SELF = "tracking self"  # The sensor of the largest force between bodies of the robot.
FORCE = (1 << int(mjtConDataField.mjCONDATA_FORCE), 2, 1)
"""A contact sensor's parameters: it measures the force of the contact in which that is largest."""
OWN_BIT = 1 << 16
"""The bit of contype and conaffinity by which shapes of a robot collide with each other."""


def make_robot(path: Path, cfg: TrackingConfig) -> mujoco.MjModel:
    """Compile a robot's model: one with a free joint on a plane, unless the file has ground.

    UserError if it is no model, or has no body of a name in `cfg`.
    """
    try:
        spec = mujoco.MjSpec.from_file(str(path))
        root = next((j.parent for j in spec.joints if j.type == mjtJoint.mjJNT_FREE), None)
        if root:
            key = spec.key(HOME)
            height = float(key.qpos[2] if key and len(key.qpos) else root.pos[2])
            add_ground(spec, height)
            # On a plane the solver needs fewer iterations from the smooth acceleration.
            spec.option.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_WARMSTART)
            root.name = root.name or "root"
            is_any_right = root.name in cfg.touching
            for name in () if is_any_right else dict.fromkeys((root.name, *cfg.touching)):
                if spec.body(name) is None:
                    raise UserError(f"--env.touching: the model has no body {name!r}.")
                world = {"objtype": mjtObj.mjOBJ_BODY, "objname": "world", "intprm": FOUND}
                subtree = {"reftype": mjtObj.mjOBJ_XBODY, "refname": name}
                spec.add_sensor(
                    name=f"{TOUCH}{name}", type=mjtSensor.mjSENS_CONTACT, **world, **subtree
                )
        if cfg.self_collision:
            _collide(spec, cfg.self_collision)
        model = spec.compile()
        for i in range(model.nsensor):  # As in the last physics step: no contacts have to be found.
            if model.sensor(i).name.startswith((TOUCH, SELF)):
                model.sensor_needstage[i] = mujoco.mjtStage.mjSTAGE_ACC
    except (UserError, ValueError) as error:
        raise UserError(f"{path}: {error}") from None
    return model


def _collide(spec: mujoco.MjSpec, names: tuple[str, ...]) -> None:
    """Let bodies collide with each other, and measure the largest force between them.

    A body collides by the shapes that collide with other things, or by all of them if none does.
    """
    for name in names:
        if (body := spec.body(name)) is None or body == spec.worldbody:
            raise UserError(f"--env.self-collision: the robot has no body {name!r}.")
        shapes = list(body.geoms)
        for shape in [one for one in shapes if one.contype or one.conaffinity] or shapes:
            shape.contype |= OWN_BIT
            shape.conaffinity |= OWN_BIT
    robot = spec.body(names[0])
    while robot.parent != spec.worldbody:
        robot = robot.parent
    robot.name = robot.name or "root"
    own = {"objname": robot.name, "refname": robot.name, "intprm": FORCE}
    kinds = {"objtype": mjtObj.mjOBJ_XBODY, "reftype": mjtObj.mjOBJ_XBODY}
    spec.add_sensor(name=SELF, type=mjtSensor.mjSENS_CONTACT, **own, **kinds)


class Motors:
    """The joints that position actuators move, in the order of these: places in `qpos` and `qvel`,
    pose at rest, range and share of the torque limit."""

    def __init__(self, env: Any) -> None:
        """Read the model of a TrackingEnv; UserError if an actuator is of another kind."""
        model, device = env.sim.model, env.device
        on_joint = model.actuator_trntype <= int(mujoco.mjtTrn.mjTRN_JOINTINPARENT)
        for i in (~(position_actuators(model) & on_joint)).nonzero()[0]:
            raise UserError(
                f"{type(env).__name__}: the actuator {model.actuator(i).name or i} must be of the "
                "kind <position> on a joint."
            )
        ids = model.actuator_trnid[:, 0]
        self.places = torch.from_numpy(model.jnt_qposadr[ids]).long().to(device)
        self.dofs = torch.from_numpy(model.jnt_dofadr[ids]).long().to(device)
        has_home = mujoco.mj_name2id(model, mjtObj.mjOBJ_KEY, HOME) >= 0
        pose = torch.from_numpy(model.key(HOME).qpos if has_home else model.qpos0)
        self.pose = pose.float().to(device)[self.places]
        ranges = torch.from_numpy(model.jnt_range[ids]).float().to(device)
        is_limited = torch.from_numpy(model.jnt_limited[ids]).bool().to(device)
        far = torch.tensor((-FAR, FAR), device=device)
        self.low, self.high = torch.where(is_limited.unsqueeze(1), ranges, far).unbind(dim=1)
        kp = torch.from_numpy(model.actuator_gainprm[:, 0]).float()
        # MuJoCo limits the torque of an actuator, and that of all actuators on a joint.
        limits = [
            torch.where(torch.from_numpy(is_on).bool(), torch.from_numpy(ends).float(), torch.inf)
            for is_on, ends in (
                (model.actuator_forcelimited, abs(model.actuator_forcerange).max(axis=1)),
                (model.jnt_actfrclimited[ids], abs(model.jnt_actfrcrange[ids]).max(axis=1)),
            )
        ]
        force = torch.minimum(*limits)
        self.reach = torch.where(force.isfinite(), force / kp, 1.0).to(device)
        """What the torque limit is over kp, rad; 1 without a limit."""
