"""What the tests of benchmarks share: a measurement that takes seconds."""

import json
import os
import re
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..conftest import Run

TINY = ("--gpu-ids", "None", "--warmup", "1", "--iterations", "2", "--repeats", "1")


def measured(
    run: Run, tmp_path: Path, *arguments: str, further: Sequence[str] = ()
) -> dict[str, Any]:
    """Run a benchmark and return the JSON that it writes; it leaves nothing else.

    `further` arguments replace those of TINY.
    """
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environ = {"TMPDIR": str(temporary), "OMP_WAIT_POLICY": "PASSIVE"}
    result = run("mjfleet", "bench", *arguments, *TINY, *further, **environ)
    assert result.returncode == 0, result.stderr
    assert not list(temporary.iterdir())
    (path,) = (tmp_path / "benchmarks").glob("*.json")
    text = path.with_suffix(".md").read_text()
    assert text in result.stdout
    data = json.loads(path.read_text())
    assert data["command"].startswith(f"mjfleet bench {' '.join(arguments[:2])}")
    paths = (re.escape(name) for name in (str(tmp_path), os.path.expanduser("~/")))
    for private in (rf"\b{re.escape(socket.gethostname())}\b", *paths):
        assert not re.search(private, path.read_text() + text)
    return data
