"""`mjfleet sweep`: what it refuses, and two machines that share one while processes are killed."""

import random
import re
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
from mjfleet.sweep.command import sweep
from mjfleet.sweep.study import _open_storage, place_in

from ..conftest import MODULES, PATIENCE, Output, Refusal, Run, changed, only_run, rows

TASK, ITERATIONS = "cartpole-balance", 8
FLAGS = (
    "--env.num-envs", "16", "--env.episode-seconds", "1", "--agent.num-steps-per-env", "8",
    "--agent.max-iterations", str(ITERATIONS), "--eval-envs", "4", "--gpu-ids", "None",
)  # fmt: skip
RATE = "agent.algorithm.learning_rate"
SPACE = ("--try", f"{RATE}=1e-4..1e-2:log", "agent.algorithm.gamma=0.9,0.95")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--try", "agent.algorithm.learning-rat=1..2"], "learning_rate"),
        ([], "--try"),
        ([*SPACE, "--metric", "eval/return:most"], "--metric"),
        ([*SPACE, "--per-run", "9999"], "--per-run"),
        ([*SPACE, "--sampler", "grid"], "grid"),
        (["--try", SPACE[2], "--sampler", "cmaes"], "--try must have a range"),
        ([*SPACE, "--storage", ""], "--storage is ''"),
        ([*SPACE, "--storage", "sqlite:////nowhere/s.db"], "--storage"),
        ([*SPACE, "--hosts", "a", "b"], "--storage"),
        (["--resume", "nothing"], "nothing"),
        (["--try", f"{RATE}=1,2", f"{RATE}=3"], f"{RATE} is there twice"),
    ],
)
def test_mistakes_get_one_message_and_nothing_is_created(
    refusal: Refusal, flags: list[str], message: str
) -> None:
    assert message in refusal("sweep", *([] if "--resume" in flags else [TASK]), *flags)


@pytest.mark.parametrize(
    ("storage", "message"),
    [
        ("nowhere/trials.db", "/nowhere is not there"),
        ("sqlite:///nowhere/trials.db?timeout=60", "/nowhere is not there"),
        ("nothing://host/trials", "nothing"),
        ("postgresql://me@host:port/trials", "port"),
        ("sqlite://", "name a file"),
        ("notes.txt", "no record of trials"),
        ("run.json", "no record of trials"),
        ("list.json", "no record of trials"),
        ("folder", "no record of trials"),
        ("/dev/null", "no record of trials"),
    ],
)
@pytest.mark.parametrize("plan", [(), ("--dry-run",)])
def test_a_storage_in_a_place_that_is_not_there_is_refused_before_planning(
    refusal: Refusal, storage: str, message: str, plan: tuple[str, ...], here: Path
) -> None:
    for name in ("notes.txt", "run.json"):
        (here / name).write_text("{}")
    (here / "list.json").write_text('["op_code"]')
    (here / "folder").mkdir()
    shown = refusal("sweep", TASK, *SPACE, "--storage", storage, *plan)
    assert "--storage " in shown
    assert message in shown


