"""`train --seeds`: one run for each seed, stopped and resumed as one."""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Sequence
from operator import gt
from pathlib import Path
from statistics import fmean

import psutil
import pytest

from mjfleet.cli.completion import candidates
from mjfleet.cli.train import train
from mjfleet.errors import UserError
from mjfleet.runs.find_run import find_run
from mjfleet.runs.metrics_csv import completed_iterations
from mjfleet.runs.run_json import read_record, write_json
from mjfleet.utils.wait_until import wait_until
from mjfleet.worker.stop_signals import SAME_SIGNAL_SECONDS

from ..conftest import PATIENCE, Output, Refusal, Run, Start, only_run, rows, run_here
from ..launch.workers import TRAIN, write_noisy

TASK = "cartpole-balance"
SMALL = ("--env.num-envs", "16", "--env.episode-seconds", "0.2", "--agent.num-steps-per-env", "8")
LONG = "1000000"


class Group:
    """`train` of two seeds, whose runs have been started."""

    def __init__(self, root: Path, *flags: str) -> None:
        self._root, self._before = root, _done(root)
        command = ["env", "--default-signal=INT", *TRAIN, TASK, *flags]
        self.process = subprocess.Popen(
            command, cwd=root, stdout=subprocess.DEVNULL, start_new_session=True
        )
        launcher = psutil.Process(self.process.pid)
        assert wait_until(lambda: len(launcher.children()) == 2, PATIENCE)
        self.members = launcher.children()

    def wait_until_both_learn(self) -> None:
        assert wait_until(lambda: all(map(gt, _done(self._root), self._before)), PATIENCE)

    def send(self, number: int) -> int:
        """Send a signal; return the exit code, when no process is left."""
        self.process.send_signal(number)
        code = self.process.wait(PATIENCE)
        assert not psutil.wait_procs(self.members, PATIENCE)[1]
        return code


def _done(root: Path) -> list[int]:
    runs = [root.joinpath("logs", TASK) / f"0/seed_{seed}" for seed in (3, 5)]
    return [completed_iterations(run) for run in runs]


def _statuses(group: Path) -> Sequence[str]:
    runs = (read_record(group / f"seed_{seed}") for seed in (3, 5))
    return read_record(group)["status"], *(run["status"] for run in runs)


