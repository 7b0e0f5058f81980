"""How a run ends in run.json, also where that file or its folder is not what it was."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from mjfleet.errors import UserError
from mjfleet.launch.devices import Devices
from mjfleet.launch.launch_plan import make_plan
from mjfleet.registry import discover
from mjfleet.runs import run_directory
from mjfleet.runs.run_directory import RunDirectory
from mjfleet.runs.run_json import read_record

TASK = discover({}).find("cartpole-balance")
PLAN = make_plan(TASK, TASK.defaults(), [Devices(cores=1)], {}).record()


def begin(path: Path) -> RunDirectory:
    return RunDirectory(path, TASK.defaults(), TASK.defaults(), ["train"], PLAN, None, None, "")


def test_an_attempt_says_how_it_ended(tmp_path: Path) -> None:
    run = begin(tmp_path / "logs/run")
    run.end("failed", cause="no luck")
    run.close()
    record = read_record(tmp_path / "logs/run")
    assert record["status"] == record["attempts"][-1]["status"] == "failed"
    assert record["attempts"][-1]["cause"] == "no luck"


@pytest.mark.parametrize(
    "spoil",
    [
        shutil.rmtree,
        lambda path: path.rename(path.with_name("renamed")),
        lambda path: (path / "run.json").write_text("{"),
        lambda path: (path / "run.json").write_text('{"attempts": 3}'),
        lambda path: (path / "run.json").write_text('{"attempts": []}'),
    ],
    ids=["removed", "renamed", "no JSON", "a number", "no attempts"],
)
def test_where_that_cannot_be_recorded_it_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, spoil: Callable[[Path], object]
) -> None:
    path = tmp_path / "logs/run"
    run = begin(path)
    spoil(path)
    run.end("finished")
    run.close()
    (record,) = caplog.records
    assert str(path / "run.json") in record.getMessage()


@pytest.mark.parametrize("error", [OSError(28, "no space left"), UserError("no"), MemoryError()])
def test_a_run_that_cannot_begin_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(run_directory, "write_config", fail)
    with pytest.raises(MemoryError if isinstance(error, MemoryError) else UserError):
        begin(tmp_path / "logs/run")
    assert not list(tmp_path.iterdir())