def test_a_sweeps_own_record_is_in_its_folder_whatever_that_is_called(tmp_path: Path) -> None:
    folder = tmp_path / "a {b}?c#d %41"
    folder.mkdir()
    study = optuna.create_study(storage=_open_storage(place_in(folder)))
    study.add_trial(optuna.create_trial(value=1.0))
    assert [path.relative_to(tmp_path) for path in tmp_path.rglob("*")] == [
        Path(folder.name), Path(folder.name, "study.db"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "storage",
    [
        "mysql://me:pass@wo/rd@db.lab/sweeps", "mysql://me@db.lab/sweeps?passwd=pass",
        "my sql://me:pass@db.lab/sweeps", "mysql://me:pass@db.lab:port/sweeps",
    ],
)  # fmt: skip
def test_a_url_with_a_password_is_refused_without_being_shown(
    refusal: Refusal, storage: str
) -> None:
    message = refusal("sweep", TASK, *SPACE, "--storage", storage)
    assert "leave the password out" in message
    assert storage not in message
    assert ":pass" not in message


def test_a_sweep_begins_with_the_defaults_and_keeps_the_best(output: Output, here: Path) -> None:
    flags = (*SPACE[:2], *changed(FLAGS, "--agent.max-iterations", "1", "--trials", "1"))
    flags += ("--agent.run-name", "two words")
    shown = output("mjfleet", "sweep", TASK, *flags)
    folder = only_run(here)
    path = folder.relative_to(here)
    assert f" by train --config '{path}/best.yaml'\nmjfleet report '{path}'\n" in shown
    assert read_record(folder / "trial_0")["status"] == "finished"
    best = yaml.safe_load((folder / "best.yaml").read_text())
    assert best["agent"]["algorithm"]["learning_rate"] == 1e-3
    (trial,) = read_record(folder)["results"]["trials"]
    assert (trial["number"], trial["status"], trial["params"]) == (0, "finished", {RATE: 1e-3})
    same = (TASK, *flags, "--run-dir", str(folder), "--as-trained")
    assert sweep([*same, "--dry-run"]) == 0
    with pytest.raises(UserError, match=r"lam is 0.5, was .* begin a new group"):
        sweep(["--resume", "latest", "--agent.algorithm.lam", "0.5"])
    with pytest.raises(UserError, match=r"max.iterations: .*could not be compared"):
        sweep(["--resume", "latest", "--agent.max-iterations", "9"])
    assert read_record(folder)["status"] == "finished"
    with pytest.raises(UserError, match=r"--init-from .* begins each trial"):
        sweep([TASK, *SPACE, "--resume", f"{path}/trial_0", "--fork"])
    assert only_run(here) == folder


@pytest.mark.slow
def test_a_metric_that_is_never_logged_ends_a_sweep(run: Run, tmp_path: Path) -> None:
    done = run("mjfleet", "sweep", TASK, *SPACE, *FLAGS, "--metric", "task/nothing:min")
    assert done.returncode == 2
    assert "mean_return" in done.stderr
    assert read_record(only_run(tmp_path))["status"] == "failed"


@pytest.mark.slow
def test_many_failures_in_a_row_stop_a_sweep_with_their_cause(run: Run, tmp_path: Path) -> None:
    rates = ("--try", f"{RATE}=1e30..1e32", "--agent.algorithm.schedule", "fixed")
    done = run("mjfleet", "sweep", TASK, *rates, *FLAGS)
    assert done.returncode == 1
    assert re.search("stopped after 5 failed .*: DivergedError: ", done.stdout)
    trials = read_record(only_run(tmp_path))["results"]["trials"]
    assert [trial["status"] for trial in trials] == ["failed"] * len(trials)


def start(folder: Path, *flags: str) -> "subprocess.Popen[bytes]":
    """Start the command `mjfleet sweep`."""
    command = [sys.executable, "-P", "-m", MODULES["mjfleet"], "sweep", *flags]
    with (folder / "output").open("ab") as output:
        return subprocess.Popen(command, cwd=folder, stdout=output, stderr=output)


def kill_until_done(folders: list[Path], flags: tuple[str, ...], kills: int, seed: int) -> None:
    """Work on a sweep in folders as machines do; kill any process, and repeat its command."""
    working = {folder: start(folder, *flags) for folder in folders}
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
            assert process.returncode == -signal.SIGKILL, (folder / "output").read_text()
            working[folder] = start(folder, *flags)
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
    flags = (TASK, *SPACE, *FLAGS, "--trials", str(trials), "--storage", url)
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    place = ("--run-dir", f"logs/{TASK}/sweep", "--per-run", "1", "--cpu-threads", "1")
    kill_until_done(folders, (*flags, *place), kills, seed)
    study = optuna.load_study(study_name=TASK, storage=url)
    ended = [trial for trial in study.trials if "folder" in trial.user_attrs]
    assert len(ended) >= trials
    assert {trial.state.name for trial in ended} <= {"COMPLETE", "PRUNED"}
    sweeps = [folder / f"logs/{TASK}/sweep" for folder in folders]
    owners = {read_record(path)["folder_id"]: path for path in sweeps}
    for trial in ended:
        name = f"trial_{trial.number}"
        run_dir = owners[trial.user_attrs["folder"]] / name
        assert list(tmp_path.glob(f"*/logs/*/*/{name}")) == [run_dir]
        iterations = [int(row["iteration"]) for row in rows(run_dir)]
        assert iterations == list(range(1, len(iterations) + 1))
        if trial.state.name == "COMPLETE":
            assert (len(iterations), read_record(run_dir)["status"]) == (ITERATIONS, "finished")
    print(Counter(trial.state.name for trial in ended))

    # The machine that ends last has seen all results.
    best = [yaml.safe_load((sweep / "best.yaml").read_text()) for sweep in sweeps]
    rates = [config["agent"]["algorithm"]["learning_rate"] for config in best]
    assert study.best_trial.params[RATE] in rates
    assert run("train", "--config", str(sweeps[0] / "best.yaml"), "--dry-run").returncode == 0
    done = run("mjfleet", "sweep", TASK, *SPACE[:2], *FLAGS, "--storage", url)
    assert done.returncode == 2
    assert "gamma" in done.stderr
