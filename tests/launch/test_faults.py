"""What happens to a run of several workers when one of them fails, hangs or is killed.

With `--figures` the time from a fault to the end of the run is shown: see docs/reliability.md.
"""

import json
import random
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import psutil
import pytest
import torch

from mjfleet.runs.metrics_csv import completed_iterations
from mjfleet.runs.named_run import read_run

from ..conftest import PATIENCE, Figure, Run, Start, only_run, rows
from .workers import ENDLESS, TRAIN, started, wait_for_iteration, write_noisy

TWO = ("--cpu-workers", "2")


def failure(run_dir: Path, rank: int) -> dict:
    return json.loads((run_dir / "failures" / f"rank{rank}.json").read_text())


UNPICKLABLE = """if RANK == 0:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                __import__("time").sleep(600)
            class Odd(Exception):
                def __reduce__(self):
                    raise TypeError("no pickles")
            print("the last line")
            open("failed", "w").close()
            raise Odd(lambda: 1)"""


def test_the_true_cause_is_told_though_others_do_not_listen(
    run: Run, tmp_path: Path, figure: Figure
) -> None:
    write_noisy(tmp_path, step=UNPICKLABLE)
    result = run("train", "noisy", *TWO)
    figure("exception on a rank, another ignores SIGTERM and sleeps", tmp_path / "failed")
    assert result.returncode == 1
    assert "rank 1 on " in result.stderr
    assert "iteration 2, collect" in result.stderr
    assert "env.py" in result.stderr
    run_dir = only_run(tmp_path, "noisy")
    assert f"Recorded in {run_dir.relative_to(tmp_path)}/failures/rank1.json" in result.stderr
    record = failure(run_dir, 1)
    assert record["kind"] == "Odd"
    assert record["log"][-1] == "the last line"
    expected = {"rank": 1, "device": "cpu", "seed": 2, "iteration": 2, "phase": "collect"}
    assert record | expected == record


@pytest.mark.slow
def test_leaving_is_a_failure_too(run: Run, tmp_path: Path, figure: Figure) -> None:
    write_noisy(tmp_path, step="if RANK == 1: open('failed', 'w').close(); sys.exit(0)")
    result = run("train", "noisy", *TWO)
    figure("exit(0) on a rank, the others in a collective", tmp_path / "failed")
    assert result.returncode == 1
    assert "rank 1 on " in result.stderr
    assert failure(only_run(tmp_path, "noisy"), 1)["kind"] == "SystemExit"


def agent_of(process: subprocess.Popen) -> psutil.Process:
    """The process that is the parent of the workers."""
    (host_agent,) = psutil.Process(process.pid).children()
    return next(child for child in host_agent.children() if len(child.children()) >= 2)


@pytest.mark.slow
def test_a_killed_agent_is_named_and_takes_all_with_it(tmp_path: Path, figure: Figure) -> None:
    with started(tmp_path, *ENDLESS) as process:
        wait_for_iteration(process, 2)
        agent_of(process).kill()
        (tmp_path / "failed").touch()
        _, errors = process.communicate()
        figure("SIGKILL of the agent", tmp_path / "failed")
    assert process.returncode == 1
    assert "torchrunx's agent was killed by SIGKILL" in errors


def test_a_killed_host_agent_is_named_and_takes_all_with_it(start: Start, tmp_path: Path) -> None:
    process = start("train", "cartpole-balance", *ENDLESS, ignores=signal.SIGINT)
    wait_for_iteration(process, 2)
    (host_agent,) = psutil.Process(process.pid).children()
    family = host_agent.children(recursive=True)
    host_agent.kill()
    _, errors = process.communicate()
    _, alive = psutil.wait_procs(family, timeout=PATIENCE)
    assert not alive
    assert process.returncode == 1
    assert "killed by SIGKILL" in errors
    assert (
        json.loads((only_run(tmp_path) / "run.json").read_text())["attempts"][0]["kind"] == "Lost"
    )
    assert not list(Path(tempfile.gettempdir()).glob(f"mjfleet-{host_agent.pid}-*"))


