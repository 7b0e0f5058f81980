"""Reads and writes run.json: what was run, on which machine, and how each attempt ended.

group.json, of a group of runs, is built alike.
"""

import json
import reprlib
from datetime import datetime
from pathlib import Path
from typing import Any

from mjfleet.utils.atomic_write import write_atomically
from mjfleet.utils.safe_read import read_json

RECORD_FILE = "run.json"
GROUP_FILE = "group.json"
KINDS = {
    "task": str, "status": str, "attempts": list, "plan": dict, "argv": list, "git": dict,
    "versions": dict, "changed": dict, "parent": dict, "teacher": dict,
    "members": dict, "id": str,
}  # fmt: skip
"""The types of entries that other code relies on."""


def now() -> str:
    """Return the time with its zone, to the second."""
    return datetime.now().astimezone().isoformat(timespec="seconds")


def read_record(run_dir: Path, file: str = RECORD_FILE) -> dict[str, Any]:
    """Return the entries of run.json, or of a group's `file`; none if it does not exist yet.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not JSON, or is not built as `write_record` builds it.
    """
    try:
        record = read_json(run_dir / file)
    except FileNotFoundError:
        return {}
    if not isinstance(record, dict):
        raise ValueError("it is no mapping")
    for name, kind in KINDS.items():
        if not isinstance(record.get(name, kind()), kind):
            raise ValueError(f"its {name} is {reprlib.repr(record[name])}, not a {kind.__name__}")
    workers = record.get("plan", {}).get("workers", [])
    for name, some in {"attempts": record.get("attempts", []), "workers": workers}.items():
        if not isinstance(some, list) or not all(isinstance(one, dict) for one in some):
            raise ValueError(f"its {name} are no list of mappings")
    if not all(isinstance(one, dict) for one in record.get("members", {}).values()):
        raise ValueError("its members are no mapping of mappings")
    return record


def write_record(run_dir: Path, file: str = RECORD_FILE, **entries: Any) -> None:
    """Add or change entries of run.json, or of a group's `file`. Paths are written as text."""
    text = json.dumps(read_record(run_dir, file) | entries, indent=2, default=str) + "\n"
    write_atomically(run_dir / file, lambda opened: opened.write(text.encode()))


def record_to_share(run_dir: Path, iteration: int) -> dict[str, Any]:
    """Return what others may know of run.json: nothing of the machine, its folders and its code.

    It is that of a run which was stopped now, after so many iterations.
    """
    record = read_record(run_dir)
    plan = record["plan"]
    workers = [{"device": worker["device"]} for worker in plan["workers"]]
    sizes = {name: plan[name] for name in ("max_iterations", "world_size")}
    end = {"status": "stopped", "ended": now(), "iterations": iteration}
    begin = {name: record[name] for name in ("task", "started", "seed", "versions")}
    attempt = {"started": record["started"], **end}
    return {**begin, **end, "plan": {**sizes, "workers": workers}, "attempts": [attempt]}
