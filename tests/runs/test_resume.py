"""From which checkpoint a run continues, and runs that continue, from the command line."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mjfleet.cli.run_command import run_command
from mjfleet.cli.train import configure, train
from mjfleet.errors import UserError
from mjfleet.launch.restart_policy import pause_seconds, why_not
from mjfleet.rl.checkpoints.files import pack
from mjfleet.runs.find_run import find_run
from mjfleet.runs.named_run import read_run
from mjfleet.runs.run_lock import lock_run

from ..conftest import SMALL, Run, changed, only_run, rows

TASK = "cartpole-balance"
SIX = (*SMALL, "--agent.max-iterations", "6")


def make_run(root: Path, name: str = "2026-01-01_00-00-00", started: str = "2026-01-01") -> Path:
    run_dir = root / name
    (run_dir / "checkpoints").mkdir(parents=True)
    (run_dir / "run.json").write_text(json.dumps({"task": TASK, "started": started}))
    (run_dir / "config.yaml").write_text("agent: {seed: 5}\n")
    (run_dir / ".lock").touch()
    return run_dir


def add_checkpoint(run_dir: Path, iteration: int) -> Path:
    path = run_dir / "checkpoints" / f"model_{iteration}.pt"
    torch.save({"iter": iteration, "weights": torch.randn(1000)}, path)
    return path


def test_the_newest_checkpoint_that_is_whole_is_chosen(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path)
    for iteration in (5, 50, 100):
        newest = add_checkpoint(run_dir, iteration)
    found = read_run(run_dir, "").with_checkpoint()
    assert (found.checkpoint, found.iteration, found.notes) == (newest, 100, ())
    assert found.config == {"agent": {"seed": 5}}

    whole = newest.read_bytes()
    numbers = torch.load(newest, weights_only=True)["weights"].numpy().tobytes()
    chance = random.Random(1)
    for _ in range(50):
        damaged = bytearray(whole)
        if chance.random() < 0.5:
            del damaged[chance.randrange(len(whole)) :]
        else:
            damaged[whole.index(numbers) + chance.randrange(len(numbers))] ^= 1
        newest.write_bytes(damaged)
        found = read_run(run_dir, "").with_checkpoint()
        assert found.iteration == 50
        assert "model_100.pt is damaged and was skipped" in found.notes[0]
        with pytest.raises(UserError, match="is damaged"):
            read_run(newest, "").with_checkpoint()


def test_latest_is_the_run_that_began_last_also_without_a_checkpoint(tmp_path: Path) -> None:
    add_checkpoint(make_run(tmp_path, "a", "2026-01-02T00:00:00+00:00"), 3)
    add_checkpoint(make_run(tmp_path, "b", "2026-01-01T00:00:00+00:00"), 9)
    place = tmp_path.parent, tmp_path.name
    assert find_run("latest", "", *place) == tmp_path / "a"
    # Also where it has no checkpoint yet: `latest` is the same run for every command.
    make_run(tmp_path, "c", "2026-01-03T00:00:00+00:00")
    assert find_run("latest", "", *place) == tmp_path / "c"


def test_a_run_is_known_by_a_part_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    root = Path("logs")
    day = "2026-05-04"
    for name in ("a/2026-05-04_10", "a/2026-05-04_11", "a/2026-05-04_11_x", "b/2026-05-04_12"):
        make_run(root, name, f"{day}T{name[13:15]}:00:00+00:00")

    def found(wanted: str, experiment: str | None = None) -> str:
        return str(find_run(wanted, wanted, root, experiment).relative_to(root))

    assert found("2026-05-04_10") == found("a/2026-05-04_10") == "a/2026-05-04_10"
    assert found("logs/a/2026-05-04_10") == found("logs/a/2026-05-04_10/") == "a/2026-05-04_10"
    assert found("b") == found("logs/b/2026") == found("latest") == "b/2026-05-04_12"
    # A whole name is that run, though another begins so; an experiment's own runs come first.
    assert found("a/2026-05-04_11") == "a/2026-05-04_11"
    assert found("2026-05-04", "b") == "b/2026-05-04_12"
    assert found("2026-05-04_12", "a") == "b/2026-05-04_12"
    assert found("latest", "a") == found("a/latest") == found("logs/a/latest")
    assert found("latest", "a").startswith("a/2026-05-04_11")
    # A word of a name is enough if no name begins with it.
    assert found("x") == found("11_x") == "a/2026-05-04_11_x"
    make_run(root, "b/2026-05-04_13_xl-net", f"{day}T13:00:00+00:00")
    assert found("net") == found("xl-net") == found("b/2026-05-04_13")

    for number in range(9):
        make_run(root, f"c/{number}", f"{day}T09:00:00+00:00")
    with pytest.raises(UserError, match="several runs") as several:
        find_run("c/", "c/", root)
    assert several.value.args[0].count("c/") == 6  # What was typed, and five.
    assert "and 4 more" in several.value.args[0]
    for typed in ("2026-05-05_12", "b/2027-05-04_12", "logs/bb/2026-05-04_12"):
        with pytest.raises(UserError, match=r"does not exist.*`mjfleet runs"):
            find_run(typed, typed, root)

    if os.geteuid() == 0:  # A run of another user has to be named by its path.
        newest = found("latest")
        make_run(root, "z/theirs", f"{day}T23:00:00+00:00")
        os.chown(root / "z/theirs", 12345, -1)
        assert found("latest") == newest
        assert found("logs/z/theirs") == "z/theirs"
        for typed in ("theirs", "z/latest"):
            with pytest.raises(UserError, match=r"other users have to|no run of this user"):
                find_run(typed, typed, root)


WRITERS = """
import os, signal, sys
from pathlib import Path
from mjfleet.utils.atomic_write import write_atomically
data = Path(sys.argv[1]).read_bytes()
for line in sys.stdin:
    path, length = line.split()
    def write_and_die(file):
        os.write(file.fileno(), data[:int(length)])
        os.kill(os.getpid(), signal.SIGKILL)
    if (child := os.fork()) == 0:
        write_atomically(Path(path), write_and_die)
    print(os.WTERMSIG(os.waitpid(child, 0)[1]), flush=True)
