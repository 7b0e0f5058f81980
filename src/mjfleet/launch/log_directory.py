"""Chooses the folder of torchrunx's logs, with a file for each worker. Pure functions."""

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from mjfleet.config import LaunchConfig

LOG_DIR_VARIABLE = "TORCHRUNX_LOG_DIR"


def log_directory(
    config: LaunchConfig, environ: Mapping[str, str], run_dir: Path, when: datetime
) -> Path | None:
    """Return the folder of an attempt's logs: below the variable's, the flag's, or the run's.

    An empty variable or flag asks for no logs: None.
    """
    folder = environ.get(LOG_DIR_VARIABLE, config.torchrunx_log_dir)
    folder = run_dir / "torchrunx" if folder is None else folder
    return Path(folder, when.isoformat(timespec="seconds")) if folder else None


def log_name(host: str, local_rank: int = 0) -> str:
    """Return the name of a worker's log file."""
    return f"{host}[{local_rank}].log"
