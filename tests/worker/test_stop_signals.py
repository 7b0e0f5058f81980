"""Signals while libraries are imported."""

import subprocess
import sys

import pytest

SCRIPT = """
import os, signal, sys
from mjfleet.errors import Stopped
from mjfleet.worker.stop_signals import StopRequest
try:
    with StopRequest(say=print).installed():
        if sys.argv[1] == "signal":
            try:
                os.kill(os.getpid(), signal.SIGTERM)
            except BaseException:
                pass  # As a library does that can do without the one that it imports.
        raise ImportError("cannot load module more than once per process")
except Stopped as stopped:
    sys.exit(128 + stopped.signal_number)
"""


@pytest.mark.parametrize(("cause", "code"), [("signal", 143), ("none", 1)])
def test_an_import_that_fails_because_of_a_signal_is_a_stop(cause: str, code: int) -> None:
    command = [sys.executable, "-c", SCRIPT, cause]
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    assert result.returncode == code
    assert ("ImportError" in result.stderr) == (cause == "none")
