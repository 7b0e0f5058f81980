"""Writes the folder of a task for a robot's own model. Imports MuJoCo."""

import shlex
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mujoco

from mjfleet.errors import UserError
from mjfleet.legged.mirror import foot_images, joint_images
from mjfleet.legged.scene import make_robot
from mjfleet.sim.native_engine import stop_timers
from mjfleet.tools.from_model.goals import write_goals
from mjfleet.tools.from_model.missing_parts import add_missing_parts
from mjfleet.tools.from_model.refusals import in_a_sentence
from mjfleet.tools.from_model.robot import Robot
from mjfleet.tools.from_model.source import read_robot

SUMMARIES = {
    "legged": "The robot {} follows velocity commands.",
    "reach": "The robot {} brings its tool to places within reach.",
    "pose": "The robot {} brings its joints to commanded positions.",
}


def write_task(
    file: Path,
    folder: Path,
    name: str,
    class_name: str,
    commands: Sequence[str],
    chosen: str | None = None,
) -> list[str]:
    """Write the task `folder` from a model, and return the lines that say what was done.

    Everything is made elsewhere first, so that a model that cannot be used leaves nothing. Of
    several robots in the model, the body `chosen` is the one that the task is for.

    Raises:
        UserError: the model cannot be used; the message names the line or the element.
    """
    import jinja2

    stop_timers()
    with tempfile.TemporaryDirectory() as made:
        place = Path(made, name)  # Others may read it, unlike `made`.
        place.mkdir()
        robot = read_robot(file, place)
        try:
            add_missing_parts(robot, chosen)
            text = robot.spec.to_xml().replace(f"{place}/", "")
            (place / "model.xml").write_text(text, encoding="utf-8")
            mujoco.MjModel.from_xml_path(str(place / "model.xml"))
            values = _values(robot, place / "model.xml", name)
            if values["kind"] != "legged":
                values["numbers"] = write_goals(robot, place / "goals.csv")
        except (UserError, ValueError) as error:
            text = in_a_sentence(error, robot.spec).replace(f"{place}/", "")
            raise UserError(f"{file}: {text}") from None
        values |= {"Class": class_name, "file": file.name, "commands": commands}
        values["model"] = shlex.quote(f"{folder}/model.xml")
        loader = jinja2.FileSystemLoader(Path(__file__).with_name("templates"))
        templates = jinja2.Environment(loader=loader, keep_trailing_newline=True)
        kind = "legged_" if values["kind"] == "legged" else ""
        for template in (f"{kind}config.py", f"{kind}env.py", "README.md"):
            text = templates.get_template(f"{template}.jinja").render(values)
            (place / template.removeprefix(kind)).write_text(text, encoding="utf-8")
        try:
            shutil.copytree(place, folder)
        except shutil.Error as error:  # Once the folder is there; others come before.
            shutil.rmtree(folder)
            (_, _, why), *_ = error.args[0]
            raise UserError(f"{folder} cannot be made: {why}") from None
    lines = [f"wrote {path}" for path in sorted(folder.rglob("*")) if path.is_file()]
    lines += [f"added: {text}" for text in robot.added]
    return lines + [f"to answer: {text}" for text in robot.questions]


def _values(robot: Robot, path: Path, name: str) -> dict[str, Any]:
    """Return what the templates need, of the robot whose model is in the file `path`."""
    model, kind, is_mirrored = robot.model, "reach" if robot.tool else "pose", True
    if robot.feet:
        try:
            make_robot(path, robot.base, tuple(robot.feet))
            kind = "legged"
            joint_images(model)
            foot_images(model, tuple(robot.feet))
        except UserError as error:
            is_mirrored, why = False, str(error).removeprefix(f"{path}: ").partition(". If this")[0]
            learns = "without symmetry" if kind == "legged" else "to move its joints, not to walk"
            robot.questions.append(f"Is it meant that {why.rstrip('.')}? It learns {learns}.")
    decimation = max(1, round(0.02 / model.opt.timestep))  # Control at 50 Hz.
    return {
        "kind": kind, "name": name, "summary": SUMMARIES[kind].format(name), "actions": model.nu,
        "decimation": decimation, "rate": f"{1 / decimation / model.opt.timestep:g}",
        "is_mirrored": is_mirrored, "robot": robot, "height": float(robot.data.xpos[robot.root, 2]),
        "acceleration": _acceleration_weight(model) if kind == "legged" else 0.0,
        "mass": _short(model.body_subtreemass[robot.root], 4), "short": _short,
    }  # fmt: skip


def _acceleration_weight(model: mujoco.MjModel) -> float:
    """Return the weight of squared accelerations with which those at full torque cost at most what
    a G1's do. Without armature they are large, and to fall would cost less than to stand."""
    most = model.actuator_forcerange[:, 1] * model.dof_invweight0[6:]
    return -_short(min(1e-7, 24 / (most**2).sum()), 1)


def _short(number: float, digits: int = 2) -> float:
    """Return a number, large or small, rounded to so many digits that are not 0 in front."""
    return float(f"{number:.{digits}g}")
