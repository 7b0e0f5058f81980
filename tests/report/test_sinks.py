"""Metrics on their way to files, TensorBoard and W&B: the real packages, read back."""

import csv
import json
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mjfleet.report import wandb_sink
from mjfleet.report.sinks import Sinks

ROWS = [
    {"iteration": 1, "mean_return": None, "loss/value": 0.5},
    {"iteration": 2, "mean_return": 12.5, "loss/value": 0.25},
]


def write_rows(sinks: Sinks) -> None:
    for row in ROWS:
        sinks.write(row)
    sinks.close()


def read_csv(run_dir: Path) -> list[dict[str, str]]:
    with (run_dir / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def read_scalars(run_dir: Path, tag: str) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run_dir))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(tag)]


def test_csv_leaves_unknown_values_empty(tmp_path: Path) -> None:
    write_rows(Sinks(tmp_path, "none", "project", {}))
    assert [row["mean_return"] for row in read_csv(tmp_path)] == ["", "12.5"]
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.csv"]


def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    write_rows(Sinks(tmp_path, "tensorboard", "project", {}))
    assert read_scalars(tmp_path, "loss/value") == [(1, 0.5), (2, 0.25)]
    assert read_scalars(tmp_path, "mean_return") == [(2, 12.5)]


def test_metrics_csv_is_there_from_the_start_and_complete_after_each_row(tmp_path: Path) -> None:
    sinks = Sinks(tmp_path, "none", "project", {})
    assert (tmp_path / "metrics.csv").exists()
    for row in ROWS:
        sinks.write(row)
        assert read_csv(tmp_path)[-1]["iteration"] == str(row["iteration"])


def test_a_resumed_run_has_every_iteration_once(tmp_path: Path) -> None:
    first = Sinks(tmp_path, "tensorboard", "project", {})
    for iteration in range(1, 7):
        first.write({"iteration": iteration, "value": 1.0})
    # Killed: never closed, and cut off within a row and within a record.
    (events,) = tmp_path.glob("events.out.tfevents.*")
    events.write_bytes(events.read_bytes()[:-5])
    with (tmp_path / "metrics.csv").open("a") as file:
        file.write("7,1")
    second = Sinks(tmp_path, "tensorboard", "project", {}, resumed_from=4)
    for iteration in range(5, 9):
        second.write({"iteration": iteration, "value": 2.0})
    second.close()
    expected = [(i, 1.0 if i <= 4 else 2.0) for i in range(1, 9)]
    read = read_csv(tmp_path)
    assert [(int(row["iteration"]), float(row["value"])) for row in read] == expected
    assert read_scalars(tmp_path, "value") == expected


def test_a_run_that_starts_over_in_its_directory_forgets_the_first_attempt(tmp_path: Path) -> None:
    for value in (1.0, 2.0):
        sinks = Sinks(tmp_path, "tensorboard", "project", {})
        for iteration in (1, 2):
            sinks.write({"iteration": iteration, "value": value})
    assert [float(row["value"]) for row in read_csv(tmp_path)] == [2.0, 2.0]
    assert read_scalars(tmp_path, "value") == [(1, 2.0), (2, 2.0)]


def test_rows_that_are_not_sound_are_dropped_on_resume(tmp_path: Path) -> None:
    lines = [
        b"iteration,a", b"1,0.5", b"2", b'3,"0.5', b"\x00\x00\xff,0.5", b"4,0.1", b"4,0.2",
        b"x,1", b"-1,1", b"5,nan", b"6,",
    ]  # fmt: skip
    (tmp_path / "metrics.csv").write_bytes(b"\n".join(lines) + b"\n")
    Sinks(tmp_path, "none", "project", {}, resumed_from=6).close()
    assert [(row["iteration"], row["a"]) for row in read_csv(tmp_path)] == [
        ("1", "0.5"), ("4", "0.2"), ("5", "nan"), ("6", ""),
    ]  # fmt: skip


@pytest.mark.parametrize("content", [b"", b"itera", b"\x00\x00\n1,2\n"])
def test_a_file_without_a_sound_header_starts_anew(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "metrics.csv").write_bytes(content)
    sinks = Sinks(tmp_path, "none", "project", {}, resumed_from=2)
    sinks.write({"iteration": 3, "a": 1.0})
    assert read_csv(tmp_path) == [{"iteration": "3", "a": "1.0"}]


def test_columns_of_both_parts_are_kept_when_a_term_is_replaced(tmp_path: Path) -> None:
    Sinks(tmp_path, "none", "project", {}).write({"iteration": 1, "old": 0.5, "kept": 1.0})
    resumed = Sinks(tmp_path, "none", "project", {}, resumed_from=1)
    resumed.write({"iteration": 2, "kept": 2.0, "new": 0.25})
    assert read_csv(tmp_path) == [
        {"iteration": "1", "old": "0.5", "kept": "1.0", "new": ""},
        {"iteration": "2", "old": "", "kept": "2.0", "new": "0.25"},
    ]


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from mjfleet.report.sinks import Sinks

def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

# A file that may not grow fails as on a full disk: what still fits is written, then an OSError.
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
run_dir, before, recovers = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "recovers"
if before == 0:
    limit(0)
sinks = Sinks(run_dir, "tensorboard", "project", {}, resumed_from=int(sys.argv[4]))
first = int(sys.argv[4]) + 1
for iteration in range(first, first + 100):
    if iteration == first + before:
        limit(1000)
    if recovers and iteration == first + 60:
        limit(resource.RLIM_INFINITY)
    sinks.write({"iteration": iteration, "value": 1 / iteration, "none": None})
