"""Metrics on their way to files, TensorBoard and W&B: the real packages, read back."""

import csv
import json
import struct
from pathlib import Path

import pytest

from mjfleet.report.sinks import Sinks

ROWS = [
    {"iteration": 1, "mean_return": None, "loss/value": 0.5},
    {"iteration": 2, "mean_return": 12.5, "loss/value": 0.25},
]


def write_rows(sinks: Sinks) -> None:
    for row in ROWS:
        sinks.write(row)
    sinks.close()


def test_csv_leaves_unknown_values_empty(tmp_path: Path) -> None:
    write_rows(Sinks(tmp_path, "none", "project", {}))
    with (tmp_path / "metrics.csv").open() as file:
        read = list(csv.DictReader(file))
    assert [row["mean_return"] for row in read] == ["", "12.5"]
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.csv"]


def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    write_rows(Sinks(tmp_path, "tensorboard", "project", {}))
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("loss/value")] == [(1, 0.5), (2, 0.25)]
    assert [(e.step, e.value) for e in events.Scalars("mean_return")] == [(2, 12.5)]


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


def test_a_sink_that_fails_is_dropped_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "metrics.csv").mkdir()
    write_rows(Sinks(tmp_path, "tensorboard", "project", {}))
    assert caplog.text.count("metrics.csv failed, training goes on without it") == 1
    assert list(tmp_path.glob("events.out.tfevents.*"))


def test_wandb_that_cannot_start_is_no_reason_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("WANDB_MODE", "nonsense")
    write_rows(Sinks(tmp_path, "wandb", "project", {}))
    assert "W&B failed, training goes on without it" in caplog.text
    assert (tmp_path / "metrics.csv").read_text().count("\n") == 3
