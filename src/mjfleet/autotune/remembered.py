"""What `--env.num-envs auto` has found before, in a file of the user's cache folder."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from mjfleet.autotune.num_envs_trial import Measured
from mjfleet.config import TrainConfig, to_dict
from mjfleet.launch.launch_plan import LaunchPlan
from mjfleet.runs.run_json import now
from mjfleet.utils.atomic_write import write_atomically
from mjfleet.utils.hardware_names import cpu_name, gpu_name
from mjfleet.utils.packages import stack_versions

Curves = tuple[tuple[Measured, ...], ...]
"""What each worker has measured, never nothing."""

NO_MATTER = (
    "seed", "max_iterations", "save_interval", "init_at_random_ep_len", "experiment_name",
    "run_name", "logger", "wandb",
)  # fmt: skip
"""Numbers and names of the agent on which throughput does not depend."""


def cache_file() -> Path:
    """Where answers are kept, by the XDG Base Directory Specification."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.path.expanduser(base), "mjfleet", "num_envs.json")


def recall(plan: LaunchPlan, config: TrainConfig) -> tuple[str, Curves] | None:
    """When the same was measured here, and what; None: never, or the file cannot be read."""
    try:
        entry = _read(cache_file())[_key(plan, config)]
        curves = tuple(tuple(Measured(**point) for point in curve) for curve in entry["curves"])
        return (entry["when"], curves) if curves and all(curves) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def remember(plan: LaunchPlan, config: TrainConfig, curves: Curves) -> bool:
    """Keep what was measured; whether that was possible. A damaged file is replaced."""
    path = cache_file()
    try:
        entries = _read(path)
    except (OSError, ValueError):
        entries = {}
    plain = [[vars(measured) for measured in curve] for curve in curves]
    entries[_key(plan, config)] = {"task": plan.task, "when": now(), "curves": plain}
    text = json.dumps(entries, indent=1) + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, lambda file: file.write(text.encode()))
    except OSError:
        return False
    return True


def _read(path: Path) -> dict[str, Any]:
    entries = json.loads(path.read_text())
    if not isinstance(entries, dict):
        raise ValueError(f"{path} holds no mapping")
    return entries


def _key(plan: LaunchPlan, config: TrainConfig) -> str:
    """A digest of all that throughput depends on."""
    everything = {
        "task": plan.task,
        "files": digests(plan.task_folder),
        "env": _without(config.env, "num_envs"),
        "agent": _without(config.agent, *NO_MATTER),
        "engine": plan.engine,
        "devices": [gpu_name(w.physical) if w.physical else cpu_name() for w in plan.workers],
        "cores": len(os.sched_getaffinity(0)),
        "threads": plan.threads,
        "versions": stack_versions(),
    }
    return hashlib.sha256(json.dumps(everything).encode()).hexdigest()


def _without(config: Any, *names: str) -> dict[str, Any]:
    return {name: value for name, value in to_dict(config).items() if name not in names}


def digests(folder: Path) -> dict[str, str]:
    """Of each file of a folder by its name in it, but not of what Python compiles from it."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
        if "__pycache__" not in path.parts
    }
