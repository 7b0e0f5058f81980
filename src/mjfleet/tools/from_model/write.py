"""Writes the folder of a task for a robot's own model. Imports MuJoCo."""

import errno
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from mjfleet.errors import UserError
from mjfleet.legged.mirror import foot_images, joint_images
from mjfleet.legged.scene import make_robot
from mjfleet.tools.from_model.actuators import GRAVITY, is_controller, limit_controls
from mjfleet.tools.from_model.complete import complete
from mjfleet.tools.from_model.completed import Completed
from mjfleet.tools.from_model.home import leg_length
from mjfleet.tools.from_model.robot import HINGE
from mjfleet.tools.from_model.source import ASSETS, read_source

TEMPLATES = Path(__file__).with_name("templates")
LINE = 100
"""Characters of a line."""
RATE = 50
"""Control steps per second."""
GO1_MASS, GO1_LEG = 13.0, 0.4
"""The robot of mjfleet.legged's own numbers, kg and m."""


def write_task(
    file: Path, folder: Path, name: str, class_name: str, commands: Sequence[str]
) -> list[str]:
    """Write the task `folder` from a model, and return the lines that say what was done.

    Everything is made elsewhere first, so that a model that cannot be used leaves nothing.

    Raises:
        UserError: the model cannot be used; the message names the line or the element.
    """
    if folder.exists():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
    with tempfile.TemporaryDirectory() as made:
        place = Path(made)
        source = read_source(file, place)
        try:
            done = complete(source)
            (place / "model.xml").write_text(done.spec.to_xml(), encoding="utf-8")
            mujoco.MjModel.from_xml_path(str(place / "model.xml"))
        except (UserError, ValueError) as error:
            raise UserError(f"{file}: {' '.join(str(error).split())}") from None
        values = _values(done, place, name) | {
            "Class": class_name, "name": name, "file": file.name, "commands": commands,
            "folder": folder, "has_assets": (place / ASSETS).is_dir(),
            "warnings": source.warnings, "added": done.added, "questions": done.questions,
        }  # fmt: skip
        render = _renderer(values)
        kind = "legged_" if values["kind"] == "legged" else ""
        for target, template in (
            ("config.py", f"{kind}config.py"), ("env.py", f"{kind}env.py"), ("README.md",) * 2
        ):  # fmt: skip
            (place / target).write_text(render(template), encoding="utf-8")
        folder.mkdir(parents=True)
        try:
            shutil.copytree(place, folder, dirs_exist_ok=True)
        except OSError:
            shutil.rmtree(folder)
            raise
        written = sorted(path for path in folder.rglob("*") if path.is_file())
    lines = [f"wrote {path}" for path in written]
    for title, texts in (("added", done.added), ("to answer", done.questions)):
        lines += [f"{title}: {text}" for text in texts]
    return lines


def _renderer(values: dict[str, Any]) -> Callable[[str], str]:
    import jinja2

    loader = jinja2.FileSystemLoader(TEMPLATES)
    environment = jinja2.Environment(
        loader=loader, undefined=jinja2.StrictUndefined, keep_trailing_newline=True
    )
    environment.filters["q"] = json.dumps
    return lambda name: environment.get_template(f"{name}.jinja").render(values)


def _values(done: Completed, place: Path, name: str) -> dict[str, Any]:
    """Return what the templates need; add what turns out to be missing to `done`."""
    robot, model = done.robot, done.robot.model
    kind = "pose"
    if done.feet and _fits_legged(done, place):
        kind = "legged"
    elif robot.is_free and not robot.wheels:
        kind = "stand"
    elif done.tool:
        kind = "reach"
    decimation = max(1, round(1 / RATE / model.opt.timestep))
    subject = f"The robot {name}"
    summaries = {
        "legged": f"{subject} follows velocity commands.",
        "stand": f"{subject} stands.",
        "reach": f"{subject} brings its tool to places within reach.",
        "pose": f"{subject} brings its joints to commanded positions.",
    }
    arm = robot.arm()
    points = [robot.data.xanchor[joint] for joint in arm]
    points += [robot.data.site(done.tool).xpos] if done.tool else []
    reach = float(sum(np.linalg.norm(b - a) for a, b in pairwise(points)))
    values: dict[str, Any] = {
        "kind": kind, "summary": summaries[kind], "robot": subject, "actions": model.nu,
        "decimation": decimation, "rate": f"{1 / decimation / model.opt.timestep:g}",
        "timestep": f"{model.opt.timestep:g}", "base": done.base, "is_free": robot.is_free,
        "mass": f"{model.body_subtreemass[robot.root]:.3g}", "hinge": HINGE,
        "feet": done.feet, "feet_text": _tuple(done.feet, 4, len("    feet = ")), "tool": done.tool,
        "first": int(model.jnt_qposadr[model.body_jntadr[robot.root]]),
        "height": round(float(robot.data.xpos[robot.root, 2]), 3),
        "seconds": 10.0 if kind == "stand" else 4.0, "spread": 0.5,
        "width": round(0.06 * reach if kind == "reach" else 0.3 * np.sqrt(model.nu), 3),
        "reach": round(reach, 3),
        "unit": ", m" if kind == "reach" else ", in half ranges",
    }  # fmt: skip
    names = [model.joint(joint).name for joint in arm]
    values |= {"arm": _tuple(names, 0, len("ARM = ")), "arm_length": len(arm)}
    if kind == "legged":
        values |= _legged_numbers(done)
    if kind == "pose":
        values["goals"] = _goals(done)
    return values


