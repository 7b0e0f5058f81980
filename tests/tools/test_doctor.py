"""`mjfleet doctor`: real checks on the CPU, and checks that fail, crash or hang."""

import json
import os
import shlex
import signal
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from mjfleet.tools.doctor import checks
from mjfleet.tools.doctor.checks import Finding
from mjfleet.utils.packages import compile_command
from mjfleet.utils.wait_until import wait_until
from mjfleet.worker.worker_args import WorkerArgs

from ..conftest import PATIENCE, POISON, Output, Refusal, Run


class Line(NamedTuple):
    """What doctor prints for one check."""

    status: str
    text: str
    remedy: str


def found(output: str) -> dict[str, Line]:
    """The checks by name, in the order of the output."""
    lines = [*output.splitlines(), ""]
    return {
        line[6:].partition(": ")[0]: Line(line[:4].strip(), line, below if below[:1] == " " else "")
        for line, below in pairwise(lines)
        if not line.startswith(" ")
    }


@pytest.fixture
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder for temporary files of what a test starts."""
    return tmp_path_factory.mktemp("scratch")


def broken_path(folder: Path) -> Path:
    """For PYTHONPATH: a torch that hangs, after it has left its process's number in `pid`."""
    folder.mkdir()
    code = f"""
        import os, pathlib, time
        pathlib.Path({str(folder / "pid")!r}).write_text(str(os.getpid()))
        time.sleep(1000)
    """
    (folder / "torch.py").write_text(textwrap.dedent(code))
    return folder


def test_a_machine_that_can_train_passes(output: Output, tmp_path: Path, scratch: Path) -> None:
    shown = output(
        "mjfleet", "doctor", "--cpu-workers", "2", "--log-root", "logs/mine",
        prelude=POISON, TMPDIR=str(scratch),
    )  # fmt: skip
    lines = found(shown)
    assert list(lines) == [
        "driver", "devices", "bytecode", "torch", "warp", "all-reduce", "rendering cpu", "log root",
    ]  # fmt: skip
    for name in ("torch", "warp", "all-reduce", "log root"):
        assert lines[name].status == "ok", name
    assert "2 workers, gloo" in shown
    assert not list(tmp_path.iterdir())
    assert not list(scratch.iterdir())


def one_check(check: str) -> list[str]:
    """Return the command of a single check."""
    request = WorkerArgs(
        task="", task_folder="", config={}, devices=("cpu",), engine="native", threads=1, run_dir=""
    )
    return [sys.executable, "-m", checks.__name__, check, json.dumps(asdict(request)), "0"]


def finding_of(command: list[str], environ: Mapping[str, str]) -> Finding:
    """Return what a check finds in a process of its own."""
    result = subprocess.run(command, env=environ, check=True, capture_output=True, text=True)
    return Finding(*json.loads(result.stdout))


@pytest.mark.skipif(
    bool(subprocess.run(["unshare", "--mount", "--map-root-user", "true"], check=False).returncode),
    reason="needs unshare",
)
@pytest.mark.parametrize(
    ("size", "variables", "status"),
    [
        ("64m", {}, "warn"),
        ("64m", {"NCCL_SHM_DISABLE": "1"}, "ok"),
        ("1g", {}, "ok"),
    ],
)
def test_less_shared_memory_than_nccl_may_need_is_a_warning(
    size: str, variables: dict[str, str], status: str
) -> None:
    script = f'mount -t tmpfs -o size={size} none /dev/shm; exec "$@"'
    unshare = ["unshare", "--mount", "--map-root-user", "sh", "-ec", script, "sh"]
    finding = finding_of(unshare + one_check("check_shared_memory"), os.environ | variables)
    assert finding.status == status
    assert finding.found.startswith("/dev/shm has ")


@pytest.mark.parametrize(
    ("variables", "status", "words"),
    [
        ({"PYTHONDONTWRITEBYTECODE": "1"}, "warn", "PYTHONDONTWRITEBYTECODE is set"),
        ({"PYTHONPYCACHEPREFIX": "/dev/null"}, "warn", "cannot be written"),
        ({}, "ok", "Python writes it when it imports torch, "),
    ],
)
def test_packages_without_bytecode_that_nobody_writes_are_a_warning(
    tmp_path: Path, variables: dict[str, str], status: str, words: str
) -> None:
    kept = {name: value for name, value in os.environ.items() if name[:8] != "PYTHONDO"}
    environ = {**kept, "PYTHONPYCACHEPREFIX": str(tmp_path), **variables}
    finding = finding_of(one_check("check_bytecode"), environ)
    assert finding.status == status
    assert words in finding.found
    folder = shlex.split(compile_command())[-1]
    assert (Path(folder) / "torch").is_dir()


@pytest.mark.slow
def test_what_hangs_crashes_or_fails_is_a_line_with_what_to_do(
    run: Run, tmp_path: Path, scratch: Path, slowness: float
) -> None:
    limit = 5 * slowness
    path = broken_path(tmp_path / "path")
    (path / "mujoco.py").write_text("import os\nos.kill(os.getpid(), 11)\n")
    (tmp_path / "file").touch()
    result = run(
        "mjfleet", "doctor", "--gpu-ids", "None", "--log-root", "file/logs",
        "--timeout", str(limit),
        PYTHONPATH=str(path), TMPDIR=str(scratch),
    )  # fmt: skip
    assert result.returncode == 1, result.stderr
    lines = found(result.stdout)
    for name, status, words in (
        ("torch", "FAIL", f"{limit:g} s"),
        ("rendering cpu", "warn", "SIGSEGV"),
        ("log root", "FAIL", str(tmp_path / "file")),
    ):
        assert lines[name].status == status, name
        assert words in lines[name].text, name
        assert lines[name].remedy.startswith("      to do: "), name
    assert "--log-root" in lines["log root"].remedy
    child = int((path / "pid").read_text())
    assert wait_until(lambda: not psutil.pid_exists(child), PATIENCE)
    assert not list(scratch.iterdir())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_signal_ends_it_and_its_children(tmp_path: Path, scratch: Path, number: int) -> None:
    path = broken_path(tmp_path / "path")
    script = "from mjfleet.cli.dispatcher import main; main()"
    pid = path / "pid"
    with subprocess.Popen(
        [sys.executable, "-c", script, "doctor", "--gpu-ids", "None"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(path), "TMPDIR": str(scratch)},
        stdout=subprocess.DEVNULL,
    ) as process:
        assert wait_until(lambda: pid.exists() and bool(pid.read_text()), PATIENCE)
        process.send_signal(number)
        code = process.wait()
    child = int(pid.read_text())
    assert wait_until(lambda: not psutil.pid_exists(child), PATIENCE)
    if number == signal.SIGINT:
        assert code == 130
        assert not list(scratch.iterdir())


def test_a_mistake_is_one_message(refusal: Refusal) -> None:
    assert "--gpu-ids 0" in refusal("doctor", "--gpu-ids", "0")


@pytest.mark.gpu
def test_a_gpu_is_checked(output: Output) -> None:
    lines = found(output("mjfleet", "doctor", "--gpu-ids", "0"))
    assert {lines[name].status for name in ("driver", "torch", "warp")} == {"ok"}
    assert lines["cuda:0"].status in ("ok", "warn")
