"""Reads clips of a robot's motion from the files that people have. In workers and in tools."""

import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import mujoco
import numpy as np
import torch
from mujoco import mjtJoint

from mjfleet.errors import UserError
from mjfleet.parts.motion.kinematics import forward
from mjfleet.utils.input_files import FILE_BYTES
from mjfleet.utils.safe_read import open_regular

SUFFIXES = ".csv", ".npz"
CSV_RATE = 30.0
"""Frames a second of Unitree's retargeted CSV files, which do not name their rate."""
SLOWEST, FASTEST = 0.1, 1e5
"""Frames a second that a clip may have."""
LARGEST_ERROR = 1e-3
"""How far the bodies of a file without names may be from where our kinematics has them, m."""
NORM_ERROR = 0.02
ROOT = 7  # Numbers of a free joint.


@dataclass(frozen=True)
class Clip:
    """A motion of a robot."""

    name: str
    rate: float  # Frames a second.
    joints: tuple[str, ...]  # Names of the joints besides the free one.
    qpos: torch.Tensor
    """Positions, `(frames, numbers)`, float64: those of the free joint (m; w, x, y, z), if the
    robot has one, then of `joints` (rad, m)."""

    def write(self, file: Path | BinaryIO) -> None:
        """Write our own format: `rate`, `joints` and `qpos`."""
        qpos = self.qpos.to(torch.float32).numpy()
        np.savez_compressed(file, rate=self.rate, joints=np.array(self.joints), qpos=qpos)


class Robot:
    """Which numbers of a model's `qpos` a clip has: a free joint that comes first, and all hinges
    and slides."""

    def __init__(self, model: mujoco.MjModel) -> None:
        kinds = model.jnt_type.tolist()
        free = bool(kinds) and kinds[0] == mjtJoint.mjJNT_FREE
        single = mjtJoint.mjJNT_HINGE, mjtJoint.mjJNT_SLIDE
        moved = [i for i, kind in enumerate(kinds) if kind in single]
        self.model, self.root, self.ids = model, ROOT * free, moved
        self.joints = tuple(model.joint(i).name or f"joint {i}" for i in moved)
        self.places = [*range(self.root), *model.jnt_qposadr[moved].tolist()]
        self.dofs = [*range(6 * free), *model.jnt_dofadr[moved].tolist()]

    def whole(self, qpos: torch.Tensor) -> torch.Tensor:
        """Return positions of the whole model, `(frames, nq)`, from those of a clip."""
        rows = torch.from_numpy(self.model.qpos0).repeat(len(qpos), 1)
        rows[:, self.places] = qpos
        return rows

    def whole_velocities(self, speeds: torch.Tensor) -> torch.Tensor:
        """Return velocities of the whole model, `(frames, nv)`, from those of a clip."""
        rows = speeds.new_zeros(len(speeds), self.model.nv)
        rows[:, self.dofs] = speeds
        return rows