def _fits_legged(done: Completed, place: Path) -> bool:
    """Return whether mjfleet.legged accepts the robot; note why it does not."""
    try:
        make_robot(place / "model.xml", done.base, tuple(done.feet))
    except UserError as error:
        why = str(error).removeprefix(f"{place / 'model.xml'}: ").rstrip(".")
        done.questions.append(
            f"The robot has feet, but `mjfleet.legged` says: {why}. It learns to stand. Change the "
            "model, and make the task anew?"
        )
        limit_controls(done)
        (place / "model.xml").write_text(done.spec.to_xml(), encoding="utf-8")
        return False
    return True


def _legged_numbers(done: Completed) -> dict[str, Any]:
    """Return the numbers of a legged robot's configuration, from its mass and its legs."""
    robot, model = done.robot, done.robot.model
    leg, mass = leg_length(robot), float(model.body_subtreemass[robot.root])
    base = float(model.body_mass[robot.fixed_to(robot.root)].sum())
    own = float(model.body_mass[robot.root])
    try:
        joint_images(model)
        foot_images(model, tuple(done.feet))
        symmetric = True
    except UserError as error:
        symmetric, why = False, str(error).partition(". If this")[0]
        done.questions.append(
            f"Are left and right mirror images? {why[0].upper()}{why[1:]}. It is trained without "
            "symmetry."
        )
    owners = {geom: model.body(model.geom_bodyid[geom]).name for geom in robot.solid(robot.bodies)}
    known = {*done.feet, done.base}
    others = [g for g, owner in owners.items() if not {owner, model.geom(g).name} & known]
    share = np.median(model.actuator_forcerange[:, 1] / model.actuator_gainprm[:, 0])
    return {
        "symmetric": symmetric,
        "action_scale": round(float(np.clip(share, 0.2, 0.5)), 2),
        "speed": round(0.5 * float(np.sqrt(GRAVITY * leg)), 1),
        "payload": round(min(0.2 * base, 0.8 * own), 3), "shift": round(0.05 * leg, 3),
        "torque_weight": float(f"{-2e-4 * (GO1_MASS / mass) ** 2:.2g}"),
        "power_weight": float(f"{-3e-3 * GO1_MASS / mass:.2g}"),
        "terrain_scale": round(leg / GO1_LEG, 2), "others_touch": bool(others),
    }  # fmt: skip


def _goals(done: Completed) -> list[tuple[str, float, float, float, bool]]:
    """Return for each actuator its name, home, low and high of its goals, and whether those are
    speeds."""
    robot, model = done.robot, done.robot.model
    rows = list[tuple[str, float, float, float, bool]]()
    for i in range(model.nu):
        joint, is_on_joint = int(model.actuator_trnid[i, 0]), model.actuator_trntype[i] < 2
        is_limited = bool(is_on_joint and model.jnt_limited[joint])
        is_target, home = is_controller(robot, i), float(robot.data.actuator_length[i])
        is_speed = bool(is_on_joint and not is_limited and not is_target)
        low, high = home - 0.5, home + 0.5
        if is_speed:
            is_damped = model.actuator_biasprm[i, 2] < 0
            high = model.actuator_ctrlrange[i, 1] / 2 if is_damped else 5.0
            home, low = 0.0, -high
        elif is_target:
            low, high = model.actuator_ctrlrange[i]
        elif is_limited:
            low, high = sorted(model.jnt_range[joint] * model.actuator_gear[i, 0])
        home, low, high = (round(float(number), 4) for number in (home, low, high))
        rows.append((model.actuator(i).name, home, low, high, is_speed))
    return rows


def _tuple(names: Sequence[str], indent: int, before: int) -> str:
    """Return names as a tuple in Python, formatted as ruff does behind `before` characters."""
    texts = [json.dumps(name) for name in names]
    line = f"({', '.join(texts)}{',' * (len(texts) == 1)})"
    if before + len(line) <= LINE:
        return line
    space = " " * indent
    return "".join(("(\n", *(f"{space}    {text},\n" for text in texts), f"{space})"))
