"""Finds the file of a task's model: beside its code, in a package, or in MuJoCo Menagerie."""

import inspect
from pathlib import Path

from mjfleet.errors import UserError
from mjfleet.utils.packages import find_package, need_extra

MENAGERIE = "menagerie:"


def find_model(owner: type, model_file: str) -> Path:
    """Return the path of the MJCF file that a class names.

    It is relative to the file of that class; `package:path`, relative to an installed package,
    which is not imported; or `menagerie:<robot>`, the robot's default scene, or
    `menagerie:<robot>/<entry>`, another of its files.

    Raises:
        UserError: the package is not installed, Menagerie has no such robot, or it can neither be
            found nor fetched.
    """
    if not model_file.startswith(MENAGERIE):
        package, _, file = model_file.rpartition(":")
        return (find_package(package) if package else Path(inspect.getfile(owner)).parent) / file
    what = f"{owner.__name__}: model_file {model_file!r}"
    need_extra("menagerie", what, ["mujoco_menagerie"])
    import mujoco_menagerie

    robot, _, entry = model_file.removeprefix(MENAGERIE).partition("/")
    try:
        files = mujoco_menagerie.get(robot)
        file = files.entry(entry or None).file  # Before anything is fetched for a wrong name.
        return files.path() / file
    except (mujoco_menagerie.MenagerieError, OSError) as error:
        raise UserError(
            f"{what}: {error}. MENAGERIE_ROOT may name a clone of MuJoCo Menagerie to look in."
        ) from None
