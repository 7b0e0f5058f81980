"""Ctrl-C while a command is being imported, and after it has ended."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

# As in a terminal, also where what runs the tests ignores Ctrl-C.
RUN = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from mjfleet.cli.entry import run
run("command")
"""
INTERRUPT = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n"


def test_ctrl_c_shows_no_traceback_while_this_is_imported(tmp_path: Path) -> None:
    (tmp_path / "signal.py").write_text("raise KeyboardInterrupt")
    first = f"import sys\nsys.modules.pop('signal', None)\nsys.path.insert(0, {str(tmp_path)!r})\n"
    result = subprocess.run(
        [sys.executable, "-c", f"{first}import mjfleet.cli.entry"],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert result.returncode == 128 + signal.SIGINT
    assert not result.stderr


@pytest.mark.parametrize(
    ("source", "code"),
    [
        (f"{INTERRUPT}def main(): pass", -signal.SIGINT),
        ("import atexit, os, signal\ndef main():\n"
         "    atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))", -signal.SIGINT),
        (f"def main():\n  try:\n    exec({INTERRUPT!r})\n"
         "  except KeyboardInterrupt:\n    raise SystemExit(3)", 3),
    ],
    ids=["before", "after", "inside"],
)  # fmt: skip
def test_ctrl_c_shows_no_traceback_whenever_it_comes(
    tmp_path: Path, source: str, code: int
) -> None:
    (tmp_path / "command.py").write_text(source)
    result = subprocess.run(
        [sys.executable, "-c", RUN],
        check=False, env=os.environ | {"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True,
    )  # fmt: skip
    assert result.returncode == code
    assert not result.stderr