def test_seeds_are_runs_of_one_group_that_continue_as_one(
    output: Output, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--gpu-ids", "None", "--cpu-threads", "2", *SMALL, "--run-dir", f"logs/{TASK}/0")
    flags = (*flags, "--seeds", "3", "5")
    output("train", TASK, *flags, "--agent.max-iterations", "2")
    group = only_run(here)
    assert _statuses(group) == ("finished", "finished", "finished")
    assert _done(here) == [2, 2]
    assert [read_record(group / f"seed_{seed}")["seed"] for seed in (3, 5)] == [3, 5]
    assert train([TASK, *flags, "--agent.max-iterations", "4", "--dry-run"]) == 0
    assert capsys.readouterr().out.count("continues\n") == 2
    with pytest.raises(UserError, match=r"gamma is 0.5, was 0.95.* --fork one of its runs"):
        train(["--resume", str(group), "--agent.algorithm.gamma", "0.5", "--dry-run"])
    with pytest.raises(UserError, match=r"--fork: .* is a seed group"):
        train(["--resume", str(group), "--fork", "--run-dir", "b", "--agent.max-iterations", "4"])
    listed = json.loads(output("mjfleet", "runs", "--json"))
    assert [(one["run"], one["status"], one["members"]) for one in listed] == [
        (f"{TASK}/0", "finished", 2),
        (f"{TASK}/0/seed_3", "finished", None),
        (f"{TASK}/0/seed_5", "finished", None),
    ]
    mean = fmean(one["last_mean_return"] for one in listed[1:])
    assert listed[0]["last_mean_return"] == pytest.approx(mean)


@pytest.mark.usefixtures("here")
def test_a_group_and_its_runs_are_found_by_their_names() -> None:
    group, logs = Path(f"logs/{TASK}/0"), Path("logs")
    for folder, file in ((group, "group.json"), (group / "seed_3", "run.json")):
        folder.mkdir(parents=True)
        write_json(folder / file, {"task": TASK})
    for word in ("seed_3", "0/seed_3", f"{TASK}/0/seed_3", f"{group}/seed_3"):
        assert find_run(word, word, logs) == group / "seed_3"
    for word in ("0", f"{TASK}/0", str(group), "latest"):
        assert find_run(word, word, logs, may_be_group=True) == group
    with pytest.raises(UserError, match="seed_3"):
        find_run(str(group), str(group), logs)
    assert {f"{TASK}/0", f"{TASK}/0/seed_3"} <= set(candidates(["mjfleet", "plot", TASK]))


@pytest.mark.parametrize("is_repeated", [False, True])
def test_a_signal_to_every_process_of_a_group_is_one_signal(
    start: Start, tmp_path: Path, is_repeated: bool
) -> None:
    """The group's launcher passes it on late, as on a slow machine; a second one ends a run."""
    write_noisy(tmp_path, step="while not os.path.exists('go'): __import__('time').sleep(0.01)")
    log = tmp_path / "group/seed_1.log"
    flags = ("--gpu-ids", "None", "--seeds", "1", "--run-dir", "group")
    (tmp_path / "output").touch()
    process = start("train", "noisy", *flags, terminal=str(tmp_path / "output"))

    def wait_for(text: str, file: Path) -> None:
        assert wait_until(lambda: file.exists() and text in file.read_text(), PATIENCE)

    wait_for("iteration=1/", log)
    (member,) = psutil.Process(process.pid).children()
    for one, shown in ((member, log), (process, tmp_path / "output")):
        one.send_signal(signal.SIGTERM)
        wait_for("SIGTERM: stopping after this iteration", shown)
        time.sleep(5 * SAME_SIGNAL_SECONDS)  # The launcher passes it on within this time.
    if is_repeated:
        process.send_signal(signal.SIGTERM)
        wait_for("SIGTERM: stopping at once", log)
    (tmp_path / "go").touch()
    assert process.wait(PATIENCE) == 128 + signal.SIGTERM
    assert ("at once\n" in log.read_text().replace("more stops at once", "")) == is_repeated
    assert any(tmp_path.glob("group/seed_1/checkpoints/*.pt")) != is_repeated
    assert read_record(tmp_path / "group/seed_1")["status"] == "stopped"


@pytest.mark.slow
def test_seeds_are_stopped_and_resumed_as_one(run: Run, output: Output, tmp_path: Path) -> None:
    folder = f"logs/{TASK}/0"
    group = tmp_path / folder
    new = ("--gpu-ids", "None", "--cpu-threads", "2", *SMALL, "--seeds", "3", "5", "--run-dir",
           folder, "--agent.max-iterations", LONG)  # fmt: skip
    started = Group(tmp_path, *new)
    assert run("train", TASK, "--resume", folder).returncode == 2  # It is being trained.
    started.wait_until_both_learn()
    assert started.send(signal.SIGINT) == 128 + signal.SIGINT
    assert _statuses(group) == ("stopped", "stopped", "stopped")

    # A group continues after its launcher was killed, and after one of its runs was.
    assert Group(tmp_path, "--resume", folder).send(signal.SIGKILL) == -signal.SIGKILL
    length = max(_done(tmp_path)) + 20
    started = Group(tmp_path, "--resume", "0", "--agent.max-iterations", str(length))
    (victim,) = (one for one in started.members if f"{folder}/seed_3" in " ".join(one.cmdline()))
    victim.kill()
    assert started.process.wait(PATIENCE) == 1
    assert read_record(group)["status"] == "failed"
    output("train", TASK, "--resume", "latest")
    assert _statuses(group) == ("finished", "finished", "finished")
    for seed in (3, 5):
        member = group / f"seed_{seed}"
        assert [int(row["iteration"]) for row in rows(member)] == [*range(1, length + 1)]
        assert read_record(member)["seed"] == seed
    assert (group / "plots/curves.png").stat().st_size > 0

    # What a group cannot do leaves it as it is.
    before = sorted(group.rglob("*"))
    for flags in (
        ("--resume", f"{folder}/seed_3", "--seeds", "2"),
        ("--resume", folder, "--seeds", "3"),
        ("--resume", folder, "--agent.algorithm.gamma", "0.5"),
        ("--seeds", "3", "4", "--run-dir", folder),
    ):
        assert run("train", TASK, *flags).returncode == 2
    assert (only_run(tmp_path), sorted(group.rglob("*"))) == (group, before)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--seeds",), "--seeds"),
        (("--seeds", "1", "2", "1"), "--seeds"),
        (("--seeds", "1", "2", "--seed", "3"), "--agent.seed"),
        (("--seeds", "2", "--hosts", "a", "b"), "--hosts"),
        (("--per-run", "1"), "--seeds"),
        (("--seeds", "2", "--agent.seed", "2147483647"), "the last one would be 2147483648"),
    ],
)
def test_a_mistake_leaves_nothing(refusal: Refusal, flags: Sequence[str], message: str) -> None:
    assert message in refusal("train", TASK, *flags)


