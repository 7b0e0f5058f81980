"""What W&B has recorded offline, read from its own file."""

import json
import struct
from pathlib import Path
from typing import Any


def records(run_dir: Path, kind: str) -> list[Any]:
    """W&B's records of a kind, from all parts of a run.

    The file is LevelDB's log format with a protobuf a record, behind 7 bytes of its own.
    """
    from wandb.proto import wandb_internal_pb2

    found = []
    for file in sorted(run_dir.glob("wandb/offline-run-*/run-*.wandb")):
        data, position = file.read_bytes(), 7
        while position + 7 <= len(data):
            _, size, piece = struct.unpack_from("<IHB", data, position)
            assert piece == 1, "a record in several pieces"
            record = wandb_internal_pb2.Record()  # pyright: ignore[reportAttributeAccessIssue]
            record.ParseFromString(data[position + 7 : position + 7 + size])
            if record.WhichOneof("record_type") == kind:
                found.append(getattr(record, kind))
            position += 7 + size
    return found


def history(run_dir: Path) -> list[dict[str, Any]]:
    """The rows that W&B has."""
    return [
        {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.item}
        for record in records(run_dir, "history")
    ]