def read_clip(path: Path, model: mujoco.MjModel, rate: float | None = None) -> Clip:
    """Read the clip of a file for the robot of a model, by the format that its content shows.

    `rate` is that of a CSV file, frames a second; None: CSV_RATE.

    Raises:
        UserError: it is no such file, or does not fit the robot; or it has a rate of its own.
    """
    robot = Robot(model)
    try:
        if path.suffix.lower() == ".csv":
            rate, qpos = CSV_RATE if rate is None else rate, _read_csv(path, robot)
        elif path.suffix.lower() == ".npz":
            if rate is not None:
                raise UserError(f"it has its own rate: leave out --rate {rate:g}.")
            rate, qpos = _read_npz(path, robot)
        else:
            raise UserError(f"it must be a file of {' or '.join(SUFFIXES)}.")
        if not SLOWEST <= rate <= FASTEST:
            must = f"it must be from {SLOWEST:g} to {FASTEST:g}"
            raise UserError(f"its rate is {rate:g} frames a second; {must}.")
        return Clip(path.stem, rate, robot.joints, torch.from_numpy(_checked(qpos, robot)))
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}.") from None
    except (ValueError, RuntimeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(f"{path}: it cannot be read: {error}") from None


def _read_csv(path: Path, robot: Robot) -> np.ndarray:
    """Read rows without a header: position (m), quaternion x, y, z, w, and joints (rad, m)."""
    with open_regular(path, FILE_BYTES, may_link=True) as file:
        if not (lines := [line for line in file.read().splitlines() if line.strip()]):
            raise UserError("it is empty.")
        rows = np.loadtxt(lines, delimiter=",", ndmin=2)
    if rows.shape[1] != (size := len(robot.places)):
        raise UserError(
            f"its rows have {rows.shape[1]} numbers; {size} are needed, of which "
            f"{len(robot.joints)} are joints: {', '.join(robot.joints)}."
        )
    if robot.root:
        rows[:, 3:7] = rows[:, [6, 3, 4, 5]]
    return rows


def _read_npz(path: Path, robot: Robot) -> tuple[float, np.ndarray]:
    """Read the rate and the positions of our own format, or of mjlab's and Isaac Lab's."""
    with open_regular(path, FILE_BYTES, may_link=True) as file:
        if (size := sum(part.file_size for part in zipfile.ZipFile(file).infolist())) > FILE_BYTES:
            raise UserError(f"it has {size:,} bytes unpacked; {FILE_BYTES:,} are allowed.")
        file.seek(0)
        with np.load(file, allow_pickle=False) as arrays:
            data = {name: arrays[name] for name in arrays.files}
    if {"rate", "joints", "qpos"} <= data.keys():
        return float(data["rate"].item()), _by_names(data, robot)
    if {"fps", "joint_pos", "body_pos_w", "body_quat_w"} <= data.keys():
        return float(data["fps"].item()), _by_kinematics(data, robot)
    raise UserError(
        f"it has {', '.join(data) or 'nothing'}; it must have rate, joints and qpos, or fps, "
        "joint_pos, body_pos_w and body_quat_w."
    )


def _by_names(data: Mapping[str, np.ndarray], robot: Robot) -> np.ndarray:
    names = list(map(str, data["joints"].ravel()))
    if twice := [name for name in names if names.count(name) > 1]:
        raise UserError(f"the joint {twice[0]} is in `joints` twice.")
    if {*names} != {*robot.joints}:
        lacking, others = ({*a} - {*b} for a, b in ((robot.joints, names), (names, robot.joints)))
        text = "; ".join(f"{k} {', '.join(sorted(v))}" for k, v in
                         (("it lacks", lacking), ("the robot lacks", others)) if v)  # fmt: skip
        raise UserError(f"joints of other names: {text}.")
    qpos = _numbers(data, "qpos", robot.root + len(names))
    order = [robot.root + names.index(name) for name in robot.joints]
    return qpos[:, [*range(robot.root), *order]]


def _by_kinematics(data: Mapping[str, np.ndarray], robot: Robot) -> np.ndarray:
    """Return the positions by that order of bodies and joints, MuJoCo's or breadth-first, in which
    our kinematics has the bodies where the file has them."""
    model = robot.model
    roots = model.body_rootid[model.jnt_bodyid[:1]].tolist()
    own = [i for i in range(model.nbody) if model.body_rootid[i] in roots]
    joints = _numbers(data, "joint_pos", len(robot.joints))
    bodies = _numbers(data, "body_pos_w", len(own), 3, frames=len(joints))
    turns = _numbers(data, "body_quat_w", len(own), 4, frames=len(joints))
    errors = dict[str, float]()
    for order, tree in (("MuJoCo's order", own), ("breadth-first", _breadth_first(model, own))):
        moved = sorted(robot.ids, key=lambda i: (tree.index(model.jnt_bodyid[i]), i))
        qpos = np.empty((len(joints), len(robot.places)))
        if robot.root:
            qpos[:, :3], qpos[:, 3:7] = bodies[:, 0], turns[:, 0]
        qpos[:, robot.root :] = joints[:, [moved.index(i) for i in robot.ids]]
        found = forward(model, robot.whole(torch.from_numpy(qpos)), tree).positions.numpy()
        errors[order] = float(np.linalg.norm(found - bodies, axis=2).max())
        if errors[order] <= LARGEST_ERROR:
            return qpos
    text = ", ".join(f"{1000 * error:.3g} mm in {order}" for order, error in errors.items())
    raise UserError(
        f"it has no names, and its bodies are not where this robot's are: they are off by up to "
        f"{text}; {1000 * LARGEST_ERROR:g} mm are allowed. Use the file from which it was made."
    )


def _breadth_first(model: mujoco.MjModel, bodies: list[int]) -> list[int]:
    paths = dict[int, tuple[int, ...]]()
    for i in bodies:  # Parents come first.
        paths[i] = (*paths.get(int(model.body_parentid[i]), ()), i)
    return sorted(bodies, key=lambda i: (len(paths[i]), paths[i]))


def _numbers(
    data: Mapping[str, np.ndarray], key: str, *size: int, frames: int | None = None
) -> np.ndarray:
    """Return an array of a file; UserError if its shape is not `(frames, *size)`."""
    array = data[key].astype(float)
    count = frames or (len(array) if array.ndim else 0)
    if array.shape != (count, *size) or not count:
        raise UserError(f"{key} is {array.shape}; it must be {(frames or 'frames', *size)}.")
    return array


def _checked(qpos: np.ndarray, robot: Robot) -> np.ndarray:
    """Return finite positions of at least two frames, with quaternions of length 1."""
    if len(qpos) < 2:
        raise UserError(f"it has {len(qpos)} frames; a motion has two or more.")
    for row in np.flatnonzero(~np.isfinite(qpos).all(axis=1)):
        raise UserError(f"row {row} has a number that is not finite.")
    if robot.root:
        norms = np.linalg.norm(qpos[:, 3:7], axis=1)
        for row in np.flatnonzero(np.abs(norms - 1) > NORM_ERROR):
            raise UserError(f"row {row}: the quaternion has the length {norms[row]:.4g}, not 1.")
        qpos[:, 3:7] /= norms[:, None]
    return qpos