@pytest.mark.parametrize(
    ("seeds", "trained", "warnings"),
    [
        (("3", "--agent.seed", "10"), [10, 12, 14], 0),
        (("0", "1", "2"), [0, 1, 2], 1),
    ],
)
def test_the_workers_of_two_runs_share_no_seed(
    here: Path,
    capsys: pytest.CaptureFixture[str],
    seeds: Sequence[str],
    trained: list[int],
    warnings: int,
) -> None:
    workers = ("--gpu-ids", "None", "--cpu-workers", "2")
    assert train([TASK, *workers, "--seeds", *seeds, "--dry-run"]) == 0
    output = capsys.readouterr().out
    names = re.findall(r"^(seed_\d+): +begins", output, flags=re.MULTILINE)
    assert names == [f"seed_{seed}" for seed in trained]
    assert output.count("share random numbers") == warnings
    assert not os.listdir(here)


def test_a_group_that_cannot_be_planned_in_a_restart_has_failed(run: Run, tmp_path: Path) -> None:
    command = ("train", TASK, *SMALL, "--gpu-ids", "None", "--seeds", "2", "--run-dir", "g")
    command = (*command, "--agent.max-iterations", "1")
    assert run(*command).returncode == 0
    before = read_record(tmp_path / "g")
    wrong = (*command, "--per-run", "999", "--max-restarts", "1")
    assert run(*wrong).returncode == 2
    assert read_record(tmp_path / "g") == before
    again = run(*wrong, SLURM_RESTART_COUNT="1")
    assert again.returncode == 1
    assert "it was started again 1 times, all of --max-restarts" in again.stdout
    attempts = read_record(tmp_path / "g")["attempts"]
    assert [one["status"] for one in attempts] == ["finished", "failed"]
    assert attempts[1]["cause"].startswith("--per-run is 999")
    assert run(*command).returncode == 0
    assert read_record(tmp_path / "g")["status"] == "finished"


def test_a_group_whose_log_files_cannot_be_written_has_failed(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (here / "group/seed_1.log").mkdir(parents=True)
    words = ("train", TASK, "--gpu-ids", "None", "--run-dir", "group", "--seeds", "1")
    assert run_here(*words) == 2
    assert "seed_1.log: Is a directory" in capfd.readouterr().err
    assert read_record(here / "group")["status"] == "failed"


@pytest.mark.slow
def test_a_mistake_that_each_run_would_find_is_printed_once(run: Run, tmp_path: Path) -> None:
    tasks = write_noisy(tmp_path, "raise UserError('no motor')").parent
    result = run("train", "noisy", "--tasks-dir", str(tasks), "--gpu-ids", "None", "--seeds", "4")
    assert result.returncode == 2
    assert result.stderr.count("no motor") == 1
    assert not list(tmp_path.rglob("group.json"))
