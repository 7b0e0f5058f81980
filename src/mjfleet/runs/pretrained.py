"""Policies that task folders hold ready to be played: `pretrained/<task>.pt`. Imports no torch.

Such a file is a checkpoint without value network and optimiser.
"""

from pathlib import Path
from typing import Any

from mjfleet.config import TrainConfig, to_dict
from mjfleet.errors import UserError
from mjfleet.registry import Registry
from mjfleet.runs.checkpoints import about

PLAYED = "played"  # Its table; marks the file as one of these.


def find_pretrained(registry: Registry, name: str) -> Path:
    """Return the pretrained policy of a task; UserError, which names those that have one."""
    files = {k: t.folder / "pretrained" / f"{k}.pt" for k, t in registry.tasks.items()}
    with_one = [task for task, file in files.items() if file.is_file()]
    if registry.find(name).name not in with_one:
        raise UserError(
            f"--pretrained: {name} has no pretrained policy; these tasks have one: "
            f"{', '.join(with_one) or 'none'}. `mjfleet export --format pretrained` makes one."
        )
    return files[name]


def recorded_in(config: TrainConfig) -> dict[str, Any]:
    """Return the environment's numbers and the networks' of a configuration, as plain data."""
    agent = to_dict(config.agent)
    kept = {name: agent[name] for name in ("obs_groups", "actor", "critic", "algorithm", "library")}
    return {"env": to_dict(config.env), "agent": kept}


def config_in(checkpoint: Path) -> dict[str, Any]:
    """Return the configuration that a pretrained policy holds; empty for other checkpoints."""
    data = about(checkpoint).get("config")
    return data if isinstance(data, dict) else {}


def describe(checkpoint: Path) -> str:
    """Return a line about where a pretrained policy is from."""
    known = about(checkpoint)
    parts = (f"{known.get('iteration')} iterations", f"mjfleet {known.get('mjfleet_version')}")
    return ", ".join((*parts, f"commit {known.get('commit')}"))
