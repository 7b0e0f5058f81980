"""Describes the git repositories that a run's code comes from. Runs in the launcher."""

import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

DIFF_CHARACTERS = 2**16
CODE_FILES = ("*.py", "*.xml", "*.toml", "*.lock")
"""Files whose differences are recorded: not those that may hold passwords."""


def git_state(folders: Iterable[Path]) -> dict[str, dict[str, Any]]:
    """Return commit and dirtiness of the git repositories of these folders, by their root.

    `diff` is what differs in code that git knows: its first DIFF_CHARACTERS.
    """
    states = {}
    for folder in folders:
        root = (_git(folder, "rev-parse", "--show-toplevel") or "").strip()
        if root and root not in states:
            changes = _git(folder, "status", "--porcelain")
            states[root] = {
                "commit": (_git(folder, "rev-parse", "HEAD") or "").strip() or None,
                "dirty": None if changes is None else bool(changes),
            }
            if changes:
                options = ("--no-ext-diff", "--no-textconv", "--no-color")
                diff = _git(Path(root), "diff", *options, "HEAD", "--", *CODE_FILES)
                states[root]["diff"] = diff and diff[:DIFF_CHARACTERS]
    return states


def _git(folder: Path, *arguments: str) -> str | None:
    """Return what git prints, or None without git or outside a repository."""
    # A repository's fsmonitor is a program that git would run.
    command = ["git", "-c", "core.fsmonitor=false", "-C", str(folder), *arguments]
    try:
        result = subprocess.run(
            command, check=False, capture_output=True, text=True, errors="replace", timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout if result.returncode == 0 else None
