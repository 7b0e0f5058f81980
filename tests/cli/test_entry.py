"""Ctrl-C while a command is being imported."""

import os
import signal
import subprocess
import sys
from pathlib import Path

# As in a terminal, also where what runs the tests ignores Ctrl-C.
RUN = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from mjfleet.cli.entry import run
run("command")
"""


def test_ctrl_c_shows_no_traceback_while_a_command_is_imported(tmp_path: Path) -> None:
    (tmp_path / "command.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    result = subprocess.run(
        [sys.executable, "-c", RUN],
        check=False, env=os.environ | {"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True,
    )  # fmt: skip
    assert (result.returncode, result.stderr) == (128 + signal.SIGINT, "")
