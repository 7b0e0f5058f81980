"""Reads and writes run.json: what was run, where, and how it ended; group.json is alike."""

import json
import os
import reprlib
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from mjfleet.errors import UserError
from mjfleet.utils.atomic_write import write_atomically
from mjfleet.utils.console import in_a_line
from mjfleet.utils.safe_read import read_json

CONFIG_FILE = "config.yaml"
RECORD_FILE = "run.json"
GROUP_FILE = "group.json"
RUN_JSON_KINDS = {
    "task": str, "status": str, "attempts": list, "plan": dict, "argv": list, "git": dict,
    "versions": dict, "changed": dict, "parent": dict, "teacher": dict,
    "members": dict, "id": str, "kind": str,
}  # fmt: skip
"""The types of entries that other code relies on."""


def now() -> str:
    """Return the time with its zone, to the second."""
    return datetime.now().astimezone().isoformat(timespec="seconds")


def started_at(record: dict[str, Any]) -> float:
    """Return the start of a run in seconds since the epoch, or 0 if its record has none."""
    try:
        return datetime.fromisoformat(str(record.get("started"))).timestamp()
    except (ValueError, OverflowError):
        return 0.0


def is_group(folder: Path) -> bool:
    """Return whether a folder is one of a group of runs."""
    return os.path.lexists(folder / GROUP_FILE)


def record_of(folder: Path) -> dict[str, Any]:
    """Return the record of a run, which names its task, or of a group, which also names its kind;
    UserError without one."""
    try:
        record = read_record(folder)
        for entry in ("task", "kind") if is_group(folder) else ("task",):
            if entry not in record:
                raise ValueError(f"it names no {entry}")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else in_a_line(error)
        raise UserError(f"{record_file(folder)}: {why}.") from None
    return record


def record_file(folder: Path) -> Path:
    """Return the file of a run's record, or a group's."""
    return folder / (GROUP_FILE if is_group(folder) else RECORD_FILE)


def read_record(folder: Path) -> dict[str, Any]:
    """Return the entries of run.json, or a group's; none if the file does not exist yet.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not JSON, or is not built as `write_record` builds it.
    """
    try:
        record = read_json(record_file(folder))
    except FileNotFoundError:
        return {}
    if not isinstance(record, dict):
        raise ValueError("it is no mapping")
    for name, kind in RUN_JSON_KINDS.items():
        if not isinstance(record.get(name, kind()), kind):
            raise ValueError(f"its {name} is {reprlib.repr(record[name])}, not a {kind.__name__}")
    for one in (record.get("parent", {}), record.get("teacher", {})):
        if "named" in one:  # Its name in earlier versions.
            one["typed"] = one.pop("named")
    lists = record.get("attempts", []), record.get("plan", {}).get("workers", [])
    for entries in (*lists, list(record.get("members", {}).values())):
        if not isinstance(entries, list) or not all(isinstance(one, dict) for one in entries):
            raise ValueError("its attempts, workers or members are no mappings")
        if not all(isinstance(one.get("code") or {}, dict) for one in entries):
            raise ValueError("the code of an attempt is no mapping")
    return record


def write_record(folder: Path, **entries: Any) -> None:
    """Add or change entries of run.json, or a group's."""
    write_json(record_file(folder), read_record(folder) | entries)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a file as a whole, with paths as text."""
    text = json.dumps(content, indent=2, default=str) + "\n"
    write_atomically(path, lambda opened: opened.write(text.encode()))


def record_to_share(run_dir: Path, iteration: int) -> dict[str, Any]:
    """Return what others may know of a run that stops now: nothing of machine, folders or code."""
    record = read_record(run_dir)
    plan = record["plan"]
    workers = [{"device": worker["device"]} for worker in plan["workers"]]
    sizes = {name: plan[name] for name in ("max_iterations", "world_size")}
    end = {"status": "stopped", "ended": now(), "iterations": iteration}
    begin = {name: record[name] for name in ("task", "started", "seed", "versions")}
    attempt = {"started": record["started"], **end}
    return {**begin, **end, "plan": {**sizes, "workers": workers}, "attempts": [attempt]}
