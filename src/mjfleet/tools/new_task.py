"""`mjfleet new-task <name>`: writes a task folder to start from.

Imports nothing heavy, but MuJoCo with `--from`.
"""

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from mjfleet import config
from mjfleet.config.flags import parse_flags
from mjfleet.config.validation import Checked, Folder, PathText
from mjfleet.errors import UserError
from mjfleet.registry import discover
from mjfleet.utils.console import print_line
from mjfleet.utils.mujoco_import import import_mujoco

TEMPLATE = Path(__file__).with_name("task_template")
"""A task named `reacher` with classes named Reacher...; the new names replace these."""
FILES = ("config.py", "env.py", "model.xml")
NEXT = ("train {} --dry-run", "mjfleet check-task {}", "train {}", "play {} --resume latest")


@dataclass(frozen=True, kw_only=True)
class NewTaskArguments(Checked):
    """Write a small task that can be trained: a model, an environment and default numbers."""

    name: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="NAME")]
    """Name of the task and of its folder, such as `my-robot`."""
    from_: Annotated[PathText, tyro.conf.arg(name="from", metavar="FILE")] = None
    """Model of a robot of your own, MJCF or URDF, to make the task for. It is copied."""
    robot: Annotated[str | None, tyro.conf.arg(metavar="BODY")] = None
    """With `--from`: the robot that the task is for, where the file has several; the body of it
    that is on the world."""
    tasks_dir: Folder = "tasks"
    """Folder in which the task's folder is made."""


def new_task(arguments: Sequence[str]) -> int:
    parsed = parse_flags(NewTaskArguments, arguments, "mjfleet new-task")
    name, root = parsed.name, Path(parsed.tasks_dir)
    if not re.fullmatch("[A-Za-z][A-Za-z0-9_-]{0,99}", name):
        raise UserError(
            f"the name is {name!r}; it must have at most 100 letters, digits, dashes and "
            "underscores, and begin with a letter."
        )
    if parsed.robot is not None and parsed.from_ is None:
        raise UserError("--robot chooses a robot of a file, and needs --from.")
    known = discover(os.environ, parsed.tasks_dir if root.is_dir() else None).tasks
    if name in known:
        raise UserError(f"there is a task `{name}` already, in {known[name].folder}.")
    class_name = "".join(part[:1].upper() + part[1:] for part in re.split("[-_]", name))
    class_name += "Task" * hasattr(config, f"{class_name}Config")  # Which the task imports.
    folder = root / name
    run = "uv run " if "UV_RUN_RECURSION_DEPTH" in os.environ else ""
    is_found = root.resolve() == Path("tasks").resolve()
    where = name if is_found else f"{name} --tasks-dir {shlex.quote(str(root))}"
    commands = [f"{run}{command.format(where)}" for command in NEXT]
    try:
        if parsed.from_ is None:
            lines = _write_template(folder, {"reacher": name, "Reacher": class_name})
        else:
            import_mujoco()
            from mjfleet.tools.from_model.write import write_task

            file = Path(parsed.from_)
            lines = write_task(file, folder, name, class_name, commands, parsed.robot)
    except OSError as error:
        raise UserError(f"{folder} cannot be made: {error.strerror}") from None
    for line in (*lines, "\nNext", *(f"  {command}" for command in commands)):
        print_line(line)
    return 0


def _write_template(folder: Path, names: dict[str, str]) -> list[str]:
    """Write the template with these names for its own; return a line for each file."""
    folder.mkdir(parents=True)
    for file in FILES:
        text = (TEMPLATE / file).read_text(encoding="utf-8")
        text = re.sub("[Rr]eacher", lambda found: names[found[0]], text)
        (folder / file).write_text(text, encoding="utf-8")
    return [f"wrote {folder / file}" for file in FILES]
