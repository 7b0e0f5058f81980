"""`mjfleet sweep`: what it refuses, and two machines that share one while processes are killed."""

import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import optuna
import psutil
import pytest
import yaml

from mjfleet.errors import UserError
from mjfleet.runs.run_json import read_record
from mjfleet.sweep.study import without_password

from ..conftest import MODULES, PATIENCE, Run, rows

TASK, ITERATIONS = "cartpole-balance", 8
FLAGS = (
    "--env.num-envs", "16", "--env.episode-seconds", "1", "--agent.num-steps-per-env", "8",
    "--agent.max-iterations", str(ITERATIONS), "--eval-envs", "4", "--gpu-ids", "None",
)  # fmt: skip
RATE = "agent.algorithm.learning-rate"
SPACE = ("--try", f"{RATE}=1e-4..1e-2:log", "agent.algorithm.gamma=0.9,0.95")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--try", "agent.algorithm.learning-rat=1..2"], RATE),
        (["--try", "agent.algorithm.gamma=1..0.5"], "empty"),
        ([], "--try"),
        (["--space", "nowhere.yaml"], "nowhere.yaml"),
        ([*SPACE, "--metric", "eval/return:most"], "--metric"),
        pytest.param(
            [*SPACE, *FLAGS, "--metric", "task/nothing:min"], "mean_return", marks=pytest.mark.slow
        ),
        ([*SPACE, "--per-run", "9999"], "--per-run"),
        ([*SPACE, "--sampler", "grid"], "grid"),
        ([*SPACE, "--storage", "sqlite:////nowhere/s.db"], "--storage"),
        ([*SPACE, "--storage", "mysql://me:pa@ss@host/sweeps"], "write %40"),
        ([*SPACE, "--hosts", "a", "b"], "--storage"),
        (["--resume", "nothing"], "nothing"),
    ],
)
def test_mistakes_get_one_message_and_nothing_is_created(
    run: Run, tmp_path: Path, words: list[str], said: str
) -> None:
    done = run("mjfleet", "sweep", *([] if "--resume" in words else [TASK]), *words)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("error: ") == 1
    assert not list(tmp_path.iterdir())


def test_a_sweep_tries_each_setting_once_and_keeps_the_best(run: Run, tmp_path: Path) -> None:
    words = (TASK, *SPACE, *FLAGS, "--trials", "2", "--per-run", "2", "--cpu-threads", "2")
    done = run("mjfleet", "sweep", *words)
    assert done.returncode == 0, done.stderr
    sweep = sweep_in(tmp_path)
    assert sweep
    trials = [read_record(sweep / f"trial_{number}") for number in range(2)]
    assert all(trial["status"] in ("finished", "stopped") for trial in trials)
    best = yaml.safe_load((sweep / "best.yaml").read_text())
    assert 1e-4 <= best["agent"]["algorithm"]["learning_rate"] <= 1e-2
    assert f"mjfleet report {sweep.relative_to(tmp_path)}" in done.stdout
    assert run("mjfleet", "report", "latest").returncode == 0
    assert RATE in (sweep / "report.html").read_text()


def start(folder: Path, *words: str) -> "subprocess.Popen[bytes]":
    """Start the command `mjfleet sweep`."""
    command = [sys.executable, "-P", "-m", MODULES["mjfleet"], "sweep", *words]
    with (folder / "output").open("ab") as output:
        return subprocess.Popen(command, cwd=folder, stdout=output, stderr=output)


def sweep_in(folder: Path) -> Path | None:
    """Return the folder of the sweep that a machine works on, once there is one."""
    found = (file.parent for file in folder.glob("logs/*/*/group.json"))
    return next((path for path in found if "sweep" in read_record(path, "group.json")), None)


