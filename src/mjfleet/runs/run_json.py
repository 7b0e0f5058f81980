"""Reads and writes run.json: what was run, on which machine, and how each attempt ended."""

import json
import subprocess
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

from mjfleet.utils.atomic_write import write_atomically

RECORD_FILE = "run.json"


def now() -> str:
    """Return the time with its zone, to the second."""
    return datetime.now().astimezone().isoformat(timespec="seconds")


def read_record(run_dir: Path) -> dict[str, Any]:
    """Return the entries of run.json, none if the file does not exist yet."""
    path = run_dir / RECORD_FILE
    return json.loads(path.read_text()) if path.exists() else {}


def write_record(run_dir: Path, **entries: Any) -> None:
    """Add or change entries of run.json. Paths are written as text."""
    text = json.dumps(read_record(run_dir) | entries, indent=2, default=str) + "\n"
    write_atomically(run_dir / RECORD_FILE, lambda file: file.write(text.encode()))


def git_state(folders: Iterable[Path]) -> dict[str, dict[str, Any]]:
    """Return commit and dirtiness of the git repositories of these folders, by their root."""
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
    """Return what git prints, or None without git or outside a repository."""
    command = ["git", "-C", str(folder), *arguments]
    try:
        result = subprocess.run(command, check=False, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() if result.returncode == 0 else None
