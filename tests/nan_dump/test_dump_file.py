"""A dump of somebody else is explained or refused with one message."""

from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mjfleet.nan_dump.dump_file import save

from ..conftest import TESTS, drawn
from ..runs.test_damaged_runs import call

MODEL = mujoco.MjModel.from_xml_path(str(TESTS / "models/arm.xml"))
STEPS = 2
WRONG = (
    np.zeros(0), np.zeros((STEPS, 1)), np.zeros((STEPS + 1, 1, 99)), np.array("text"), np.array(-1),
    np.array(10**18), np.array(["a"]), np.full((STEPS, 1), np.nan), np.zeros((3, 0, 2)),
    np.array("\x1b]0;x\x07"), np.zeros((STEPS, 1), complex), np.array([[1]]), np.array([0, 0]),
)  # fmt: skip


def arrays() -> dict[str, Any]:
    qpos = np.zeros((STEPS + 1, 1, MODEL.nq))
    qpos[1, 0, 0] = np.nan
    return {
        "start/qpos": qpos,
        "start/qvel": np.zeros((STEPS + 1, 1, MODEL.nv)),
        "start/ctrl": np.zeros((STEPS + 1, 1, MODEL.nu)),
        "end/qvel": np.zeros((STEPS, 1, MODEL.nv)),
        "action": np.zeros((STEPS, 1, 1)),
        "reward": np.zeros((STEPS, 1)),
        "done": np.zeros((STEPS, 1), bool),
        "worlds": np.array([0]),
        "num_envs": 1,
        "iteration": 1,
        "decimation": 1,
        "task": "arm",
    }


def test_a_dump_is_explained(tmp_path: Path) -> None:
    save(tmp_path / "dump.npz", MODEL, arrays())
    code, said = call("inspect", str(tmp_path / "dump.npz"))
    assert code == 0
    assert "qpos[0]" in said


def test_a_model_of_somebody_else_is_read_only_if_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "dump.npz"
    save(file, MODEL, arrays())
    with np.load(file) as opened:
        content = dict(opened)
    model = content["model"].copy()
    content["model"][-1] ^= 1  # As somebody else would damage it.
    np.savez(file, **content)
    code, said = call("inspect", str(file))
    assert (code, "--trust" in said) == (2, True)
    np.savez(file, **content | {"model": model})
    assert call("inspect", str(file))[0] == 0
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))  # Of another installation.
    assert call("inspect", str(file))[0] == 2
    code, said = call("inspect", str(file), "--trust")
    assert code == 0
    assert "qpos[0]" in said


@drawn(30)
@given(data=st.data())
def test_any_array_in_the_place_of_another_is_answered(tmp_path: Path, data: Any) -> None:
    changed = arrays()
    name = data.draw(st.sampled_from([*changed, "start/__class__", "start/more", "term/\x1b[2J"]))
    changed[name] = data.draw(st.sampled_from(WRONG))
    if data.draw(st.booleans()):
        del changed[data.draw(st.sampled_from(sorted(changed)))]
    save(tmp_path / "dump.npz", MODEL, changed)
    code, said = call("inspect", str(tmp_path / "dump.npz"))
    assert code in (0, 2)
    assert all(c.isprintable() or c in "\n\t" for c in said)


def test_a_small_file_does_not_become_a_large_one(tmp_path: Path) -> None:
    changed = arrays() | {"term/zeros": np.zeros((STEPS, 1, 2**27), np.uint8)}
    save(tmp_path / "dump.npz", MODEL, changed)
    code, said = call("inspect", str(tmp_path / "dump.npz"))
    assert code == 2
    assert "it would fill more than" in said
