"""Runs a file of Python in a fork of the warm process, as `python FILE` runs it."""

import runpy
import sys
from pathlib import Path


def main() -> None:
    """Run the file that the first argument names."""
    del sys.argv[0]
    sys.path[0] = str(Path(sys.argv[0]).absolute().parent)
    runpy.run_path(sys.argv[0], run_name="__main__")