@pytest.mark.parametrize("seconds", [1.5, pytest.param(3.5, marks=pytest.mark.slow)])
def test_a_launcher_that_is_killed_while_workers_start_leaves_none(
    tmp_path: Path, seconds: float
) -> None:
    with started(tmp_path, *ENDLESS) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(seconds)
        family = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        _, alive = psutil.wait_procs(family, timeout=PATIENCE)
        assert not alive


@pytest.mark.parametrize("state", [pytest.param("stopped", marks=pytest.mark.slow), "asleep"])
def test_a_hang_ends_with_the_stacks_of_all_ranks(
    run: Run, tmp_path: Path, state: str, figure: Figure, slowness: float
) -> None:
    limit = 1.5 * slowness
    sleep = "if RANK == 1: open('failed', 'w').close(); __import__('time').sleep(600)"
    stop = "if RANK == 1: open('failed', 'w').close(); os.kill(os.getpid(), signal.SIGSTOP)"
    write_noisy(tmp_path, step=sleep if state == "asleep" else stop)
    result = run("train", "noisy", *TWO, "--hang-timeout", str(limit))
    figure(f"worker {state}, beyond --hang-timeout", tmp_path / "failed", less=limit)
    assert result.returncode == 1
    assert "rank 1 on " in result.stderr
    assert f"no step for {limit:g} s" in result.stderr
    assert ("SIGSTOP" in result.stderr) == (state == "stopped")
    run_dir = only_run(tmp_path, "noisy")
    # A stopped process has to go on to tell, and may be a line or two further by then.
    place = "in apply" if state == "asleep" else "in train"
    assert place in failure(run_dir, 1)["traceback"]
    assert "collectives.py" in failure(run_dir, 0)["traceback"]


def test_one_worker_alone_notices_that_it_hangs(run: Run, tmp_path: Path, slowness: float) -> None:
    limit = slowness
    write_noisy(tmp_path, step="__import__('time').sleep(600)")
    result = run("train", "noisy", "--hang-timeout", str(limit), RANK="0")
    assert result.returncode == 1
    assert f"no step for {limit:g} s" in result.stderr
    run_dir = only_run(tmp_path, "noisy")
    assert "in apply" in failure(run_dir, 0)["traceback"]
    assert json.loads((run_dir / "run.json").read_text())["status"] == "failed"


ONCE_KILLED_THEN_BROKEN = """times = len(os.listdir("starts")) if os.path.exists("starts") else 9
            if times == 0: open("starts/1", "w").close(); os.kill(os.getpid(), signal.SIGKILL)
            if times < 9: open(f"starts/{times + 1}", "w").close(); raise ValueError("broken")"""


@pytest.mark.slow
def test_a_run_starts_again_after_faults_but_not_for_ever(run: Run, tmp_path: Path) -> None:
    write_noisy(tmp_path, step=ONCE_KILLED_THEN_BROKEN)
    (tmp_path / "starts").mkdir()
    few = ("--agent.max-iterations", "3", "--agent.save-interval", "1")
    result = run("train", "noisy", "--max-restarts", "9", *few)
    run_dir = only_run(tmp_path, "noisy")
    # Killed in iteration 2, then broken at the same place twice: that will not change.
    assert result.returncode == 1
    assert result.stdout.count("starting again in") == 2
    assert "not started again: the same fault" in result.stdout
    attempts = json.loads((run_dir / "run.json").read_text())["attempts"]
    causes = [attempt["cause"] for attempt in attempts]
    assert ["SIGKILL" in cause for cause in causes] == [True, False, False], causes
    assert [attempt["checkpoint"] for attempt in attempts] == [None, "model_1.pt", "model_1.pt"]
    # Mended, it goes on where it was.
    for start in (tmp_path / "starts").iterdir():
        start.unlink()
    (tmp_path / "starts").rmdir()
    result = run("train", "noisy", "--resume", "latest")
    assert result.returncode == 0, result.stderr
    assert [row["iteration"] for row in rows(run_dir)] == ["1", "2", "3"]
    attempts = json.loads((run_dir / "run.json").read_text())["attempts"]
    assert [attempt["status"] for attempt in attempts] == ["failed"] * 3 + ["finished"]