"""
"""A small process, of which forks take less time than of this one."""


def test_a_crash_while_saving_leaves_a_good_checkpoint(tmp_path: Path) -> None:
    """Fifty processes are killed at random bytes of a file that they write."""
    run_dir = make_run(tmp_path)
    good = add_checkpoint(run_dir, 1)
    data = pack({"iter": 2, "weights": torch.randn(50_000)})
    (tmp_path / "data").write_bytes(data)
    chance = random.Random(1)
    command, pipe = [sys.executable, "-c", WRITERS, str(tmp_path / "data")], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, bufsize=1) as writers:
        assert writers.stdin
        assert writers.stdout
        for crash in range(50):
            path = run_dir / "checkpoints" / f"model_{chance.choice([1, 2])}.pt"
            length = chance.randrange(len(data) + 1)
            writers.stdin.write(f"{path} {length}\n")
            assert int(writers.stdout.readline()) == signal.SIGKILL
            found = read_run(run_dir, "").with_checkpoint()
            assert (found.checkpoint, found.notes) == (good, ()), f"{crash}: after {length} bytes"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--resume", "nowhere"), "does not exist"),
        (("--resume", ""), "--resume is ''; it must be the name of"),
        (("--init-from", ""), "--init-from is ''; it must be the name of"),
        (("--config", ""), "--config is ''; it must be the name of"),
        (("--resume", "garbled"), "garbled/run.json: "),
        (("--resume", "bare"), "bare/config.yaml: No such file"),
        (
            ("--resume", "failed", "--torchrunx-log-dir", "failed/run.json", "--cpu-workers", "2"),
            "torchrunx log directory failed/run.json",
        ),
        (("--resume", "latest"), "no run of the task cartpole-balance of this user in logs"),
        (("--resume", "."), "is no run directory"),
        (("--resume", "run", "--config", "run/config.yaml"), "--config and --resume"),
        (("--resume", "other"), "is a run of the task cartpole-swingup"),
        (("--resume", "run/checkpoints/model_4.pt"), "is damaged or no checkpoint"),
        (("--resume", "broken"), "all of its 1 checkpoints are damaged"),
        (("--resume", "locked"), "is being trained by process 7 on somewhere"),
        (("--fork",), "add --resume RUN"),
        (("--resume", "run", "--run-dir", "new"), "leave out --run-dir, or add --fork"),
        (("--run-dir", "other"), "is a run of the task cartpole-swingup"),
        (("--run-dir", "failed", "--seed", "6"), "--agent.seed is 6, was 5. Leave these out"),
        (("--max-restarts", "-1"), "--max-restarts is -1; it must be between 0 and"),
        (
            ("--eval-interval", "9", "--eval-envs", "1", "--cpu-workers", "2"),
            "--eval-envs is 1; it must be at least 2, the number of workers",
        ),
    ],
)
def test_what_cannot_continue_is_refused_and_left_as_it_was(
    flags: tuple[str, ...],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("run", "other", "broken", "locked", "garbled", "bare", "failed"):
        run_dir = make_run(tmp_path, name)
        add_checkpoint(run_dir, 4)
    (tmp_path / "run/checkpoints/model_4.pt").write_bytes(b"PK")
    (tmp_path / "garbled/run.json").write_text("{")
    (tmp_path / "bare/config.yaml").unlink()
    (tmp_path / "failed/failures").mkdir()
    (tmp_path / "failed/failures/rank0.json").write_text("{}")
    (tmp_path / "broken/checkpoints/model_4.pt").write_bytes(b"")
    (tmp_path / "other/run.json").write_text('{"task": "cartpole-swingup"}')
    record = {"task": TASK, "pid": 7, "host": "somewhere"}
    (tmp_path / "locked/run.json").write_text(json.dumps(record))
    lock = lock_run(tmp_path / "locked")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    code = run_command(train, [TASK, *flags])
    lock.close()
    assert code == 2
    assert message in capsys.readouterr().err
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def write_attempts(
    run_dir: Path, *attempts: tuple[tuple[str, int], str | None, bool], asked: bool = False
) -> None:
    listed = [
        {"kind": kind, "iteration": iteration, "checkpoint": checkpoint, "is_restart": is_restart}
        for (kind, iteration), checkpoint, is_restart in attempts
    ]
    listed[-1]["is_asked_to_stop"] = asked
    (run_dir / "run.json").write_text(json.dumps({"attempts": listed}))


def test_restarts_are_counted_and_given_up(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path)
    fault, other, killed = ("ValueError", 3), ("Hang", 9), ("Killed", 0)
    write_attempts(run_dir, (fault, None, False))
    assert "gone" in str(why_not(tmp_path / "gone", 1))
    assert why_not(run_dir, 1) is None
    write_attempts(run_dir, (fault, None, False), asked=True)
    assert "asked to stop" in str(why_not(run_dir, 1))
    write_attempts(run_dir, (fault, None, False), (other, None, True))
    assert why_not(run_dir, 2) is None
    assert "1 times" in str(why_not(run_dir, 1))
    write_attempts(run_dir, (fault, None, False), (fault, None, True))
    assert "the same fault" in str(why_not(run_dir, 9))
    # Somebody started it again, and may have changed something.
    write_attempts(run_dir, (fault, None, False), (fault, None, False))
    assert why_not(run_dir, 9) is None
    write_attempts(run_dir, (killed, None, False), (killed, None, True))
    assert why_not(run_dir, 9) is None


def test_pauses_grow_until_there_is_progress(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path)
    fault = ("ValueError", 1)
    attempts = [(fault, None, False), *[(fault, None, True)] * 9]
    pauses = []
    for count in range(1, 10):
        write_attempts(run_dir, *attempts[:count])
        pauses.append(pause_seconds(run_dir))
    assert pauses == sorted(pauses)
    assert pauses[0] < pauses[3] < pauses[-1]
    add_checkpoint(run_dir, 1)
    assert pause_seconds(run_dir) == pauses[0]


def test_a_run_continues_in_its_own_directory(run: Run, tmp_path: Path) -> None:
    """From an older checkpoint; and to its end, at which nothing is left."""
    flags = (*SIX, "--agent.save-interval", "2")
    assert run("train", TASK, *flags).returncode == 0
    run_dir = only_run(tmp_path)
    whole = rows(run_dir)
    final = torch.load(run_dir / "checkpoints" / "model_6.pt", weights_only=True)

    older = f"{run_dir.relative_to(tmp_path)}/checkpoints/model_2.pt"
    result = run("train", TASK, "--resume", older, "--video-interval", "6")
    assert result.returncode == 0, result.stderr
    assert "2 of 6 iterations are done, 4 to go" in result.stdout
    (replaced,) = (run_dir / "checkpoints").glob("replaced_*")
    assert {path.name for path in replaced.iterdir()} == {"model_4.pt", "model_6.pt", "metrics.csv"}
    again = rows(run_dir)
    same = ("iteration", "total_steps", "mean_return", "loss/value", "learning_rate")
    assert [[row[n] for n in same] for row in again] == [[row[n] for n in same] for row in whole]
    resumed = torch.load(run_dir / "checkpoints" / "model_6.pt", weights_only=True)
    weights = final["actor_state_dict"]
    assert all(torch.equal(weights[k], v) for k, v in resumed["actor_state_dict"].items())

    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run_dir)).Reload()
    assert [event.step for event in events.Scalars("loss/value")] == [1, 2, 3, 4, 5, 6]

    result = run("train", "--resume", str(run_dir))
    assert result.returncode == 0
    assert "nothing is left to do" in result.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["logs"]

    # The steps that a file has learned from are known wherever it is.
    file = shutil.copy(run_dir / "checkpoints" / "model_6.pt", tmp_path / "policy.pt")
    longer = ("--resume", str(file), "--total-steps", str(6 * 128 + 1), "--dry-run")
    result = run("train", TASK, *changed(SMALL, "--env.num-envs", "32"), *longer)
    assert "7 iterations, of 256 steps each" in result.stdout, result.stderr


def test_a_run_names_its_task_however_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run_dir = make_run(Path("logs/of-another-experiment"))
    checkpoint = add_checkpoint(run_dir, 3)
    for wanted in ("latest", run_dir.name[:8], str(run_dir), str(checkpoint)):
        typed = ["--plain", f"--resume={wanted}", "--seed", "5", "--dry-run"]
        chosen = configure(typed)
        found, config, start = chosen.found, chosen.config, chosen.start
        assert (found.name, start.run_dir) == (TASK, run_dir)
        assert (start.checkpoint, config.agent.seed) == (checkpoint, 5)
    (run_dir / "run.json").write_text("{}")
    for wanted in ("latest", str(run_dir)):
        with pytest.raises(UserError, match=r"names no task|there is no run"):
            train(["--resume", wanted])
    checkpoint.rename("alone.pt")
    with pytest.raises(UserError, match="the task comes first"):
        train(["--resume", "alone.pt"])


def test_a_checkpoint_from_elsewhere_begins_a_new_run(run: Run, tmp_path: Path) -> None:
    assert run("train", TASK, *SIX, "--log-root", "old").returncode == 0
    ((run_dir,),) = [list(e.iterdir()) for e in (tmp_path / "old").iterdir()]
    (run_dir / "checkpoints" / "model_6.pt").rename(tmp_path / "best.pt")
    flags = changed(SIX, "--cpu-workers", "2", "--agent.max-iterations", "8")
    result = run("train", TASK, "--resume", "best.pt", *flags)
    assert result.returncode == 0, result.stderr
    assert (
        "not kept: environments and random states, which begin anew (workers 1, now 2"
        in result.stdout
    )
    assert [row["iteration"] for row in rows(only_run(tmp_path))] == ["7", "8"]
