"""What a worker's process is given before it imports torch."""

import subprocess
import sys
from pathlib import Path

import pytest

from mjfleet.worker.thread_limits import thread_variables

LEARN = """
import os, sys
from mjfleet.worker.thread_limits import prepare
prepare()
assert "torch" not in sys.modules
import mjfleet.rl.runner
print(os.environ["OMP_WAIT_POLICY"])
"""


@pytest.mark.parametrize(
    ("chosen", "policy"), [({}, "PASSIVE"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE")]
)
def test_training_can_be_imported_where_there_is_no_git(
    tmp_path: Path, chosen: dict[str, str], policy: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LEARN],
        check=False,
        env={"PATH": str(tmp_path), "HOME": str(tmp_path), **chosen},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{policy}\n"


def test_a_worker_has_as_many_threads_as_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    variables = thread_variables(3)
    assert variables["OMP_NUM_THREADS"] == "3"
    assert variables["OMP_WAIT_POLICY"] == "PASSIVE"
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    assert thread_variables(3)["OMP_WAIT_POLICY"] == "ACTIVE"
