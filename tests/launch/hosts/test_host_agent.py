"""The host agent as the launcher finds it: a real process, here without workers."""

import io
import os
import tempfile
import time
from pathlib import Path

import pytest

from mjfleet.config import LaunchConfig
from mjfleet.launch.host_names import LOCALHOST
from mjfleet.launch.hosts import host_starter
from mjfleet.launch.hosts.host_channel import Answer, Meet
from mjfleet.launch.hosts.host_inventory import AskInventory, HostInventory, host_inventory
from mjfleet.launch.hosts.host_starter import HostConnections
from mjfleet.worker.worker_args import WorkerArgs

from ...conftest import PATIENCE


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the host agent keeps temporary files, and where it stands."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_it_answers_questions_and_leaves_nothing(folder: Path) -> None:
    # What lies in the current directory is not imported.
    (folder / "psutil.py").write_text("raise RuntimeError('imported')")
    (folder / "token").touch()
    question = AskInventory(str(folder / "tmp"), ("no-such-thing",), "token")
    with HostConnections([LOCALHOST], LaunchConfig()) as connections:
        (host,) = connections
        seen = connections.ask({host: question}, PATIENCE)[host]
        assert seen == host_inventory(question)
        assert isinstance(seen, HostInventory)
        assert seen.has_token
        assert seen.versions["no-such-thing"] == "missing"
        host.send_file("model_1.pt", io.BytesIO(b"weights"))
        listening = connections.ask({host: Meet("127.0.0.1")}, PATIENCE)[host]
        assert isinstance(listening, Answer)
        (sent,) = (folder / "tmp").glob("mjfleet-*/model_1.pt")
        assert sent.read_bytes() == b"weights"
        there = connections.ask({host: Meet("127.0.0.1", listening.port)}, PATIENCE)[host]
        assert there == listening
        refused = connections.ask({host: Meet("192.0.2.1")}, PATIENCE)[host]
        assert isinstance(refused, Answer)
        assert "assign requested address" in refused.error
    assert not list((folder / "tmp").glob("mjfleet-*"))


def test_on_this_host_it_waits_for_a_silent_launcher(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    impatient = "import mjfleet.launch.hosts.host_channel as channel; channel.LOST_SECONDS = 0.1; "
    monkeypatch.setattr(host_starter, "HOST_AGENT", impatient + host_starter.HOST_AGENT)
    question = AskInventory(str(folder), ())
    with HostConnections([LOCALHOST], LaunchConfig()) as connections:
        (host,) = connections
        connections.ask({host: question}, PATIENCE)
        time.sleep(0.5)  # Heartbeats come less often.
        assert isinstance(connections.ask({host: question}, PATIENCE)[host], HostInventory)


def test_one_that_imports_torch_ends_with_the_launcher_and_leaves_nothing(folder: Path) -> None:
    args = WorkerArgs(
        task="cartpole-balance", task_folder="", config={}, devices=("cpu",), engine="native",
        threads=1, run_dir="run",
    )  # fmt: skip
    with HostConnections([LOCALHOST], LaunchConfig()) as connections:
        (host,) = connections
        assert isinstance(
            connections.ask({host: AskInventory("", ())}, PATIENCE)[host], HostInventory
        )
        host.send(args)
        host.close()
        assert connections.receive(PATIENCE) == (host, None)
        assert "exit code 0" in host.why_lost()
    assert not list((folder / "tmp").glob("mjfleet-*"))


def test_one_that_was_killed_is_named_and_its_folder_removed(folder: Path) -> None:
    question = AskInventory(str(folder), ())
    with HostConnections([LOCALHOST], LaunchConfig()) as connections:
        (host,) = connections
        assert isinstance(connections.ask({host: question}, PATIENCE)[host], HostInventory)
        (left,) = (folder / "tmp").glob("mjfleet-*")
        os.kill(int(left.name.split("-")[1]), 9)
        answer = connections.ask({host: question}, PATIENCE)[host]
        assert isinstance(answer, Answer)
        assert "killed by SIGKILL" in answer.error
    assert not left.exists()
