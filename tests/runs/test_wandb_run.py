"""Runs on W&B, by its own client against a stand-in of its server: resumed, played and refused."""

import io
import json
import os
import resource
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import wandb

from mjfleet.config import AgentConfig, WandbConfig
from mjfleet.errors import UserError
from mjfleet.loggers.logger_group import LoggerGroup
from mjfleet.runs import wandb_run
from mjfleet.runs.run_lookup import find_run
from mjfleet.runs.wandb_download import download
from mjfleet.runs.wandb_run import FOLDER, WantedRun

from ..conftest import Run, only_run, rows
from ..helpers.wandb_server import Version, WandbServer
from ..loggers.recorded import records
from .test_resume import SMALL, TASK

WORD = "wandb:team/poles/abc"


def saved(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


CHECKPOINT = saved({"iter": 2})
FILES = {
    "model_2.pt": CHECKPOINT,
    "config.yaml": b"agent: {seed: 5, experiment_name: arm}\n",
    "run.json": json.dumps({"task": TASK, "wandb_id": "another"}).encode(),
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


@pytest.fixture
def downloads(
    server: WandbServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., dict[str, Any]]]:
    """Download in this process, which is quicker, into tmp_path/logs."""
    folder = tmp_path / "work"
    for name in ("CACHE", "DATA"):
        monkeypatch.setenv(f"WANDB_{name}_DIR", str(folder))
    wanted = WantedRun(
        path="team/poles/abc", run="abc", checkpoint=None, log_root=str(tmp_path / "logs"),
        experiment="mine", task=None, dry_run=False,
    )  # fmt: skip
    (folder / FOLDER).mkdir(parents=True)
    monkeypatch.chdir(folder)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda **changed: download(replace(wanted, **changed))
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        process.rlimit(resource.RLIMIT_FSIZE, limits)  # Other tests share this process's children.
    wandb.teardown()


def test_a_run_goes_on_from_what_its_logger_has_uploaded(
    run: Run, server: WandbServer, tmp_path: Path
) -> None:
    assert run("train", TASK, *SMALL, "--agent.save-interval", "3").returncode == 0
    original = only_run(tmp_path)
    agent = AgentConfig(logger=("wandb",), wandb=WandbConfig(mode="offline", checkpoints=True))
    with LoggerGroup(original, agent, {}) as loggers:
        for iteration in (6, 3):
            loggers.checkpoint(original / "checkpoints" / f"model_{iteration}.pt", iteration)
    for artifact in records(original, "artifact"):
        files = {one.path: Path(one.local_path).read_bytes() for one in artifact.manifest.contents}
        server.versions.append(Version([*artifact.aliases], files))
    server.run = json.loads((original / "run.json").read_text())["wandb_id"]
    record = json.loads(server.versions[0].files["run.json"])
    kept = {"task", "started", "seed", "versions", "status", "ended", "iterations", "plan"}
    assert record.keys() == kept | {"attempts"}
    assert record["plan"]["workers"] == [{"device": "cpu"}]
    server.versions.reverse()  # The newest is model_6.pt.

    word = f"wandb:team/poles/{server.run}"
    (tmp_path / "logs").rename(tmp_path / "elsewhere")
    told = run("train", TASK, "--resume", word, "--dry-run")
    assert (told.returncode, told.stderr) == (0, "")
    assert f"would be downloaded into logs/{TASK}/{server.run}_model_6" in told.stdout
    assert not (tmp_path / "logs").exists()

    resumed = run("train", TASK, "--resume", f"{word}:model_3")
    assert resumed.returncode == 0, resumed.stderr
    assert "goes on in place" in resumed.stdout
    run_dir = only_run(tmp_path)
    assert run_dir.name == f"{server.run}_model_3"
    assert [int(row["iteration"]) for row in rows(run_dir)] == [4, 5, 6]
    assert json.loads((run_dir / "run.json").read_text())["wandb_id"] == server.run
    assert {path.name for path in tmp_path.iterdir()} == {"logs", "elsewhere"}
    weights = [
        torch.load(place / "checkpoints/model_6.pt", weights_only=True)["actor_state_dict"]
        for place in (run_dir, tmp_path / "elsewhere" / TASK / original.name)
    ]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_the_newest_checkpoint_is_meant_unless_one_is_named(
    downloads: Callable[..., dict[str, Any]], server: WandbServer, tmp_path: Path
) -> None:
    older, best = {**FILES, "model_9.pt": saved({})}, {**FILES, "best.pt": CHECKPOINT}
    del older["model_2.pt"], best["model_2.pt"]
    server.versions = [
        Version(["model_9"], older), Version(["model_2"], FILES), Version(["latest", "best"], best)
    ]  # fmt: skip
    assert downloads()["path"] == "arm/abc_model_2"
    run_dir = tmp_path / "logs/arm/abc_model_2"
    assert (run_dir / "checkpoints/model_2.pt").read_bytes() == CHECKPOINT
    assert (run_dir / "config.yaml").read_bytes() == FILES["config.yaml"]
    assert json.loads((run_dir / "run.json").read_text()) == {"task": TASK, "wandb_id": "abc"}
    assert downloads(checkpoint="best")["path"] == "arm/abc_best/checkpoints/best.pt"
    with pytest.raises(UserError, match=r"has no model_3 there; its newest: model_9, model_2, b"):
        downloads(checkpoint="model_3")
    # What is here already is used, also under another name; what is not it stays.
    asked = len(server.asked)
    run_dir.rename(tmp_path / "logs/arm/mine")
    assert downloads(checkpoint="model_2")["path"] == "arm/mine/checkpoints/model_2.pt"
    assert not any(path.endswith("model_2.pt") for path in server.asked[asked:])
    (tmp_path / "logs/arm/mine/checkpoints/model_2.pt").write_bytes(b"other")
    run_dir.symlink_to("mine")
    with pytest.raises(UserError, match="is there already, and is not it"):
        downloads()


def test_a_checkpoint_alone_is_for_a_new_run(
    downloads: Callable[..., dict[str, Any]], server: WandbServer, tmp_path: Path
) -> None:
    server.files = {"model_2.pt": CHECKPOINT, "model_10.pt": saved({"iter": 10}), "x.onnx": b""}
    path = downloads()["path"]
    assert path == "mine/abc_model_10/checkpoints/model_10.pt"
    assert (tmp_path / "logs" / path).read_bytes() == server.files["model_10.pt"]
    with pytest.raises(UserError, match=r"without config\.yaml"):
        downloads(experiment=None)


@pytest.mark.parametrize(
    ("files", "entries", "message"),
    [
        ({"../../x": b"evil"}, {}, r"it holds .*'../../x' there"),
        ({"model_3.pt": CHECKPOINT}, {}, "must hold a checkpoint"),
        ({"config.yaml": None}, {}, "must hold a checkpoint"),
        ({"config.yaml": b"a" * 70_000}, {}, "config.yaml has 70,000 bytes; 65,536 are allowed"),
        ({"config.yaml": b"agent: {experiment_name: ../x}"}, {}, "experiment-name is '../x'"),
        ({"run.json": b"[]"}, {}, "run.json: it is no mapping"),
        ({"run.json": b'{"task": "../x"}'}, {}, "of the task ../x, not of"),
        ({"model_2.pt": b"no checkpoint"}, {}, "damaged or no checkpoint"),
        ({}, {"model_2.pt": {"ref": "file:///etc/passwd"}}, "a reference to a file elsewhere"),
        ({}, {"model_2.pt": {"size": 2**41}}, "has 2,199,023,255,552 bytes"),
        ({}, {"model_2.pt": {"digest": "AAAA"}}, "has not arrived as it is recorded"),
    ],
)  # fmt: skip
def test_what_no_run_directory_holds_is_refused(
    downloads: Callable[..., dict[str, Any]],
    server: WandbServer,
    tmp_path: Path,
    files: dict[str, bytes | None],
    entries: dict[str, dict[str, Any]],
    message: str,
) -> None:
    every = {name: data for name, data in {**FILES, **files}.items() if data is not None}
    server.versions = [Version(["latest", "model_2"], every, entries)]
    with pytest.raises(UserError, match=message):
        downloads(task=TASK)
    assert [path.name for path in tmp_path.iterdir()] == ["work"]


def test_no_more_is_written_than_was_announced(
    downloads: Callable[..., dict[str, Any]], server: WandbServer, tmp_path: Path
) -> None:
    files = {**FILES, "model_2.pt": bytes(2**22)}
    server.versions = [Version(["model_2"], files, {"model_2.pt": {"size": 1000}})]
    with pytest.raises((OSError, wandb.Error), match="File too large"):
        downloads()
    assert not list((tmp_path / "work" / FOLDER).rglob("*.pt"))


def test_a_server_that_falls_silent_is_given_up(
    server: WandbServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.versions, server.stalls = [Version(["model_2"], FILES)], True
    monkeypatch.setattr(wandb_run, "STALL_SECONDS", 6.0)
    with pytest.raises(UserError, match="has sent nothing for 6 seconds"):
        find_run(WORD, WORD, tmp_path / "a/b")
    assert server.asked[-1].endswith("model_2.pt")
    assert not list(tmp_path.iterdir())
    for process in psutil.process_iter():
        if process.name() == "wandb-core" and process.status() != psutil.STATUS_ZOMBIE:
            assert process.environ().get("WANDB_BASE_URL") != server.url


@pytest.mark.usefixtures("server")
def test_without_a_login_or_a_right_word_nothing_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WANDB_API_KEY")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(UserError, match=f"{WORD}: W&B: No API key configured"):
        find_run(WORD, WORD, tmp_path / "logs")
    for word in ("wandb:abc", "wandb:team/poles", f"{WORD}:", f"{WORD}:v3", "wandb:a/b/.."):
        with pytest.raises(UserError, match="must be wandb:<entity>/<project>/<run>"):
            find_run(word, word, tmp_path / "logs")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="not each of 2 workers"):
        find_run(WORD, WORD, tmp_path / "logs")
    assert not (tmp_path / "logs").exists()
