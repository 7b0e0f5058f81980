"""config.yaml: written into every run directory, and what `--config FILE` starts from."""

from pathlib import Path
from typing import TypeVar

from mjfleet.config import from_dict, to_dict
from mjfleet.config.train import TrainConfig
from mjfleet.errors import UserError
from mjfleet.files import write_atomically

C = TypeVar("C", bound=TrainConfig)


def read_config(path: str, default: C) -> C:
    """`default` with the values of a YAML file, which may hold only some.

    Raises:
        UserError: the file cannot be read, or holds an unknown key or a wrong value.
    """
    import yaml

    try:
        data = yaml.safe_load(Path(path).read_text())
    except OSError as error:
        raise UserError(f"--config {path}: {error.strerror}.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"--config {path}: not YAML: {error}") from None
    if not isinstance(data, dict):
        raise UserError(f"--config {path}: must hold a mapping such as `agent: {{seed: 2}}`.")
    try:
        return from_dict(default, data)
    except UserError as error:
        raise UserError(f"--config {path}: {error}") from None


def write_config(path: Path, task: str, config: TrainConfig) -> None:
    """Write every value of a configuration, under the names that `--config` reads."""
    import yaml

    header = f"# Train again with: train {task} --config {path.name}\n"
    text = header + yaml.safe_dump(to_dict(config), sort_keys=False)
    write_atomically(path, lambda file: file.write(text.encode()))
