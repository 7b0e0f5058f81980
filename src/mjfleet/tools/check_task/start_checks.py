"""What shows before the first step: how quaternions are read, what becomes of the model, starts."""

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import mujoco
import numpy as np
import torch
from mujoco import mjtJoint

from mjfleet.tools.check_task.finding import MJFLEET, Finding, Place
from mjfleet.tools.check_task.subject import Subject

BEYOND = 0.1  # Share of a joint's range by which a start may be outside of it.
FEW_STARTS = 8  # Worlds whose contacts are computed at the start of an episode.
DEEP = 0.05  # Share of a model's extent by which bodies must overlap before it is told.
LOOKS = ("mat_", "tex_", "light_", "cam_", "skin_")
OFTEN = 0.05  # Share of worlds in which something must be wrong before it is told.
QUATERNION = re.compile(r"qpos|quat|\bq\b")


def quaternion_order(folder: Path) -> Iterator[Finding]:
    """Find quaternions that the task's code takes apart as x, y, z, w."""
    for file in sorted(folder.glob("*.py")):
        for function in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(function, ast.FunctionDef):
                continue
            for node in ast.walk(function):
                if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Tuple):
                    continue
                names = [ast.unparse(each).lower() for each in node.targets[0].elts]
                value = ast.unparse(node.value)
                if [name[-1:] for name in names] == ["x", "y", "z", "w"] and (
                    QUATERNION.search(value) and "xyzw" not in value
                ):
                    yield Finding(
                        "takes a quaternion apart as x, y, z, w: MuJoCo's are w, x, y, z",
                        Place(str(file), node.lineno, function.name),
                        is_sure=False,
                    )


def first_states(subject: Subject) -> Iterator[Finding]:
    """Find starts with wrong quaternions, angles beyond limits, or bodies that overlap."""
    env = subject.env
    env._reset(subject.everywhere)
    qpos, mocap_pos = env.sim.qpos.double().cpu(), env.sim.mocap_pos.double().cpu()
    place = subject.writer_of(env.sim.qpos, "reset_worlds")
    if place and place.file.startswith(MJFLEET):
        place = None  # A robot's class of mjfleet.legged sets poses near the model's own.
    yield from _bad_joints(env.sim.model, qpos, place)
    yield from _overlaps(env.sim.model, qpos.numpy(), mocap_pos.numpy(), place)


def _bad_joints(
    model: mujoco.MjModel, positions: torch.Tensor, place: Place | None
) -> Iterator[Finding]:
    for joint in range(model.njnt):
        name, at = model.joint(joint).name or str(joint), int(model.jnt_qposadr[joint])
        kind = mjtJoint(model.jnt_type[joint])
        if kind in (mjtJoint.mjJNT_FREE, mjtJoint.mjJNT_BALL):
            first = at + 3 * (kind == mjtJoint.mjJNT_FREE)
            sizes = positions[:, first : first + 4].norm(dim=1)
            if float(((sizes - 1).abs() > 0.01).double().mean()) > OFTEN:
                yield Finding(
                    f"the quaternion of joint {name} has norm {float(sizes.min()):.2g} to "
                    f"{float(sizes.max()):.2g} at the start of episodes; write w, x, y, z, in this "
                    "order and with norm 1",
                    place,
                )
        elif model.jnt_limited[joint]:
            low, high = (float(end) for end in model.jnt_range[joint])
            slack, values = BEYOND * (high - low), positions[:, at]
            beyond = (values < low - slack) | (values > high + slack)
            if float(beyond.double().mean()) > OFTEN:
                yield Finding(
                    f"episodes start with joint {name} at {float(values.min()):.3g} to "
                    f"{float(values.max()):.3g}, beyond its range of {low:.3g} to {high:.3g} in "
                    "the model, so that it is thrown back; write positions in rad or m within it, "
                    'or mend the range: degrees, unless the model has <compiler angle="radian"/>',
                    place,
                )


def _overlaps(
    model: mujoco.MjModel, qpos: np.ndarray, mocap_pos: np.ndarray, place: Place | None
) -> Iterator[Finding]:
    """Find that bodies overlap at the start of most episodes."""
    data, depths = mujoco.MjData(model), list[tuple[float, str]]()
    for world in range(min(FEW_STARTS, len(qpos))):
        data.qpos, data.mocap_pos = qpos[world], mocap_pos[world]
        mujoco.mj_forward(model, data)
        touching = [contact for contact in data.contact if min(contact.geom) >= 0]
        if touching:
            deepest = min(touching, key=lambda contact: contact.dist)
            names = " and ".join(_name(model, int(geom)) for geom in deepest.geom)
            depths.append((-deepest.dist, names))
    deep = [depth for depth in depths if depth[0] > max(0.02, DEEP * float(model.stat.extent))]
    if len(deep) > FEW_STARTS / 2:
        yield Finding(
            f"episodes start with geoms {max(deep)[1]} overlapping by up to {max(deep)[0]:.2g} m, "
            "so that the robot is thrown away; start higher, or apart",
            place,
            is_sure=False,
        )


def _name(model: mujoco.MjModel, geom: int) -> str:
    return model.geom(geom).name or f"{geom} of {model.body(model.geom_bodyid[geom]).name}"


def changed_model(subject: Subject) -> Iterator[Finding]:
    """Find that `setup` writes to the model, or that `make_model` returns another each time."""
    env = subject.env
    model = type(env).make_model(env.cfg)
    written = _differences(model, env.sim.model)
    if not written:
        return
    if varied := _differences(model, type(env).make_model(env.cfg)):
        yield Finding(
            f"make_model() returns another model in each call: {', '.join(varied)} differ, so that "
            "workers, evaluations and resumed runs train on different robots; let every number "
            "follow from cfg, seeds too",
            subject.method_place("make_model"),
        )
    else:
        place = subject.method_place("setup")
        if place:  # The first line of setup() that names what is changed.
            lines, first = inspect.getsourcelines(type(env).setup)
            number = next((i for i, line in enumerate(lines) if written[0] in line), 0)
            place = place._replace(line=first + number)
        yield Finding(
            f"setup() changes sim.model.{', '.join(written)}, which the engine may have read "
            "already: MuJoCo-Warp has, and MuJoCo's own engine has computed no constants from it; "
            f'write self.sim.expand("{written[0]}")[:] = ..., or change it in make_model()',
            place,
        )


def _differences(one: mujoco.MjModel, other: mujoco.MjModel) -> list[str]:
    """Return the names of arrays of numbers that differ, except for colours and the like."""
    names = [name for name in dir(one) if isinstance(getattr(one, name, None), np.ndarray)]
    names = [name for name in names if not name.startswith(LOOKS) and "rgba" not in name]
    pairs = ((name, getattr(one, name), getattr(other, name)) for name in names)
    return [name for name, ours, theirs in pairs if not np.array_equal(ours, theirs, True)]
