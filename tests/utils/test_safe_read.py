"""What a folder may hold in which a run writes."""

from pathlib import Path

import pytest

from mjfleet.errors import UserError
from mjfleet.utils.safe_read import check_folder


@pytest.mark.parametrize(
    ("link", "target", "is_sound"),
    [
        ("a.pt", "run/wandb/logs/x", True),  # Inside.
        ("a.pt", "outside/file", False),
        ("wandb/latest", "run/wandb/logs", True),
        ("latest", "run/wandb/logs", False),
        ("wandb/logs/core.log", "outside/file", True),  # W&B makes it.
        ("wandb/logs/core.log", "outside/gone", True),
        ("wandb/logs/core.log", "outside", False),
        ("wandb/logs/core.pt", "outside/file", False),
        ("wandb/core.log", "outside/file", False),
        ("logs/core.log", "outside/file", False),
    ],
)
def test_links_lead_nowhere_else(tmp_path: Path, link: str, target: str, is_sound: bool) -> None:
    run_dir = tmp_path / "run"
    for folder in (run_dir / "wandb/logs", run_dir / "logs", tmp_path / "outside"):
        folder.mkdir(parents=True)
    (tmp_path / "outside/file").touch()
    (run_dir / "wandb/logs/x").touch()
    (run_dir / link).symlink_to(tmp_path / target)
    if is_sound:
        check_folder(run_dir, ["wandb"])
    else:
        with pytest.raises(UserError, match="a symbolic link"):
            check_folder(run_dir, ["wandb"])
