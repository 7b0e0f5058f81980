"""torchrunx's log directory: environment variable, flag or default. A pure function."""

from collections.abc import Mapping
from pathlib import Path

from mjfleet.config import TrainConfig

LOG_DIR_VARIABLE = "TORCHRUNX_LOG_DIR"


def choose_log_directory(
    config: TrainConfig, environ: Mapping[str, str], run_dir: Path
) -> tuple[Path | None, str]:
    """Return the folder of the workers' logs, or None for no logs, and which source named it."""
    if LOG_DIR_VARIABLE in environ:
        chosen, source = environ[LOG_DIR_VARIABLE], f"environment variable {LOG_DIR_VARIABLE}"
    elif config.torchrunx_log_dir is not None:
        chosen, source = config.torchrunx_log_dir, "--torchrunx-log-dir"
    else:
        return run_dir / "torchrunx", "default"
    return (Path(chosen) if chosen else None), source
