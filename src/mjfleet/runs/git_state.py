"""Describes the git repositories that a run's code comes from. Runs in the launcher."""

import re
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

DIFF_CHARACTERS = 2**16
SECRET_FILES = [
    f":(exclude,icase,glob)**/{name}"
    for name in (".env*", ".netrc", "*secret*", "*credential*", "*.pem", "*.key", "id_*")
]
SECRET = re.compile(
    r"^([-+ ].*?(?:(?:api|access|private)_?key|passwo?r?d|secret|token)\w*[\"']?\s*[:=]\s*)\S.*$",
    re.IGNORECASE | re.MULTILINE,
)
"""A line that gives a value to something called like a secret."""


def git_state(folders: Iterable[Path], with_diff: bool = False) -> dict[str, dict[str, Any]]:
    """Return commit and dirtiness of the git repositories of these folders, by their root.

    With `with_diff` also what differs from the commit in files that git knows: at most
    DIFF_CHARACTERS, without files and values that are called like secrets.
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
            if changes and with_diff:
                states[root]["diff"] = _diff(Path(root))
    return states


def _diff(root: Path) -> str | None:
    options = ("--no-ext-diff", "--no-textconv", "--no-color")
    diff = _git(root, "diff", *options, "HEAD", "--", ".", *SECRET_FILES)
    if diff is None:
        return None
    diff = SECRET.sub(r"\1<left out>", diff)
    cut = len(diff) - DIFF_CHARACTERS
    return diff if cut <= 0 else f"{diff[:DIFF_CHARACTERS]}\n<{cut} more characters>\n"


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
