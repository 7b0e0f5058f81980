"""Writes beside a policy what runs it in plain MuJoCo: the model and a Python file."""

import hashlib
import sys
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from mjfleet.env import Env
from mjfleet.tools.export import driver, unknown_robot
from mjfleet.utils.atomic_write import write_atomically
from mjfleet.utils.safe_read import read_bytes

ROBOT_FILE = "robot.py"  # Beside a class of environments: what it does, without mjfleet.
SCRIPT_BYTES = 2**20
MARK = "# Written by `mjfleet export`. Hash of what follows: "


def write_run_files(
    policy: Path, model: mujoco.MjModel, env_class: type[Env[Any]], task: Path, is_kept: bool
) -> list[str]:
    """Write the model and run_<policy>.py beside a policy; return lines to print about them.

    A file that somebody has edited is kept. What goes into the file is the robot.py of the task's
    folder `task`, or the one beside the nearest class that `env_class` is derived from. `is_kept`
    says whether `task` is still there after the export.

    Raises:
        OSError: a file cannot be written.
    """
    binary = np.empty(mujoco.mj_sizeModel(model), np.uint8)
    mujoco.mj_saveModel(model, None, binary)
    write_atomically(policy.with_suffix(".mjb"), lambda file: file.write(binary.tobytes()))
    script, robot = policy.with_name(f"run_{policy.stem}.py"), _robot_file(env_class, task)
    if script.exists() and not _is_ours(read_bytes(script, SCRIPT_BYTES)):
        return [f"kept {script}, which has been edited"]
    is_known = robot.is_file()
    own = robot if is_known else Path(unknown_robot.__file__)
    text = Path(driver.__file__).read_text(encoding="utf-8")
    first, last = text.split(f"from {unknown_robot.__name__}")
    last = last.partition("\n")[2]
    last = last.replace('"POLICY"', repr(policy.name))
    text = f"{first}\n{own.read_text(encoding='utf-8')}\n{last}"
    todo = "complete the class Robot before you run this: its observe() and its act()"
    if not is_known:
        text = f"# TO DO: {todo}.\n{text}"
    head = f"{MARK}{hashlib.sha256(text.encode()).hexdigest()}\n"
    write_atomically(script, lambda file: file.write((head + text).encode()))
    if is_known:
        return [f"wrote {script}, which runs it in plain MuJoCo"]
    return [f"wrote {script}: {todo}" + f", or once for all exports in {robot}" * is_kept]


def _robot_file(env_class: type[Env[Any]], task: Path) -> Path:
    """Return the robot.py of the task or of a class of mjfleet's; where there is none, the task's
    that is missing."""
    modules = [sys.modules[base.__module__] for base in env_class.__mro__ if issubclass(base, Env)]
    own = task / ROBOT_FILE
    places = [own, *(Path(str(module.__file__)).with_name(ROBOT_FILE) for module in modules)]
    return next((place for place in places if place.is_file()), own)


def _is_ours(content: bytes) -> bool:
    """Return whether a file is as an export has written it."""
    head, _, text = content.partition(b"\n")
    return head == f"{MARK}{hashlib.sha256(text).hexdigest()}".encode()
