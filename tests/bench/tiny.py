"""What the tests of benchmarks share: a measurement that takes seconds."""

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..conftest import REPOSITORY, Run, changed

BENCHMARKS = REPOSITORY / "benchmarks"

TINY = ("--gpu-ids", "None", "--warmup", "1", "--iterations", "2", "--repeats", "1")


def run_script(
    folder: Path, name: str, *arguments: str, **environ: str
) -> "subprocess.CompletedProcess[str]":
    """Run a script of BENCHMARKS in a folder."""
    return subprocess.run(
        [sys.executable, BENCHMARKS / name, *arguments],
        check=False, cwd=folder, env=os.environ | environ, capture_output=True, text=True,
    )  # fmt: skip


def measured(
    run: Run, tmp_path: Path, *arguments: str, further: Sequence[str] = ()
) -> dict[str, Any]:
    """Run a benchmark and return the JSON that it writes; it leaves nothing else.

    The first argument is what follows `mjfleet bench`, or the name of a script. `further` arguments
    replace those of TINY.
    """
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    flags = changed(TINY, *further)
    if arguments[0].endswith(".py"):
        result = run_script(tmp_path, *arguments, *flags, TMPDIR=str(temporary))
        prog = "python benchmarks/"
    else:
        result = run("mjfleet", "bench", *arguments, *flags, TMPDIR=str(temporary))
        prog = "mjfleet bench "
    assert result.returncode == 0, result.stderr
    assert not list(temporary.iterdir())
    (path,) = (tmp_path / "logs/bench").glob("*.json")
    text = path.with_suffix(".md").read_text()
    assert text in result.stdout
    data = json.loads(path.read_text())
    assert data["command"].startswith(f"{prog}{' '.join(arguments[:2])}")
    paths = (re.escape(name) for name in (str(tmp_path), os.path.expanduser("~/")))
    for private in (rf"\b{re.escape(socket.gethostname())}\b", *paths):
        assert not re.search(private, path.read_text() + text)
    return data
