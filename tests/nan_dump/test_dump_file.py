"""What `mjfleet inspect` answers to a file that is no dump, or not of the task's model."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mjfleet.nan_dump.dump_file import save

from ..runs.test_damaged_runs import RUN, call

STEPS = 2
CARTPOLE = {"nq": 2, "nv": 2, "nu": 1}


def arrays(nq: int, nv: int, nu: int) -> dict[str, Any]:
    qpos = np.zeros((STEPS + 1, 1, nq))
    qpos[1, 0, 0] = np.nan
    return {
        "start/qpos": qpos,
        "start/qvel": np.zeros((STEPS + 1, 1, nv)),
        "start/ctrl": np.zeros((STEPS + 1, 1, nu)),
        "end/qvel": np.zeros((STEPS, 1, nv)),
        "action": np.zeros((STEPS, 1, 1)),
        "reward": np.zeros((STEPS, 1)),
        "done": np.zeros((STEPS, 1), bool),
        "worlds": np.array([0]),
        "num_envs": 1,
        "iteration": 1,
        "decimation": 1,
    }


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({}, "qpos[0] (joint slider) is nan"),
        (arrays(7, 6, 1), "its start/qpos is not of the model of task cartpole-balance"),
        ({"reward": np.zeros((9, 1))}, "different numbers of steps"),
        ({"start/qpos": np.zeros((STEPS + 1, 1, 2))}, "is not a NaN dump"),
    ],
)
def test_a_dump_is_explained_if_it_is_of_its_task(
    changed: dict[str, Any], message: str, tmp_path: Path
) -> None:
    for file in ("run.json", "config.yaml"):
        shutil.copy(RUN / file, tmp_path)
    file = tmp_path / "failures" / "nan_rank0.npz"
    save(file, arrays(**CARTPOLE) | changed)
    code, shown = call("inspect", str(file))
    assert (code, message in shown) == (2 * bool(changed), True), shown


@pytest.mark.parametrize(
    "content", [b"", b"no archive", b"PK\x03\x04 cut off", "array", "other", None]
)
def test_what_is_no_dump_is_one_message(content: bytes | str | None, tmp_path: Path) -> None:
    file = tmp_path / "nan_rank0.npz"
    if content == "array":
        with file.open("wb") as opened:
            np.save(opened, np.zeros(3))
    elif content == "other":
        np.savez(file, model=np.zeros(3))
    elif content is None:
        save(file, arrays(**CARTPOLE))  # In no run directory.
    else:
        assert isinstance(content, bytes)
        file.write_bytes(content)
    code, shown = call("inspect", str(file))
    assert code == 2
    assert shown.startswith(f"error: {file}")
    assert len(shown.splitlines()) == 1
