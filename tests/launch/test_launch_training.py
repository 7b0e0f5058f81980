"""What `train` does before workers start: how long training is, and signals meanwhile."""

from pathlib import Path

import pytest

from mjfleet.cli.train import train
from mjfleet.errors import UserError

from ..conftest import TESTS

TRAINED = str(TESTS / "data/cartpole-balance-9159368")  # 3 iterations of 256 steps.
SMALL = ("--env.num-envs", "8", "--agent.num-steps-per-env", "32", "--gpu-ids", "None")


@pytest.mark.parametrize(
    ("flags", "iterations"),
    [
        ((*SMALL, "--total-steps", "512"), 2),
        ((*SMALL, "--total-steps", "513"), 3),
        (("--resume", TRAINED, "--total-steps", "2_000"), 8),
        (("--resume", TRAINED, "--total-steps", "2000", "--cpu-workers", "2"), 6),
    ],
)
def test_training_is_as_long_as_the_steps_of_all_workers_say(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    flags: tuple[str, ...],
    iterations: int,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert train(["cartpole-balance", *flags, "--dry-run"]) == 0
    (line,) = [x for x in capsys.readouterr().out.splitlines() if x.startswith("iterations:")]
    assert line.split()[1] == str(iterations)
    assert not list(tmp_path.iterdir())


def test_a_length_in_iterations_replaces_a_files_length_in_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("steps.yaml").write_text("total_steps: 1000")
    both = ("--config", "steps.yaml", "--agent.max-iterations", "7")
    assert train(["cartpole-balance", *SMALL, *both, "--dry-run"]) == 0
    assert " 7\n" in capsys.readouterr().out
    with pytest.raises(UserError, match="give one"):
        train(["cartpole-balance", *SMALL, *both, "--total-steps", "9", "--dry-run"])
