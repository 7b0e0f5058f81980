"""What a learner remembers on one rank, in files beside checkpoints."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mjfleet.config import AgentConfig
from mjfleet.rl.checkpoints.contents import Checkpointer
from mjfleet.rl.ppo import PPO
from mjfleet.rl.runner import Runner
from mjfleet.runs.checkpoints import forget_rank_files

from ..evaluation.test_evaluator import make_env
from .test_checkpoints import TASK, agent, load, train


class Remembering(PPO):
    """Keeps the newest rewards and counts its updates."""

    length = 4

    def __init__(self, *parts: Any, **settings: Any) -> None:
        super().__init__(*parts, **settings)
        self.kept = self.add_state("kept", torch.zeros(self.length), per="rank")
        self.updates = self.add_state("updates", 0, per="rank")
        self.average = self.add_state("average", torch.zeros(()))

    def update(self) -> dict[str, float]:
        self.kept.copy_(self.kept.roll(1))
        self.kept[0] = self.storage.rewards.sum()
        self.updates += 1
        self.average.lerp_(self.kept[0], 0.5)
        return super().update()


def begin(
    folder: Path, config: AgentConfig, kind: type[Remembering] = Remembering
) -> tuple[Runner, Checkpointer]:
    def find(name: str, base: Any = None) -> Any:
        return kind

    torch.manual_seed(1)
    runner = Runner(make_env(), config, "cpu", 1, find)
    return runner, Checkpointer(runner, TASK, folder, None)


def remembering(iterations: int) -> AgentConfig:
    return agent(iterations, algorithm={"name": "nets:Remembering"})


def state_of(runner: Runner) -> tuple[list[float], int, float]:
    alg = runner.alg
    return alg.kept.tolist(), alg.updates, alg.average.item()


def test_it_is_restored_with_the_checkpoint_that_names_it(tmp_path: Path) -> None:
    runner, checkpointer = begin(tmp_path, remembering(3))
    train(runner, checkpointer)
    (file,) = tmp_path.glob("rank*")
    (rank,) = load(tmp_path, 3)["mjfleet"]["ranks"]
    assert rank["file"]["name"] == file.name == "rank0_3.pt"
    assert rank["file"]["bytes"] == file.stat().st_size
    assert "kept" not in json.dumps(sorted(rank["learner"]))
    resumed, checkpointer = begin(tmp_path, remembering(4))
    assert checkpointer.resume(tmp_path / "model_3.pt") == []
    assert state_of(resumed) == state_of(runner)
    assert state_of(runner)[1] == 3


@pytest.mark.parametrize("fault", ["missing", "damaged"])
def test_without_its_file_it_begins_anew_with_one_line(fault: str, tmp_path: Path) -> None:
    train(*begin(tmp_path, remembering(2)))
    file = tmp_path / "rank0_2.pt"
    if fault == "missing":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-1])
    runner, checkpointer = begin(tmp_path, remembering(4))
    (lost,) = checkpointer.resume(tmp_path / "model_2.pt")
    assert lost.startswith("what the learner remembers on rank 0: rank0_2.pt")
    assert not runner.alg.kept.any()
    assert [row["iteration"] for row in train(runner, checkpointer)] == [3, 4]


class Longer(Remembering):
    length = 6


def test_where_a_tensor_has_another_length_its_rank_begins_anew_with_one_line(
    tmp_path: Path,
) -> None:
    train(*begin(tmp_path, remembering(2)))
    runner, checkpointer = begin(tmp_path, remembering(4), Longer)
    (lost,) = checkpointer.resume(tmp_path / "model_2.pt")
    assert lost == "what the learner remembers on each rank: other shape of 'kept'"
    # The counter of what is in it, too; what all ranks share is kept.
    assert state_of(runner)[:2] == ([0.0] * 6, 0)
    assert runner.alg.average
    assert [row["iteration"] for row in train(runner, checkpointer)] == [3, 4]


def test_it_begins_anew_with_the_environments_with_one_line(tmp_path: Path) -> None:
    train(*begin(tmp_path, remembering(2)))
    runner, checkpointer = begin(tmp_path, replace(remembering(4), seed=2))
    lost = checkpointer.resume(tmp_path / "model_2.pt")
    assert lost[1:] == ["what the learner remembers on each rank, which begins anew with them"]
    assert state_of(runner)[:2] == ([0.0] * 4, 0)


def test_the_checkpoint_before_the_newest_one_is_continued_with_one_line(tmp_path: Path) -> None:
    """As where the newest one is damaged: the file beside the one before is gone by then."""
    train(*begin(tmp_path, replace(remembering(4), save_interval=2)))
    _, checkpointer = begin(tmp_path, remembering(4))
    (lost,) = checkpointer.resume(tmp_path / "model_2.pt")
    assert lost.startswith("what the learner remembers on rank 0: rank0_2.pt")


def test_older_files_go_once_a_newer_checkpoint_is_complete(tmp_path: Path) -> None:
    runner, checkpointer = begin(tmp_path, remembering(6))
    found = []
    runner.train(
        lambda _: found.append({file.name for file in tmp_path.glob("rank*")}),
        lambda: None,
        checkpointer.save,
    )
    assert [file.name for file in tmp_path.glob("rank*")] == ["rank0_6.pt"]
    assert all(len(names) <= 2 for names in found)


@pytest.mark.parametrize("has_checkpoints", [True, False])
def test_the_file_of_the_newest_checkpoint_stays_until_the_next_one_is_complete(
    has_checkpoints: bool, tmp_path: Path
) -> None:
    """A resumed run repeats iterations 6 to 20, and a run may end while it saves."""
    for name in ("rank0_3.pt", "rank0_5.pt", "rank0_7.pt", "rank0_10.pt", "rank0_20.pt"):
        (tmp_path / name).touch()
    if has_checkpoints:
        (tmp_path / "model_5.pt").touch()
    forget_rank_files(tmp_path, "rank0_10.pt")
    (kept,) = tmp_path.glob("rank*")
    assert kept.name == ("rank0_5.pt" if has_checkpoints else "rank0_7.pt")


@pytest.mark.parametrize("number", [0, 2, 5])
def test_a_folder_with_such_a_name_is_left_alone(number: int, tmp_path: Path) -> None:
    folder = tmp_path / f"rank0_{number}.pt"
    folder.mkdir()
    train(*begin(tmp_path, remembering(2)))
    train(*begin(tmp_path, remembering(4)))
    assert folder.is_dir()
    assert {path.name for path in tmp_path.glob("rank*.pt")} == {"rank0_4.pt", folder.name}
    _, checkpointer = begin(tmp_path, remembering(5))
    assert checkpointer.resume(tmp_path / "model_4.pt") == []
