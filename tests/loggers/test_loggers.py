"""Metrics on their way to files, TensorBoard and W&B: the real packages, read back."""

import csv
import errno
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from mjfleet.config import AgentConfig, WandbConfig
from mjfleet.loggers import logger_group, wandb_logger
from mjfleet.loggers.csv_logger import CsvLogger
from mjfleet.loggers.logger import Row
from mjfleet.loggers.logger_group import LoggerGroup
from mjfleet.loggers.tensorboard_logger import TensorBoardLogger
from mjfleet.runs.run_json import write_record

from .recorded import history, records

ROWS = [
    {"iteration": 1, "mean_return": None, "loss/value": 0.5},
    {"iteration": 2, "mean_return": 12.5, "loss/value": 0.25},
]
FILES = AgentConfig(logger=("tensorboard",))
CSV = AgentConfig(logger=("none",))
WANDB = AgentConfig(logger=("wandb",), experiment_name="poles")


def log(run_dir: Path, agent: AgentConfig, *rows: Any, resumed_from: int = 0) -> None:
    """Write rows as a run that has a configuration does: ROWS unless others are given."""
    with LoggerGroup(run_dir, agent, {}, resumed_from=resumed_from) as loggers:
        for row in rows or ROWS:
            loggers.write(row)


def values(iterations: Iterable[int], value: float) -> list[Row]:
    """Return rows with the same value."""
    return [{"iteration": iteration, "value": value} for iteration in iterations]


def read_csv(run_dir: Path) -> list[dict[str, str]]:
    with (run_dir / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def read_scalars(run_dir: Path, tag: str) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run_dir))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(tag)]


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Our own warnings; W&B's records are for its file alone."""
    return [record.getMessage() for record in caplog.records if record.name.startswith("mjfleet")]


def test_files_hold_each_value_and_nothing_for_an_unknown_one(tmp_path: Path) -> None:
    log(tmp_path, FILES)
    assert [row["mean_return"] for row in read_csv(tmp_path)] == ["", "12.5"]
    assert read_scalars(tmp_path, "loss/value") == [(1, 0.5), (2, 0.25)]
    assert read_scalars(tmp_path, "mean_return") == [(2, 12.5)]
    (tmp_path / "speed").mkdir()
    log(tmp_path / "speed", FILES, {"iteration": 1, "global_steps_per_second": 512})
    assert read_scalars(tmp_path / "speed", "time/global_fps") == [(1, 512)]


def test_a_resumed_run_has_every_iteration_once(tmp_path: Path) -> None:
    log(tmp_path, FILES, *values(range(1, 7), 1.0))
    # As if killed: cut off within a row and within a record.
    (events,) = tmp_path.glob("events.out.tfevents.*")
    events.write_bytes(events.read_bytes()[:-5])
    with (tmp_path / "metrics.csv").open("a") as file:
        file.write("7,1")
    log(tmp_path, FILES, *values(range(5, 9), 2.0), resumed_from=4)
    expected = [(i, 1.0 if i <= 4 else 2.0) for i in range(1, 9)]
    read = read_csv(tmp_path)
    assert [(int(row["iteration"]), float(row["value"])) for row in read] == expected
    assert read_scalars(tmp_path, "value") == expected


def test_a_run_that_starts_over_in_its_directory_forgets_the_first_attempt(tmp_path: Path) -> None:
    for value in (1.0, 2.0):
        log(tmp_path, FILES, *values((1, 2), value))
    assert [float(row["value"]) for row in read_csv(tmp_path)] == [2.0, 2.0]
    assert read_scalars(tmp_path, "value") == [(1, 2.0), (2, 2.0)]


