"""Runs on W&B, by its own client against a stand-in of its server: resumed, played and refused."""

import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from mjfleet.config import AgentConfig, WandbConfig
from mjfleet.errors import UserError
from mjfleet.loggers.logger_group import LoggerGroup
from mjfleet.runs.find_run import find_run

from ..conftest import Output, only_run, rows
from ..helpers.wandb_server import Version, WandbServer
from ..loggers.recorded import records
from .test_resume import SIX, TASK

WORD = "wandb:team/poles/abc"


def saved(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


CHECKPOINT = saved({"iter": 2})
FILES = {
    "model_2.pt": CHECKPOINT,
    "config.yaml": b"agent: {seed: 5, experiment_name: arm}\n",
    "run.json": json.dumps({"task": TASK, "id": "another"}).encode(),
}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[WandbServer]:
    """A server to which W&B's client in this process, and in those that it starts, turns."""
    for variable in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(variable)
    with WandbServer() as server:
        for name, value in server.environ().items():
            monkeypatch.setenv(name, value)
        yield server


def test_a_run_goes_on_from_what_its_logger_has_uploaded(
    output: Output, server: WandbServer, tmp_path: Path
) -> None:
    output("train", TASK, *SIX, "--agent.save-interval", "3")
    original = only_run(tmp_path)
    agent = AgentConfig(logger=("wandb",), wandb=WandbConfig(mode="offline", checkpoints=True))
    with LoggerGroup(original, agent, {}) as loggers:
        for iteration in (6, 3):
            loggers.checkpoint(original / "checkpoints" / f"model_{iteration}.pt", iteration)
    for artifact in records(original, "artifact"):
        files = {one.path: Path(one.local_path).read_bytes() for one in artifact.manifest.contents}
        server.versions.append(Version([*artifact.aliases], files))
    server.run = json.loads((original / "run.json").read_text())["id"]
    record = json.loads(server.versions[0].files["run.json"])
    kept = {"task", "started", "seed", "versions", "status", "ended", "iterations", "plan"}
    assert record.keys() == kept | {"attempts"}
    assert record["plan"]["workers"] == [{"device": "cpu"}]
    server.versions.reverse()  # The newest is model_6.pt.

    word = f"wandb:team/poles/{server.run}"
    (tmp_path / "logs").rename(tmp_path / "elsewhere")
    assert "continues in place" in output("train", TASK, "--resume", f"{word}:model_3")
    run_dir = only_run(tmp_path, "poles")
    assert run_dir.name == f"{server.run}_model_3"
    assert [int(row["iteration"]) for row in rows(run_dir)] == [4, 5, 6]
    assert json.loads((run_dir / "run.json").read_text())["id"] == server.run
    assert {path.name for path in tmp_path.iterdir()} == {"logs", "elsewhere"}
    weights = [
        torch.load(place / "checkpoints/model_6.pt", weights_only=True)["actor_state_dict"]
        for place in (run_dir, tmp_path / "elsewhere" / TASK / original.name)
    ]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def fetch(root: Path, word: str = WORD) -> Path:
    return find_run(word, word, root).relative_to(root)


def test_the_newest_checkpoint_is_meant_unless_one_is_named(
    server: WandbServer, tmp_path: Path
) -> None:
    older, best = {**FILES, "model_9.pt": saved({})}, {**FILES, "best.pt": CHECKPOINT}
    del older["model_2.pt"], best["model_2.pt"]
    server.versions = [
        Version(["model_9"], older), Version(["model_2"], FILES), Version(["latest", "best"], best)
    ]  # fmt: skip
    root = tmp_path / "logs"
    assert str(fetch(root)) == "poles/abc_model_2"
    run_dir = root / "poles/abc_model_2"
    assert (run_dir / "checkpoints/model_2.pt").read_bytes() == CHECKPOINT
    assert (run_dir / "config.yaml").read_bytes() == FILES["config.yaml"]
    assert json.loads((run_dir / "run.json").read_text()) == {"task": TASK, "id": "abc"}
    assert str(fetch(root, f"{WORD}:best")) == "poles/abc_best/checkpoints/best.pt"
    with pytest.raises(UserError, match=r"no model_3 there; its newest: model_9, model_2, b"):
        fetch(root, f"{WORD}:model_3")
    # What is here already is used.
    asked = len(server.asked)
    assert str(fetch(root, f"{WORD}:model_2")) == "poles/abc_model_2/checkpoints/model_2.pt"
    assert not any(path.endswith("model_2.pt") for path in server.asked[asked:])
    # The files of a run, as rsl_rl uploads them.
    server.versions = []
    server.files = {"model_2.pt": CHECKPOINT, "model_10.pt": saved({"iter": 10}), "x.onnx": b""}
    assert str(fetch(root)) == "poles/abc_model_10/checkpoints/model_10.pt"


@pytest.mark.parametrize(
    ("files", "entries", "message"),
    [
        ({"run.json": b"[]"}, {}, "it is no mapping"),
        ({"model_2.pt": b"no checkpoint"}, {}, "damaged or no checkpoint"),
        ({}, {"model_2.pt": {"ref": "file:///etc/passwd"}}, "a reference to a file elsewhere"),
        ({}, {"model_2.pt": {"size": 2**41}}, "empty or too large"),
    ],
)
def test_what_no_run_directory_holds_is_refused(
    server: WandbServer,
    tmp_path: Path,
    files: dict[str, bytes],
    entries: dict[str, dict[str, Any]],
    message: str,
) -> None:
    server.versions = [Version(["model_2"], {**FILES, **files, "../../x": b"evil"}, entries)]
    with pytest.raises(UserError, match=message):
        fetch(tmp_path / "logs")
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("server")
def test_without_a_login_or_a_right_word_nothing_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WANDB_API_KEY")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(UserError, match=f"{WORD}: W&B: No API key configured"):
        find_run(WORD, WORD, tmp_path / "logs")
    for word in ("wandb:team/poles", f"{WORD}:v3", "wandb:a/b/.."):
        with pytest.raises(UserError, match="must be wandb:<entity>/<project>/<run>"):
            find_run(word, word, tmp_path / "logs")
    assert not (tmp_path / "logs").exists()


def test_no_run_is_downloaded_into_a_run(server: WandbServer, tmp_path: Path) -> None:
    server.versions = [Version(["model_2"], FILES)]
    outer = tmp_path / fetch(tmp_path)
    before = sorted(outer.rglob("*"))
    with pytest.raises(UserError, match=rf"--log-root \S+: a run would be inside the run {outer}"):
        fetch(outer / "logs")
    assert sorted(outer.rglob("*")) == before
