"""Small files that would become large ones are refused, with little memory."""

import json
import os
import resource
import struct
import zipfile
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path

import pytest
import torch

from mjfleet.rl.checkpoint_files import pack_checkpoint, read_checkpoint

from .test_damaged_runs import TASK, call, make_run

MEMORY = 200 * 2**20  # Bytes that a command may take besides what its process has.


def ended_by(*command: str) -> tuple[int, str]:
    """Run a command in a fork that may take no more than MEMORY; return its code and output."""
    reader, writer = os.pipe()
    if not (child := os.fork()):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        code = -1
        try:
            code, said = call(*command)
            os.write(writer, json.dumps([code, said]).encode()[:60_000])
        finally:
            os._exit(0 if code >= 0 else 1)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        answer = pipe.read()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    code, said = json.loads(answer)
    return code, said


def nested_yaml(run_dir: Path) -> None:
    (run_dir / "config.yaml").write_text("- " * 30_000)


def nested_json(run_dir: Path) -> None:
    (run_dir / "run.json").write_text("[" * 2_000_000)


def sparse_record(run_dir: Path) -> None:
    os.truncate(run_dir / "run.json", 2**40)


BOMBS = (nested_yaml, nested_json, sparse_record)


@pytest.mark.slow
@pytest.mark.parametrize("bomb", BOMBS, ids=lambda bomb: bomb.__name__)
def test_a_small_file_fills_no_memory(tmp_path: Path, bomb: Callable[[Path], None]) -> None:
    run_dir = make_run(tmp_path)
    bomb(run_dir)
    with chdir(tmp_path):
        for command in (
            ("runs",),
            ("plot", str(run_dir), "--output", "curves.svg", "--columns", "mean_return"),
            ("report", str(run_dir), "--output", "page.html"),
            ("train", TASK, "--dry-run", "--resume", str(run_dir)),
            ("train", TASK, "--dry-run", "--config", str(run_dir / "config.yaml")),
        ):
            code, said = ended_by(*command)
            assert code in ((0,) if command[0] == "runs" else (0, 2)), said


def compressed(checkpoint: Path) -> None:
    with zipfile.ZipFile(checkpoint, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("archive/data.pkl", bytes(2**28))


def expanded(checkpoint: Path) -> None:
    state = torch.load(checkpoint, weights_only=True)
    name = next(iter(state["actor_state_dict"]))
    state["actor_state_dict"][name] = torch.zeros(1).expand(10**11)
    checkpoint.write_bytes(pack_checkpoint(state, {}))


def many_records(checkpoint: Path) -> None:
    """End a sparse file by the words that the list of its records takes 1 GiB."""
    os.truncate(checkpoint, 2**31)
    with checkpoint.open("ab") as file:
        file.write(b"PK\5\6" + struct.pack("<IHHIIH", 0, 9, 9, 2**30, 2**30, 0))


@pytest.mark.slow
@pytest.mark.parametrize(
    "bomb", [compressed, expanded, many_records], ids=lambda bomb: bomb.__name__
)
def test_a_small_checkpoint_fills_no_memory(tmp_path: Path, bomb: Callable[[Path], None]) -> None:
    checkpoint = make_run(tmp_path) / "checkpoints" / "model_3.pt"
    read_checkpoint(checkpoint)  # torch takes memory of its own at first.
    torch.optim.SGD([torch.zeros(1)]).state_dict()  # This imports what takes more.
    bomb(checkpoint)
    with chdir(tmp_path):
        for command in (
            ("play", TASK, "--resume", str(checkpoint), "--episodes", "1"),
            ("export", str(checkpoint), "--format", "torchscript"),
        ):
            code, said = ended_by(*command)
            assert code == 2, said
            assert "checkpoint" in said or "damaged" in said