def test_rows_that_are_not_sound_are_dropped_on_resume(tmp_path: Path) -> None:
    lines = [
        b"iteration,a", b"1,0.5", b"2", b'3,"0.5', b"\x00\x00\xff,0.5", b"4,0.1", b"4,0.2",
        b"x,1", b"-1,1", b"5,nan", b"6,",
    ]  # fmt: skip
    (tmp_path / "metrics.csv").write_bytes(b"\n".join([*lines, b"7,0.1"]))  # The value was 0.125.
    log(tmp_path, CSV, {"iteration": 8, "a": 1}, resumed_from=7)
    assert [(row["iteration"], row["a"]) for row in read_csv(tmp_path)] == [
        ("1", "0.5"), ("4", "0.2"), ("5", "nan"), ("6", ""), ("8", "1"),
    ]  # fmt: skip


@pytest.mark.parametrize("content", [b"\x00\x00\n1,2\n", b"iteration,a,a\n1,2,3\n"])
def test_a_file_without_a_sound_header_starts_anew(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "metrics.csv").write_bytes(content)
    log(tmp_path, CSV, {"iteration": 3, "a": 1.0}, resumed_from=2)
    assert read_csv(tmp_path) == [{"iteration": "3", "a": "1.0"}]


def test_columns_of_both_parts_are_kept_when_a_term_is_replaced(tmp_path: Path) -> None:
    log(tmp_path, CSV, {"iteration": 1, "old": 0.5, "kept": 1.0})
    later = {"iteration": 3, "kept": 3.0, "evaluated": 9.0}  # A column of this iteration alone.
    rows = ({"iteration": 2, "kept": 2.0, "new": 0.25}, later, {"iteration": 4, "kept": 4.0})
    log(tmp_path, CSV, *rows, resumed_from=1)
    header, *lines = (tmp_path / "metrics.csv").read_text().splitlines()
    assert header == "iteration,old,kept,new,evaluated"
    assert lines == ["1,0.5,1.0,,", "2,,2.0,0.25,", "3,,3.0,,9.0", "4,,4.0,,"]


def test_no_row_is_lost_if_a_file_with_a_new_column_cannot_be_opened_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_file, refused = Path.open, []

    def refuse_once(path: Path, mode: str = "r", *rest: Any, **more: Any) -> Any:
        if mode == "ab" and not refused:
            refused.append(path)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return open_file(path, mode, *rest, **more)

    csv_file = CsvLogger(tmp_path / "metrics.csv", 0)
    csv_file.write({"iteration": 1, "a": 0.5})
    monkeypatch.setattr(Path, "open", refuse_once)
    for row in ({"iteration": 2, "a": 1.0, "b": 2.0}, {"iteration": 3, "a": 1.5}):
        csv_file.write(row)
    csv_file.close()
    assert refused
    assert (tmp_path / "metrics.csv").read_text().split() == [
        "iteration,a,b", "1,0.5,", "2,1.0,2.0", "3,1.5,",
    ]  # fmt: skip


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from mjfleet.loggers.csv_logger import CsvLogger

def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

# A file that may not grow fails as on a full disk: what still fits is written, then an OSError.
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
# `full` of the 100 rows do not fit after `before` of them.
before, full, resumed_from = map(int, sys.argv[2:])
logger = CsvLogger(Path(sys.argv[1]) / "metrics.csv", resumed_from)
if before == 0:
    limit(0)
first = resumed_from + 1
for iteration in range(first, first + 100):
    if iteration == first + before:
        limit(1000)
    if iteration == first + before + full:
        limit(resource.RLIM_INFINITY)
    logger.write({"iteration": iteration, "value": 1 / iteration, "none": None})