def members_of(launcher: psutil.Process) -> dict[str, list[psutil.Process]]:
    """The processes of a run by what they are."""

    def living(parents: list[psutil.Process]) -> list[psutil.Process]:
        children = [child for parent in parents for child in parent.children()]
        return [child for child in children if child.status() != psutil.STATUS_ZOMBIE]

    host_agents = living([launcher])
    helpers = living(host_agents)
    others = ("resource_tracker",)
    agents = [helper for helper in helpers if not any(o in str(helper.cmdline()) for o in others)]
    kinds = {"launcher": [launcher], "host agent": host_agents, "agent": agents}
    return kinds | {"worker": living(agents)}


def wait_for_moment(chance: random.Random, process: subprocess.Popen, root: Path) -> None:
    """A moment while processes start, or one after training has got further."""
    if chance.random() < 0.4:
        time.sleep(chance.uniform(0.5, 10.0))
        return

    def done() -> int:
        return max(map(completed_iterations, root.glob("logs/*/*")), default=0)

    before = done()
    while process.poll() is None and done() <= before:
        time.sleep(0.05)
    time.sleep(chance.uniform(0.0, 2.0))


@pytest.mark.slow
def test_a_run_outlives_kills_at_random_moments(
    tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    """Workers, agent and launcher are killed; the launcher's run is resumed by hand."""
    kills = int(str(pytestconfig.getoption("--kills")))
    chance = random.Random(pytestconfig.getoption("--seed"))
    flags = (*ENDLESS, "--max-restarts", "1000", "--agent.save-interval", "1")
    flags = (*flags, "--keep-checkpoints", "5")
    killed = {"launcher": 0, "host agent": 0, "agent": 0, "worker": 0}
    resume: tuple[str, ...] = ()
    while True:
        with (tmp_path / "output").open("ab") as output:
            process = subprocess.Popen(
                [*TRAIN, "cartpole-balance", *(resume or flags)],
                cwd=tmp_path,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        while sum(killed.values()) < kills and process.poll() is None:
            wait_for_moment(chance, process, tmp_path)
            try:
                kinds = members_of(psutil.Process(process.pid))
                kind = chance.choice([kind for kind, members in kinds.items() if members])
                chance.choice(kinds[kind]).kill()
            except psutil.NoSuchProcess:
                continue
            killed[kind] += 1
            if kind == "launcher":
                process.wait()
        if process.poll() is None:
            break
        assert process.returncode == -signal.SIGKILL, (tmp_path / "output").read_text()
        resume = ("--resume", "latest")
    # What is left alone gets somewhere, and ends when it is asked to.
    run_dir = only_run(tmp_path)
    last = completed_iterations(run_dir)
    deadline = time.monotonic() + PATIENCE
    while completed_iterations(run_dir) < last + 3:
        assert process.poll() is None, (tmp_path / "output").read_text()
        assert time.monotonic() < deadline
        time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 143
    iterations = [int(row["iteration"]) for row in rows(run_dir)]
    assert iterations == list(range(1, len(iterations) + 1))
    found = read_run(run_dir, "").with_checkpoint()
    assert found.iteration == len(iterations)
    assert found.checkpoint is not None
    weights = torch.load(found.checkpoint, weights_only=True)["actor_state_dict"]
    assert all(value.isfinite().all() for value in weights.values())
    print(f"{killed} killed, {len(iterations)} iterations")


MUTE = """if RANK == 1:
                class Mute(Exception):
                    def __str__(self):
                        raise RuntimeError("no words")
                raise Mute("\\udcff")"""


@pytest.mark.slow
def test_an_exception_that_cannot_be_shown_is_still_the_cause(run: Run, tmp_path: Path) -> None:
    write_noisy(tmp_path, step=MUTE)
    result = run("train", "noisy", *TWO)
    assert result.returncode == 1
    assert "rank 1 on " in result.stderr
    assert failure(only_run(tmp_path, "noisy"), 1)["kind"] == "Mute"
