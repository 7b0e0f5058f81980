"""run.json: what was run, on what, and how it ended."""

import json
import subprocess
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

from mjfleet.utils.atomic_write import write_atomically

RECORD_FILE = "run.json"
METRICS_FILE = "metrics.csv"
"""There from the moment that training begins."""


def now() -> str:
    """The time with its zone, to the second."""
    return datetime.now().astimezone().isoformat(timespec="seconds")


def read_record(run_dir: Path) -> dict[str, Any]:
    """The entries of run.json; none where there is no such file yet."""
    path = run_dir / RECORD_FILE
    return json.loads(path.read_text()) if path.exists() else {}


def write_record(run_dir: Path, **entries: Any) -> None:
    """Add or change entries of run.json."""
    text = json.dumps(read_record(run_dir) | entries, indent=2) + "\n"
    write_atomically(run_dir / RECORD_FILE, lambda file: file.write(text.encode()))


def git_state(folders: Iterable[Path]) -> dict[str, dict[str, Any]]:
    """Commit and dirtiness of the git repositories that hold these folders, by their root."""
    states = {}
    for folder in folders:
        root = _git(folder, "rev-parse", "--show-toplevel")
        if root and root not in states:
            changes = _git(folder, "status", "--porcelain")
            states[root] = {
                "commit": _git(folder, "rev-parse", "HEAD") or None,
                "dirty": None if changes is None else bool(changes),
            }
    return states


def _git(folder: Path, *arguments: str) -> str | None:
    """What git prints; None without git, or outside a repository."""
    try:
        result = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            check=False,
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() if result.returncode == 0 else None
