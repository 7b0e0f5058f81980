"""Clips of all formats give the same positions; what does not fit the robot is refused."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
import torch

from mjfleet.errors import UserError
from mjfleet.parts.motion.clips import read_clip
from mjfleet.parts.motion.kinematics import forward
from mjfleet.tools.clip.command import described

from .robots import MODEL, XML, moving

Arrays = dict[str, Any]
MUJOCO, BREADTH_FIRST = [1, 2, 3, 4], [1, 2, 4, 3]
"""Orders of the bodies; that of the joints is theirs."""


def own() -> Arrays:
    clip = moving()
    return {"rate": clip.rate, "joints": np.array(clip.joints), "qpos": clip.qpos.numpy()}


def nameless(order: list[int] = MUJOCO, model: mujoco.MjModel = MODEL) -> Arrays:
    """The motion as mjlab and Isaac Lab write it."""
    qpos = moving().qpos
    found = forward(model, qpos, order)
    joints = [i - 2 for i in order[1:]]
    return {
        "fps": np.array([50]),
        "joint_pos": qpos[:, 7:].numpy()[:, joints],
        "body_pos_w": found.positions.numpy(),
        "body_quat_w": found.rotations.numpy(),
    }


def save(folder: Path, arrays: Arrays) -> Path:
    np.savez_compressed(folder / "clip.npz", **arrays)
    return folder / "clip.npz"


def csv(folder: Path, change: Callable[[np.ndarray], object] = lambda rows: None) -> Path:
    qpos = moving(rate=30.0).qpos.numpy().copy()
    qpos[:, 3:7] = qpos[:, [4, 5, 6, 3]]
    change(qpos)
    np.savetxt(folder / "clip.csv", qpos, delimiter=",")
    return folder / "clip.csv"


def test_every_format_gives_the_same_positions(tmp_path: Path) -> None:
    wanted = moving().qpos
    permuted = own() | {"joints": own()["joints"][[2, 0, 1]]}
    permuted["qpos"] = permuted["qpos"][:, [*range(7), 9, 7, 8]]
    for arrays in (own(), permuted, nameless(), nameless(BREADTH_FIRST)):
        clip = read_clip(save(tmp_path, arrays), MODEL)
        assert (clip.name, clip.rate, clip.joints) == ("clip", 50.0, moving().joints)
        torch.testing.assert_close(clip.qpos, wanted, rtol=0, atol=1e-12)
    clip = read_clip(csv(tmp_path), MODEL)
    assert clip.rate == 30.0
    torch.testing.assert_close(clip.qpos, moving(rate=30.0).qpos, rtol=0, atol=1e-12)
    assert read_clip(tmp_path / "clip.csv", MODEL, 25.0).rate == 25.0
    moving().write(tmp_path / "own.npz")
    again = read_clip(tmp_path / "own.npz", MODEL)
    torch.testing.assert_close(again.qpos, wanted, rtol=0, atol=1e-6)


def test_a_nameless_file_of_another_robot_is_refused_with_the_error(tmp_path: Path) -> None:
    other = mujoco.MjModel.from_xml_string(XML.replace('pos="0 0 -0.3"', 'pos="0 0 -0.31"'))
    path = save(tmp_path, nameless(BREADTH_FIRST, other))
    text = f"{path}: it has no names.* off by up to .* mm in MuJoCo's order, 10 mm in breadth-first"
    with pytest.raises(UserError, match=text):
        read_clip(path, MODEL)


def test_a_nameless_file_is_read_for_a_robot_whose_joints_have_no_names(tmp_path: Path) -> None:
    model = mujoco.MjModel.from_xml_string(XML.replace('<joint name="left_knee"', "<joint").replace(
        '<position joint="left_knee" kp="20" kv="1"/>', ""))  # fmt: skip
    clip = read_clip(save(tmp_path, nameless(BREADTH_FIRST)), model)
    assert clip.joints == ("left_hip", "joint 2", "right_hip")
    torch.testing.assert_close(clip.qpos, moving().qpos, rtol=0, atol=1e-12)
    assert "3 joints" in described(clip, model)


def without(key: str) -> Callable[[Arrays], object]:
    return lambda arrays: arrays.pop(key)


@pytest.mark.parametrize(
    ("make", "change", "message"),
    [
        (own, lambda a: a.update(joints=np.array(["left_hip", "knee", "right_hip"])),
         "it lacks left_knee; the robot lacks knee"),
        (own, lambda a: a.update(qpos=a["qpos"][:, :9]),
         r"qpos is \(151, 9\); it must be \('frames', 10\)"),
        (own, lambda a: a["qpos"].__setitem__((7, 2), np.nan), "row 7 has a number that is not"),
        (own, lambda a: a["qpos"].__setitem__((7, slice(3, 7)), 0.6), "row 7: the quaternion has"),
        (own, lambda a: a.update(qpos=a["qpos"][:1]), "it has 1 frames; a motion has two"),
        (own, without("joints"), "it has rate, qpos; it must have rate, joints and qpos, or fps"),
        (nameless, lambda a: a.update(joint_pos=a["joint_pos"][:, :2]),
         r"joint_pos is \(151, 2\); it must be \('frames', 3\)"),
        (nameless, lambda a: a.update(body_pos_w=a["body_pos_w"][:, :3]),
         r"body_pos_w is \(151, 3, 3\); it must be \(151, 4, 3\)"),
        (own, lambda a: a.update(qpos=np.array([{}])), "it cannot be read"),
        (own, lambda a: a.update(qpos=np.float32(1)), r"qpos is \(\); it must be \('frames', 10\)"),
        (own, lambda a: a.update(joints=a["joints"][[0, 1, 2, 0]]), "left_hip is in `joints` tw"),
        (own, lambda a: a.update(joints="left_hip"), "it lacks left_knee, right_hip"),
        (own, lambda a: a.update(rate=0.0), "its rate is 0 frames a second; it must be from 0.1"),
        (own, lambda a: a.update(rate=-30.0), "its rate is -30 frames a second"),
        (own, lambda a: a.update(rate=np.nan), "its rate is nan frames a second"),
        (own, lambda a: a.update(rate=[30.0, 30.0]), "it cannot be read"),
        (nameless, lambda a: a.update(fps=[0.0]), "its rate is 0 frames a second"),
        (nameless, lambda a: a.update(fps=[]), "it cannot be read"),
        (nameless, lambda a: a.update(joint_pos=np.float32(1)), r"joint_pos is \(\); it must be"),
        (nameless, lambda a: a.update(body_pos_w=a["body_pos_w"][:9]),
         r"body_pos_w is \(9, 4, 3\); it must be \(151, 4, 3\)"),
    ],
)  # fmt: skip
def test_an_npz_that_does_not_fit_is_refused(
    tmp_path: Path, make: Callable[[], Arrays], change: Callable[[Arrays], object], message: str
) -> None:
    arrays = make()
    change(arrays)
    with pytest.raises(UserError, match=f"clip.npz: .*{message}"):
        read_clip(save(tmp_path, arrays), MODEL)


def test_other_files_are_refused(tmp_path: Path) -> None:
    narrow = csv(tmp_path)
    np.savetxt(narrow, np.ones((4, 9)), delimiter=",")
    with pytest.raises(UserError, match="rows have 9 numbers; 10 are needed, of which 3 are joint"):
        read_clip(narrow, MODEL)
    with pytest.raises(UserError, match="row 2: the quaternion has the length 2"):
        read_clip(csv(tmp_path, lambda rows: rows[2].__setitem__(slice(3, 7), 1.0)), MODEL)
    for name, text in (
        ("clip.csv", "a,b\n"),
        ("clip.csv", "\n"),
        ("clip.npz", "no zip"),
        ("clip.pkl", ""),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(UserError, match=re.escape(name)):
            read_clip(tmp_path / name, MODEL)
    with pytest.raises(UserError, match="No such file"):
        read_clip(tmp_path / "none.npz", MODEL)


@pytest.mark.parametrize("fault", ["damaged", "encrypted"])
def test_an_npz_that_cannot_be_unpacked_is_refused(tmp_path: Path, fault: str) -> None:
    path = save(tmp_path, own())
    data = bytearray(path.read_bytes())
    if fault == "damaged":
        place = data.index(b"qpos.npy") + 40
        data[place : place + 400] = bytes(range(200)) * 2
    else:  # A flag of each entry of the directory.
        for match in re.finditer(b"PK\x01\x02", bytes(data)):
            data[match.start() + 8] |= 1
    path.write_bytes(data)
    with pytest.raises(UserError, match=r"clip.npz: it cannot be read: "):
        read_clip(path, MODEL)