sinks.close()
print("trained")
"""


def on_a_full_disk(run_dir: Path, before: int, then: str, resumed_from: int = 0) -> str:
    """Train with rows that stop fitting after `before` of them; what was told on stderr."""
    arguments = [str(run_dir), str(before), then, str(resumed_from)]
    result = subprocess.run(
        [sys.executable, "-c", FULL_DISK, *arguments],
        capture_output=True, text=True, timeout=30, check=True,
    )  # fmt: skip
    assert result.stdout == "trained\n"
    return result.stderr


@pytest.mark.parametrize(("before", "resumed_from"), [(0, 0), (5, 0), (0, 3)])
def test_no_row_is_lost_to_a_disk_that_is_full_for_a_while(
    tmp_path: Path, before: int, resumed_from: int
) -> None:
    if resumed_from:
        first = Sinks(tmp_path, "tensorboard", "project", {})
        for iteration in range(1, 10):
            first.write({"iteration": iteration, "value": 1 / iteration, "none": None})
    told = on_a_full_disk(tmp_path, before, "recovers", resumed_from)
    iterations = list(range(1, resumed_from + 101))
    assert [int(row["iteration"]) for row in read_csv(tmp_path)] == iterations
    assert [step for step, _ in read_scalars(tmp_path, "value")] == iterations
    assert "Traceback" not in told
    assert len(told.splitlines()) == 2


def test_a_disk_that_stays_full_leaves_whole_rows_and_one_warning(tmp_path: Path) -> None:
    told = on_a_full_disk(tmp_path, 5, "stays full")
    assert len(told.splitlines()) == 2
    assert "Traceback" not in told
    assert (tmp_path / "metrics.csv").read_bytes().endswith(b"\n")
    iterations = [int(row["iteration"]) for row in read_csv(tmp_path)]
    assert iterations == list(range(1, len(iterations) + 1))
    assert len(iterations) >= 5


def test_wandb_works_without_a_login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_PROJECT"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    write_rows(Sinks(run_dir, "wandb", "poles", {"agent": {"seed": 3}}))
    (offline,) = (run_dir / "wandb").glob("offline-run-*")
    (recorded,) = offline.glob("run-*.wandb")
    history = _history(recorded)
    assert [row["loss/value"] for row in history] == [0.5, 0.25]
    assert [row.get("mean_return") for row in history] == [None, 12.5]


def _history(recorded: Path) -> list[dict[str, float]]:
    """The rows in W&B's own file: after 7 bytes, LevelDB's log format with a protobuf a record."""
    from wandb.proto import wandb_internal_pb2

    data, rows, position = recorded.read_bytes(), [], 7
    while position + 7 <= len(data):
        _, size, kind = struct.unpack_from("<IHB", data, position)
        assert kind == 1, "a record in several pieces"
        record = wandb_internal_pb2.Record()  # pyright: ignore[reportAttributeAccessIssue]
        record.ParseFromString(data[position + 7 : position + 7 + size])
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            rows.append({i.key or i.nested_key[0]: json.loads(i.value_json) for i in items})
        position += 7 + size
    return rows


def test_a_sink_that_fails_has_one_warning_and_stops_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "metrics.csv").mkdir()
    write_rows(Sinks(tmp_path, "tensorboard", "project", {}))
    assert len(caplog.records) == 1
    assert "metrics.csv" in caplog.text
    assert read_scalars(tmp_path, "loss/value") == [(1, 0.5), (2, 0.25)]


def test_wandb_that_cannot_start_is_no_reason_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("WANDB_MODE", "nonsense")
    write_rows(Sinks(tmp_path, "wandb", "project", {}))
    assert len(caplog.records) == 1
    assert "W&B" in caplog.text
    assert (tmp_path / "metrics.csv").read_text().count("\n") == 3


def test_a_resumed_run_is_the_same_wandb_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    for resumed_from in (0, 2):
        write_rows(Sinks(tmp_path, "wandb", "project", {}, resumed_from=resumed_from))
    wandb_id = json.loads((tmp_path / "run.json").read_text())["wandb_id"]
    recorded = list((tmp_path / "wandb").glob("offline-run-*/run-*.wandb"))
    assert {path.name for path in recorded} == {f"run-{wandb_id}.wandb"}


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
    monkeypatch.setattr(wandb_sink, "INIT_SECONDS", 1.0)
    write_rows(Sinks(tmp_path, "wandb", "project", {}))
    (recorded,) = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    assert [row["loss/value"] for row in _history(recorded)] == [0.5, 0.25]
    # W&B's own records are for its file alone.
    (warning,) = [record for record in caplog.records if record.name.startswith("mjfleet")]
    assert "wandb sync" in warning.getMessage()
    assert capfd.readouterr() == ("", "")


UNDECIDED = """
import sys
from pathlib import Path
from mjfleet.report import wandb_sink
from mjfleet.report.sinks import Sinks

wandb_sink.INIT_SECONDS, wandb_sink.START_SECONDS = 600.0, 0.1
sinks = Sinks(Path(sys.argv[1]), "wandb", "project", {})
sinks.write({"iteration": 1, "value": 1.0})
while not list(Path(sys.argv[1]).glob("wandb/run-*")):
    pass
sinks.close()
print("trained")
"""


@pytest.mark.usefixtures("server")
def test_the_process_exits_while_wandb_still_waits_for_its_server(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", UNDECIDED, str(tmp_path)],
        capture_output=True, text=True, timeout=30, check=True,
    )  # fmt: skip
    assert result.stdout == "trained\n"
    assert len(result.stderr.splitlines()) == 1
    assert "W&B" in result.stderr
    assert len(read_csv(tmp_path)) == 1
