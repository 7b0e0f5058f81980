"""What draws nothing needs no library to draw with."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PREPARED = "from mjfleet.worker.thread_limits import prepare; prepare()"


@pytest.mark.parametrize(
    ("backend", "first"), [("egl", PREPARED), ("bogus", "import mjfleet; mjfleet.EnvConfig")]
)
def test_mujoco_is_imported_where_its_drawing_cannot_be(
    tmp_path: Path, backend: str, first: str
) -> None:
    for name in ("libEGL.so", "libEGL.so.1"):
        (tmp_path / name).touch()  # No library, but the loader finds it first.
    environ = os.environ | {"MUJOCO_GL": backend, "LD_LIBRARY_PATH": str(tmp_path)}
    environ.pop("PYOPENGL_PLATFORM", None)
    code = f"{first}; import os, mujoco; print(mujoco.MjModel, os.environ['MUJOCO_GL'])"
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert result.stderr == ""
    assert result.stdout.split()[-1] == backend, "what draws is to know it"
    command[-1] = "import mujoco"
    assert subprocess.run(command, env=environ, capture_output=True, check=False).returncode
