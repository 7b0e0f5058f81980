"""Several workers from the command line: real processes on this host, connected by gloo."""

import fcntl
import json
import os
import pty
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from subprocess import Popen

import psutil
import pytest
import torch

from mjfleet.rl.checkpoints.files import OWN
from mjfleet.utils.wait_until import wait_until

from ..conftest import PATIENCE, Figure, Run, Start, WarmCommand, changed, only_run, rows
from ..loggers.recorded import history, records
from .workers import (
    ENDLESS,
    PAIR,
    TRAIN,
    saved,
    started,
    wait_for_iteration,
    write_faulty,
    write_noisy,
)

Finished = tuple["subprocess.CompletedProcess[str]", Path]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A run of two workers, and the folder that it was started in."""
    flags = ("--agent.save-interval", "2", "--agent.logger", "tensorboard", "wandb")
    flags = (*flags, "--agent.wandb.checkpoints", "--cpu-threads", "2")
    folder = tmp_path_factory.mktemp("finished")
    for module in ("json", "shlex", "queue", "torch"):  # No process imports what lies around here.
        (folder / f"{module}.py").write_text("raise SystemExit(f'{__file__} was imported')")
    result = subprocess.run(
        [str(Path(sys.executable).with_name("train")), "cartpole-balance", *PAIR, *flags],
        check=False,
        cwd=folder,
        env=os.environ | {"WANDB_MODE": "offline"},
        capture_output=True,
        text=True,
    )
    return result, folder


def test_two_workers_leave_one_run(finished: Finished) -> None:
    result, folder = finished
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    run_dir = only_run(folder)
    shown = f"run directory: {run_dir.relative_to(folder)}"
    lines = result.stdout.splitlines()
    assert [lines[0], lines[-1]] == [shown, shown]
    assert lines[1] == "rank 0: building 16 environments: native engine on cpu"
    assert [line.split()[0] for line in lines[2:-1]] == [f"iteration={i}/4" for i in range(1, 5)]

    table = rows(run_dir)
    assert [row["iteration"] for row in table] == ["1", "2", "3", "4"]
    for row in table:
        assert row["world_size"] == "2"
        assert row["slowest_rank"] in ("0", "1")
        assert float(row["wait_seconds"]) >= 0
        both, one = float(row["global_steps_per_second"]), float(row["steps_per_second"])
        assert both == pytest.approx(2 * one, abs=2)
    assert table[-1]["total_steps"] == str(2 * 4 * 8 * 16)
    names = {path.name for path in run_dir.iterdir()}
    events = {name for name in names if name.startswith("events.out")}
    assert len(events) == 1
    assert names - events == {
        "run.json", "config.yaml", "metrics.csv", "checkpoints", "task", "torchrunx", "wandb",
        "attempts", ".lock",
    }  # fmt: skip
    assert [row["iteration"] for row in history(run_dir)] == [1, 2, 3, 4]
    uploaded = [file.path for one in records(run_dir, "artifact") for file in one.manifest.contents]
    assert uploaded == [
        "config.yaml",
        "model_2.pt",
        "run.json",
        "config.yaml",
        "model_4.pt",
        "run.json",
    ]
    checkpoints = sorted(path.name for path in (run_dir / "checkpoints").iterdir())
    assert checkpoints == ["final_model.pt", "model_2.pt", "model_4.pt"]
    torch.load(run_dir / "checkpoints" / "model_4.pt", weights_only=True)

    record = json.loads((run_dir / "run.json").read_text())
    assert (record["status"], record["iterations"]) == ("finished", 4)
    assert [worker["seed"] for worker in record["plan"]["workers"]] == [1, 2]

    (logs,) = (run_dir / "torchrunx").iterdir()
    assert {path.name for path in logs.iterdir()} == {
        "localhost.log", "localhost[0].log", "localhost[1].log",
    }  # fmt: skip
    assert (logs / "localhost[0].log").read_text().splitlines() == lines[1:-1]
    assert "rank 1: building" in (logs / "localhost[1].log").read_text()


def test_workers_draw_random_numbers_of_their_own(finished: Finished) -> None:
    path = only_run(finished[1]) / "checkpoints" / "model_4.pt"
    first, second = torch.load(path, weights_only=True)[OWN]["ranks"]
    assert not torch.equal(first["env"]["generator"], second["env"]["generator"])
    assert not torch.equal(first["random"]["torch"], second["random"]["torch"])
    assert not torch.equal(first["random"]["numpy"][1], second["random"]["numpy"][1])
    assert first["random"]["python"] != second["random"]["python"]


def test_a_mistake_that_a_worker_finds_leaves_nothing(run: Run, tmp_path: Path) -> None:
    write_noisy(tmp_path, setup="if RANK == 1: raise UserError('no such gripper')")
    result = run("train", "noisy", "--cpu-workers", "2", TORCHRUNX_LOG_DIR="a/b")
    assert result.returncode == 2
    assert result.stderr == "error: no such gripper\n"
    assert [path.name for path in tmp_path.iterdir()] == ["tasks"]


@pytest.mark.slow
def test_a_rank_that_waits_too_long_says_what_for(
    run: Run, tmp_path: Path, slowness: float
) -> None:
    write_noisy(tmp_path, step="if RANK == 1: __import__('time').sleep(600)")
    limit = str(3 * slowness)
    result = run("train", "noisy", "--cpu-workers", "2", "--collective-timeout", limit)
    assert result.returncode == 1
    assert "rank 0 on " in result.stderr
    assert "Timed out" in result.stderr


LINES = 20_000
SHOUT = f"""[print(f"rank {{RANK}} line {{i}}") for i in range({LINES})]
            sys.stdout.buffer.write(b"half\\rwhole \\xff\\x1b[32mgreen\\x1b[0m\\n")
            sys.stdout.flush()
            print("and an error", file=sys.stderr)
            __import__("logging").getLogger("task").warning("and a warning")
            if RANK == 0: open("printed", "w").close()
            while not os.path.exists("printed"): pass  # Nobody may end while the other prints.
            if RANK == 1: open("failed", "w").close(); os.kill(os.getpid(), signal.SIGKILL)"""


def test_logs_are_whole_when_a_worker_is_killed(tmp_path: Path, figure: Figure) -> None:
    write_noisy(tmp_path, step=SHOUT)
    result = subprocess.run(
        [*TRAIN, "noisy", "--cpu-workers", "2"], cwd=tmp_path, capture_output=True, check=False
    )
    figure("SIGKILL of a worker", tmp_path / "failed")
    assert result.returncode == 1
    assert b"killed by SIGKILL, possibly out of memory" in result.stderr
    (logs,) = (only_run(tmp_path, "noisy") / "torchrunx").iterdir()
    for rank in (0, 1):
        text = (logs / f"localhost[{rank}].log").read_bytes()
        shouted = [f"rank {rank} line {i}".encode() for i in range(LINES)]
        assert re.findall(rb"^rank \d line \d+$", text, re.MULTILINE) == shouted
        assert b"half\rwhole \xff\x1b[32mgreen\x1b[0m\n" in text
        assert b"and an error\nand a warning\n" in text
    # The terminal: rank 0's, byte for byte, in its place.
    assert b"rank 0 line 19999\nhalf\rwhole \xff\x1b[32mgreen\x1b[0m\n" in result.stdout
    assert b"rank 1" not in result.stdout.replace(b"rank 1 on", b"")
    assert b"and an error\nand a warning\n" in result.stderr


@pytest.mark.slow
def test_on_a_terminal_rank_0_draws_as_one_worker_would(tmp_path: Path) -> None:
    reader, writer = pty.openpty()
    with subprocess.Popen(
        [*TRAIN, "cartpole-balance", *PAIR], cwd=tmp_path, stdout=writer, stderr=writer
    ) as process:
        os.close(writer)
        seen = b""
        fcntl.fcntl(reader, fcntl.F_SETFL, os.O_NONBLOCK)
        while process.poll() is None:
            time.sleep(0.1)
            try:
                seen += os.read(reader, 65536)
            except (BlockingIOError, OSError):
                continue
    os.close(reader)
    assert process.returncode == 0
    text = seen.decode()
    assert "return" in text
    assert "the others waited" in text
    assert "iteration=" not in text


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGINT,
        pytest.param(signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param(signal.SIGHUP, marks=pytest.mark.slow),
    ],
)
def test_a_signal_to_the_launcher_finishes_the_iteration_on_all_ranks(
    start: Start, tmp_path: Path, number: signal.Signals, figure: Figure
) -> None:
    process = start("train", "cartpole-balance", *ENDLESS, ignores=signal.SIGINT)
    wait_for_iteration(process, 2)
    process.send_signal(number)
    rest, errors = process.communicate()
    (saved,) = tmp_path.rglob("model_*.pt")
    figure(f"{number.name} to the launcher: from the end of the iteration", saved)
    assert process.returncode == 128 + number
    assert errors == ""
    assert rest.count(f"{number.name}: stopping after this iteration") == 1
    run_dir = only_run(tmp_path)
    record = json.loads((run_dir / "run.json").read_text())
    assert record["status"] == "stopped"
    assert len(rows(run_dir)) == record["iterations"]
    assert (run_dir / "checkpoints" / f"model_{record['iterations']}.pt").exists()


@pytest.mark.slow
@pytest.mark.parametrize("who", ["", "RANK and "], ids=["both", "rank 0 waits in a collective"])
def test_a_second_signal_ends_all_workers_at_once(tmp_path: Path, figure: Figure, who: str) -> None:
    sleep = "(open('slow', 'w').close(), __import__('time').sleep(600))"
    write_noisy(tmp_path, step=f"{who}{sleep}")
    with started(tmp_path, "--cpu-workers", "2", task="noisy") as process:
        while not (tmp_path / "slow").exists():
            assert process.poll() is None
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        while "SIGINT: stopping" not in (shown := process.stdout.readline()):
            assert process.poll() is None
        time.sleep(0.6)  # Sooner, it would be the same signal.
        (tmp_path / "second").touch()
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate()
        figure("a second signal", tmp_path / "second")
    assert process.returncode == 130
    assert "SIGINT: stopping at once" in shown + rest
    assert json.loads((only_run(tmp_path, "noisy") / "run.json").read_text())["status"] == "stopped"


def test_a_signal_while_a_host_agent_imports_leaves_no_process(tmp_path: Path) -> None:
    with started(tmp_path, *ENDLESS) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.5)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate()
    assert process.returncode == 143
    assert errors == ""


def test_a_signal_while_workers_start_leaves_none(start: Start) -> None:
    process = start("train", "cartpole-balance", *ENDLESS, ignores=signal.SIGINT)
    process.stdout.readline()
    time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate()
    assert process.returncode == 143
    assert errors == ""


def test_all_listen_on_the_loopback_interface_alone_and_end_with_the_launcher(
    start: Start, tmp_path: Path, figure: Figure
) -> None:
    before = set(Path(tempfile.gettempdir()).glob("mjfleet-*-*"))
    process = start("train", "cartpole-balance", *ENDLESS, ignores=signal.SIGINT)
    wait_for_iteration(process, 2)
    family = psutil.Process(process.pid).children(recursive=True)
    assert len(family) >= 4
    listening = [
        (member, connection.laddr.ip)
        for member in (psutil.Process(process.pid), *family)
        for connection in member.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert {address for _, address in listening} <= {"127.0.0.1", "::1"}
    assert len({member for member, _ in listening}) == 2  # The workers alone.
    (tmp_path / "killed").touch()
    process.kill()
    _, alive = psutil.wait_procs(family, timeout=PATIENCE)
    figure("SIGKILL of the launcher", tmp_path / "killed")
    assert not alive
    assert set(Path(tempfile.gettempdir()).glob("mjfleet-*-*")) <= before


def torchrun(folder: Path, workers: int, *flags: str) -> "subprocess.Popen[str]":
    """Train with torchrun and some workers of this host, with a thread each."""
    agent = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(workers)]
    train = ["-m", "mjfleet.cli.train", "faulty-balance", "--agent.save-interval", "1"]
    here = ("--cpu-workers", str(workers), "--cpu-threads", str(workers))
    here = (*changed(PAIR, *here), "--run-dir", "logs/faulty-balance/run")
    return subprocess.Popen(
        [*agent, *flags, *train, *here],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_torchrun_starts_workers_again_and_they_learn_the_same(
    finished: Finished, tmp_path: Path
) -> None:
    write_faulty(tmp_path, "os.kill(os.getpid(), signal.SIGKILL)")
    with torchrun(tmp_path, 2, "--max-restarts", "1") as agent:
        shown, errors = agent.communicate()
    assert agent.returncode == 0, errors
    run_dir = only_run(tmp_path, "faulty-balance")
    assert f"continuing from {run_dir.relative_to(tmp_path)}/checkpoints/model_1.pt" in shown
    assert shown.count("iteration=4/4 ") == 1
    assert [row["iteration"] for row in rows(run_dir)] == ["1", "2", "3", "4"]
    listed = json.loads((run_dir / "run.json").read_text())["attempts"]
    ended = [(attempt["status"], attempt["is_restart"]) for attempt in listed]
    assert ended == [("failed", False), ("finished", True)]
    own = saved(only_run(finished[1]), 4)
    assert all(torch.equal(value, own[name]) for name, value in saved(run_dir, 4).items())
    shutil.rmtree(tmp_path / "logs")

    with socket.create_server(("127.0.0.1", 0)) as free:
        meet = ("--nnodes", "2", "--master-port", str(free.getsockname()[1]))
    agents = [torchrun(tmp_path, 1, *meet, "--node-rank", rank) for rank in ("0", "1")]
    told = [agent.communicate() for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], told
    run_dir = only_run(tmp_path, "faulty-balance")
    assert {row["world_size"] for row in rows(run_dir)} == {"2"}
    assert all(torch.equal(value, own[name]) for name, value in saved(run_dir, 4).items())


SrunTask = Popen | WarmCommand


def srun_tasks(folder: Path, *flags: str, start: Start | None = None) -> list[SrunTask]:
    """Be SLURM's srun, which starts two tasks on one host: new programs, or by `start`."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    step = {
        "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_NODEID": "0",
        "SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_STEP_NODELIST": "localhost",
        "MASTER_PORT": str(port),
    }  # fmt: skip
    tasks: list[SrunTask] = []
    for number in ("0", "1"):
        environ = os.environ | step | {"SLURM_PROCID": number, "SLURM_LOCALID": number}
        if start:
            tasks.append(start("train", "cartpole-balance", *flags, environ=environ))
            continue
        tasks.append(
            Popen(
                [*TRAIN, "cartpole-balance", *flags],
                cwd=folder,
                env=environ,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    return tasks


def ended(tasks: Sequence[SrunTask]) -> list[tuple[int | None, str, str]]:
    """Return exit code, output and errors of each task."""
    texts = [task.communicate() for task in tasks]
    return [(task.returncode, out, err) for task, (out, err) in zip(tasks, texts, strict=True)]


def test_srun_starts_the_workers_and_they_are_one_run(start: Start, tmp_path: Path) -> None:
    (code, shown, errors), (other_code, others, _) = ended(srun_tasks(tmp_path, *PAIR))
    assert (code, other_code) == (0, 0), errors
    assert shown.count("iteration=4/4 ") == 1
    assert "iteration=" not in others
    assert len(rows(only_run(tmp_path))) == 4

    wrong = srun_tasks(tmp_path, *changed(PAIR, "--cpu-workers", "3"), start=start)
    (code, _, errors), (other_code, _, others) = ended(wrong)
    assert (code, other_code) == (2, 2)
    assert errors.count("error: --cpu-workers 3 is for 3 workers") == 1
    assert others == ""
    only_run(tmp_path)


def test_rank_0_saves_before_srun_ends_it_because_another_rank_has_ended(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slowness: float
) -> None:
    """Here srun has --kill-on-bad-exit, and rank 0 takes long to end."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    once = ("--agent.save-interval", "100000", "--agent.logger", "wandb")
    first, other = srun_tasks(tmp_path, *ENDLESS, *once, start=start)
    wait_for_iteration(first, 2)
    for task in (first, other):
        task.send_signal(signal.SIGTERM)
    while not any(tmp_path.rglob("checkpoints/*")):
        assert first.poll() is None
        time.sleep(0.001)
    first.send_signal(signal.SIGSTOP)  # It has still to close loggers, and to record its end.
    wait_until(lambda: other.poll() is not None, 2 * slowness)
    first.send_signal(signal.SIGCONT)
    while first.poll() is None and other.poll() is None:
        time.sleep(0.001)
    for task in (first, other):
        task.kill()
    texts = first.communicate(), other.communicate()
    assert json.loads((only_run(tmp_path) / "run.json").read_text())["status"] == "stopped", texts


def test_the_last_lines_of_rank_0_are_in_its_record(run: Run, tmp_path: Path) -> None:
    write_noisy(tmp_path, step="RANK or (print('last words'), 1 / 0)")
    result = run("train", "noisy", "--cpu-workers", "2", "--run-dir", "d")
    assert result.returncode == 1
    record = json.loads((tmp_path / "d/failures/rank0.json").read_text())
    assert (record["kind"], record["log"][-1]) == ("ZeroDivisionError", "last words")


def test_a_cause_that_cannot_be_recorded_is_printed(run: Run, tmp_path: Path) -> None:
    write_noisy(tmp_path, step="RANK or (os.rename('d', 'e'), 1 / 0)")
    result = run("train", "noisy", "--cpu-workers", "2", "--run-dir", "d")
    assert result.returncode == 1
    assert "ZeroDivisionError" in result.stderr


def test_the_first_worker_compiles_before_others_build(run: Run, tmp_path: Path) -> None:
    pause = "__import__('time').sleep(0.5)"
    write_noisy(tmp_path, setup=f"RANK or {pause}; open('order', 'a').write(str(RANK))")
    flags = ("--engine", "warp", "--cpu-workers", "2", "--agent.max-iterations", "1")
    result = run("train", "noisy", *flags)
    assert result.returncode == 0, result.stderr
    assert re.fullmatch("0+1+", (tmp_path / "order").read_text())


@pytest.mark.slow
def test_no_host_name_needs_to_be_resolved_and_nothing_need_be_left(tmp_path: Path) -> None:
    unshare = ["unshare", "--uts", "--mount", "--map-root-user", "sh", "-ec"]
    train = " ".join([*TRAIN, "cartpole-balance", *PAIR, "--torchrunx-log-dir", "''"])
    own = "hostname nowhere.invalid; mount -t tmpfs none /dev/shm"
    command = f"{own}; {train}; ls -A /dev/shm > left"
    result = subprocess.run(
        [*unshare, command], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert "iteration=4/4" in result.stdout
    assert json.loads((only_run(tmp_path) / "run.json").read_text())["host"] == "nowhere.invalid"
    assert not list(tmp_path.rglob("*.log"))
    assert (tmp_path / "left").read_text() == ""


@pytest.mark.slow
def test_shared_memory_that_cannot_be_written_is_not_needed(tmp_path: Path) -> None:
    unshare = ["unshare", "--mount", "--map-root-user", "sh", "-ec"]
    train = " ".join([*TRAIN, "cartpole-balance", *PAIR])
    result = subprocess.run(
        [*unshare, f"mount -t tmpfs -o ro none /dev/shm; {train}"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr


@pytest.mark.gpu
@pytest.mark.parametrize(
    "flags", [("--gpu-ids", "0", "0", "--backend", "gloo"), ("--gpu-ids", "all")]
)
def test_workers_on_gpus(run: Run, tmp_path: Path, flags: tuple[str, ...]) -> None:
    if flags[1] == "all" and torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    small = [flag for flag in PAIR if flag not in ("--cpu-workers", "2")]
    result = run("train", "cartpole-balance", *small, *flags)
    assert result.returncode == 0, result.stderr
    assert len(rows(only_run(tmp_path))) == 4


def test_a_cause_is_shown_although_the_run_directory_was_moved(run: Run, tmp_path: Path) -> None:
    move = "os.rename('run', 'elsewhere'); raise RuntimeError('the gripper broke')"
    write_noisy(tmp_path, step=f"if RANK == 1: {move}")
    result = run("train", "noisy", "--cpu-workers", "2", "--run-dir", "run")
    assert result.returncode == 1
    assert "rank 1 on " in result.stderr
    assert "RuntimeError: the gripper broke" in result.stderr
    assert "run.json does not say how the run ended: it is gone" in result.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"elsewhere", "tasks"}


@pytest.mark.slow
def test_an_exception_on_a_rank_ends_the_run_with_its_traceback(run: Run, tmp_path: Path) -> None:
    write_noisy(tmp_path, step="if RANK == 1: raise RuntimeError('the gripper broke')")
    result = run("train", "noisy", "--cpu-workers", "2", "--torchrunx-log-dir", "mine")
    assert result.returncode == 1
    assert "rank 1 on " in result.stderr
    assert "RuntimeError: the gripper broke" in result.stderr
    run_dir = only_run(tmp_path, "noisy")
    record = json.loads((run_dir / "run.json").read_text())
    assert (record["status"], record["iterations"]) == ("failed", 1)
    failure = json.loads((run_dir / "failures" / "rank1.json").read_text())
    assert (failure["kind"], failure["message"]) == ("RuntimeError", "the gripper broke")
    # A relative folder is relative to where the user stands.
    assert not (run_dir / "torchrunx").exists()
    (logs,) = (tmp_path / "mine").iterdir()
    assert "the gripper broke" in (logs / "localhost[1].log").read_text()