def kill_until_done(folders: list[Path], words: tuple[str, ...], kills: int, seed: int) -> None:
    """Work on a sweep in folders as machines do; kill any process, and start what was killed."""
    working = {folder: start(folder, *words) for folder in folders}
    chance, killed = random.Random(seed), Counter[str]()
    while working:
        time.sleep(chance.uniform(0.5, 4) if killed.total() < kills else 0.1)
        folder = chance.choice([*working])
        process = working[folder]
        if process.poll() is None and killed.total() < kills:
            whole = psutil.Process(process.pid)
            if not (children := whole.children()) and chance.random() < 0.9:
                continue  # It is starting, or between two trials.
            who = chance.choice([whole, *children])
            killed["sweep" if who == whole else "trial"] += 1
            who.send_signal(signal.SIGKILL)
            if who == whole:
                process.wait()
                psutil.wait_procs(children, timeout=PATIENCE)
        if process.poll() == 0:
            del working[folder]
        elif process.poll() is not None:
            text = (folder / "output").read_text()
            assert process.returncode in (-signal.SIGKILL, 1), text
            sweep = sweep_in(folder)
            resumed = ("--resume", str(sweep), "--cpu-threads", "1")
            working[folder] = start(folder, *(resumed if sweep else words))
    print(f"killed {dict(killed)}")


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_two_machines_share_a_sweep_whose_processes_are_killed(
    run: Run, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    """No trial is lost, none counts twice. `--kills 30` kills more often.

    Two processes with folders of their own stand for the machines.
    """
    kills, seed = (int(str(pytestconfig.getoption(name))) for name in ("--kills", "--seed"))
    trials = max(3, kills // 2)
    url = f"sqlite:///{tmp_path}/study.db?timeout=60"
    secret = f"{url}&password=se/c:ret"  # SQLite ignores it.
    words = (TASK, *SPACE, *FLAGS, "--trials", str(trials), "--storage", secret)
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    kill_until_done(folders, (*words, "--per-run", "1", "--cpu-threads", "1"), kills, seed)
    study = optuna.load_study(study_name=TASK, storage=url)
    ended = [trial for trial in study.trials if "surplus" not in trial.user_attrs]
    assert len(ended) == trials
    assert {trial.state.name for trial in ended} <= {"COMPLETE", "PRUNED"}
    assert len({tuple(trial.params.items()) for trial in ended}) == trials
    sweeps = list(filter(None, map(sweep_in, folders)))
    assert not any("se/c:ret" in (path / "group.json").read_text() for path in sweeps)
    owners = {read_record(path, "group.json")["sweep"]["id"]: path for path in sweeps}
    for trial in ended:
        name = f"trial_{trial.number}"
        run_dir = owners[trial.user_attrs["folder"]] / name
        assert list(tmp_path.glob(f"*/logs/*/*/{name}")) == [run_dir]
        iterations = [int(row["iteration"]) for row in rows(run_dir)]
        assert iterations == list(range(1, len(iterations) + 1))
        is_complete = trial.state.name == "COMPLETE"
        assert is_complete == (read_record(run_dir)["status"] == "finished")
        # A trial that is killed while it is being pruned may have logged its last iteration.
        assert len(iterations) == ITERATIONS or (not is_complete and len(iterations) < ITERATIONS)
    print(Counter(trial.state.name for trial in ended))

    # The machine that ends last has seen all results.
    best = [yaml.safe_load((sweep / "best.yaml").read_text()) for sweep in sweeps]
    rates = [config["agent"]["algorithm"]["learning_rate"] for config in best]
    assert study.best_trial.params[RATE] in rates
    assert run("train", "--config", str(sweeps[0] / "best.yaml"), "--dry-run").returncode == 0
    recorded = [read_record(sweep, "group.json")["results"]["trials"] for sweep in sweeps]
    assert trials in map(len, recorded)
    done = run("mjfleet", "sweep", TASK, *SPACE[:2], *FLAGS, "--storage", url)
    assert done.returncode == 2
    assert "gamma" in done.stderr


@pytest.mark.parametrize("password", ["pw", "s:ecret", "sec/ret", "s:e/c", "a%40b", "#?&"])
def test_a_password_is_never_shown_nor_kept(password: str) -> None:
    shown = without_password(f"mysql://me:{password}@db.lab:3306/sweeps?charset=utf8&passwd=x")
    assert shown == "mysql://me:***@db.lab:3306/sweeps?charset=utf8"


@pytest.mark.parametrize(
    "storage",
    [
        "mysql://me:pass@word@db.lab/sweeps", "mysql://me:pass@wo:rd/x@db.lab/sweeps",
        "mysql://me:pass@wo/rd@db.lab/sweeps", "mysql://m/e:password@db.lab/sweeps",
        "my sql://me:password@db.lab/sweeps", "mysql://me:password@db.lab:port/sweeps",
    ],
)  # fmt: skip
def test_a_url_that_cannot_be_understood_is_refused_without_being_shown(storage: str) -> None:
    with pytest.raises(UserError, match="write %40") as error:
        without_password(storage)
    assert "pass" not in str(error.value).replace("user:password", "")


def test_what_has_no_password_stays_as_it_is() -> None:
    for storage in ("sqlite:////a:b@c/s.db", "logs/a@b.log", "postgresql://me@db.lab/sweeps?a=1"):
        assert without_password(storage) == storage