logger.close()
print("trained")
"""


def warning_of(script: str, *arguments: object) -> str:
    """Run a script, which trains; return the one line that it warns with."""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout == "trained\n"
    (line,) = result.stderr.splitlines()
    return line


@pytest.mark.parametrize(("before", "full", "resumed_from"), [(5, 55, 0), (0, 60, 3)])
def test_no_row_is_lost_to_a_disk_that_is_full_for_a_while(
    tmp_path: Path, before: int, full: int, resumed_from: int
) -> None:
    if resumed_from:
        log(tmp_path, CSV, *(row | {"none": None} for row in values(range(1, 10), 0.5)))
    assert warning_of(FULL_DISK, tmp_path, before, full, resumed_from)
    iterations = list(range(1, resumed_from + 101))
    assert [int(row["iteration"]) for row in read_csv(tmp_path)] == iterations


def test_a_disk_that_stays_full_leaves_whole_rows_and_one_warning(tmp_path: Path) -> None:
    assert warning_of(FULL_DISK, tmp_path, 5, 100, 0)
    assert (tmp_path / "metrics.csv").read_bytes().endswith(b"\n")
    iterations = [int(row["iteration"]) for row in read_csv(tmp_path)]
    assert 5 <= len(iterations) < 100
    assert iterations == list(range(1, len(iterations) + 1))


@pytest.fixture
def no_wandb_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """W&B as on a machine where nobody has set anything."""
    for variable in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(variable)


@pytest.mark.usefixtures("no_wandb_variables")
def test_wandb_works_without_a_login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    log(run_dir, WANDB)
    assert [end.exit_code for end in records(run_dir, "exit")] == [0]
    assert [row["loss/value"] for row in history(run_dir)] == [0.5, 0.25]
    assert [row.get("mean_return") for row in history(run_dir)] == [None, 12.5]
    (run,) = records(run_dir, "run")
    assert (run.project, run.display_name) == ("poles", "run")


def test_a_logger_that_fails_has_one_warning_and_stops_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "metrics.csv").mkdir()
    log(tmp_path, FILES)
    (warning,) = warnings_in(caplog)
    assert "metrics.csv" in warning
    assert read_scalars(tmp_path, "loss/value") == [(1, 0.5), (2, 0.25)]


@pytest.mark.usefixtures("no_wandb_variables")
def test_a_resumed_run_is_the_same_wandb_run_and_flags_win_over_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "MODE": "offline", "PROJECT": "theirs", "ENTITY": "them", "RUN_GROUP": "all",
        "TAGS": "slow,old", "NOTES": "none", "NAME": "poles",
    }.items():  # fmt: skip
        monkeypatch.setenv(f"WANDB_{name}", value)
    flags = WandbConfig(project="ours", entity="us", group="seeds", tags=("new",), notes="some")
    write_record(tmp_path, id="first")
    log(tmp_path, WANDB)
    log(tmp_path, AgentConfig(logger=("wandb",), wandb=flags), resumed_from=2)

    def settings(run: Any) -> tuple[Any, ...]:
        return (run.project, run.entity, run.run_group, {*run.tags}, run.notes)

    first, second = records(tmp_path, "run")
    assert first.run_id == second.run_id == "first"
    assert first.display_name == second.display_name == "poles"
    assert settings(first) == ("theirs", "them", "all", {"slow", "old"}, "none")
    assert settings(second) == ("ours", "us", "seeds", {"new"}, "some")


@pytest.mark.usefixtures("no_wandb_variables")
def test_a_run_that_began_from_another_one_is_a_wandb_run_of_its_own_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    parent = {"run": "arm/first", "iteration": 4, "id": "theirs"}
    write_record(tmp_path, id="own", parent=parent)
    loggers = LoggerGroup(tmp_path, WANDB, {"a": 1})
    loggers.write(ROWS[0])
    with pytest.raises(ZeroDivisionError), loggers:
        _ = 1 / 0
    assert [end.exit_code for end in records(tmp_path, "exit")] == [1]
    (run,) = records(tmp_path, "run")
    assert run.run_id == "own"
    config = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert (config["parent"], config["a"]) == (parent, 1)


@pytest.mark.usefixtures("no_wandb_variables")
def test_several_loggers_at_once_and_wandb_keeps_videos_and_checkpoints(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    video, kept, removed = (tmp_path / name for name in ("a.mp4", "model_1.pt", "model_0.pt"))
    video.write_bytes(b"frames")
    kept.write_bytes(b"weights")
    wandb = WandbConfig(mode="offline", checkpoints=True)
    with LoggerGroup(
        tmp_path, AgentConfig(logger=("tensorboard", "wandb"), wandb=wandb), {}
    ) as loggers:
        loggers.checkpoint(removed, 0)
        loggers.write(ROWS[0])
        loggers.checkpoint(kept, 1)
        loggers.video(video, 1)
        loggers.write(ROWS[1])
    assert not warnings_in(caplog)
    assert len(read_csv(tmp_path)) == 2
    assert read_scalars(tmp_path, "loss/value") == [(1, 0.5), (2, 0.25)]
    first, second = history(tmp_path)
    assert [first["loss/value"], second["loss/value"]] == [0.5, 0.25]
    (stored,) = tmp_path.glob(f"wandb/offline-run-*/files/{first['video/path']}")
    assert stored.read_bytes() == b"frames"
    (artifact,) = records(tmp_path, "artifact")
    assert (artifact.type, {*artifact.aliases}) == ("model", {"latest", "model_1"})
    (file,) = artifact.manifest.contents
    assert file.path == "model_1.pt"
    assert Path(file.local_path).read_bytes() == b"weights"
    assert Path(file.local_path).is_relative_to(tmp_path)


def test_a_logger_that_hangs_delays_no_row_and_the_end_for_a_limited_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    has_answered = Event()
    monkeypatch.setattr(TensorBoardLogger, "write", lambda *_: has_answered.wait(60))
    monkeypatch.setattr(logger_group, "CLOSE_SECONDS", 1.0)
    monkeypatch.setattr(logger_group, "QUEUE_SIZE", 5)
    with LoggerGroup(tmp_path, FILES, {}) as loggers:
        for row in values(range(1, 9), 1.0):
            loggers.write(row)
            assert len(read_csv(tmp_path)) == row["iteration"]
    has_answered.set()
    dropped, late = warnings_in(caplog)
    # The logger may have taken one of the rows before it hangs.
    assert re.search("TensorBoard was too slow for [23] rows", dropped)
    assert "TensorBoard did not finish in time" in late


@pytest.fixture(params=["refuses", "never answers"])
def server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Where W&B's server should be; the system accepts connections that nobody ever reads."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        if request.param == "never answers":
            listening.listen(100)
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{listening.getsockname()[1]}")
        monkeypatch.setenv("WANDB_API_KEY", "0123456789" * 4)
        monkeypatch.delenv("WANDB_MODE", raising=False)
        yield request.param


@pytest.mark.usefixtures("server")
def test_wandb_without_an_answer_is_recorded_offline(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(wandb_logger, "INIT_SECONDS", 1.0)
    log(tmp_path, WANDB)
    assert [row["loss/value"] for row in history(tmp_path)] == [0.5, 0.25]
    (warning,) = warnings_in(caplog)
    assert "wandb sync" in warning
    assert capfd.readouterr() == ("", "")


UNDECIDED = """
import sys
from pathlib import Path
from mjfleet.config import AgentConfig
from mjfleet.loggers import logger_group, wandb_logger

wandb_logger.INIT_SECONDS, logger_group.CLOSE_SECONDS = 600.0, 0.1
with logger_group.LoggerGroup(Path(sys.argv[1]), AgentConfig(logger=("wandb",)), {}) as loggers:
    loggers.write({"iteration": 1, "value": 1.0})
    while not list(Path(sys.argv[1]).glob("wandb/run-*")):
        pass
print("trained")
"""


@pytest.mark.slow
@pytest.mark.usefixtures("server")
def test_the_process_exits_while_wandb_still_waits_for_its_server(tmp_path: Path) -> None:
    assert "W&B" in warning_of(UNDECIDED, tmp_path)
    assert len(read_csv(tmp_path)) == 1
