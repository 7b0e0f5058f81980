"""`mjfleet submit`: the files that it writes, and how it answers mistakes."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from packaging.version import Version

from mjfleet.cli.dispatcher import mjfleet
from mjfleet.submit.command import SAVE_SECONDS

from ..conftest import REPOSITORY, Refusal, Run, only_run
from ..runs.test_failed_resume import edit, write_task

TASK = "cartpole-balance"
SMALL = [TASK, "--gpu-ids", "None", "--env.num-envs", "8", "--agent.max-iterations", "2"]
K8S = ["k8s", "--image", "lab/mjfleet", "--volume", "runs"]
SKY = ["sky", "--image", "lab/mjfleet", "--volume", "s3://runs", "--gpu", "H100"]


pytestmark = pytest.mark.usefixtures("here")


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Any:
    def call(*words: str) -> str:
        assert mjfleet(["submit", words[0], "--print", *words[1:]]) == 0
        return capsys.readouterr().out

    return call


def check_shell(script: str) -> None:
    """Let bash and ShellCheck read a script."""
    shellcheck = Path(sys.executable).with_name("shellcheck")
    for command in (["bash", "-n"], [shellcheck, "--shell=bash", "--exclude=SC2148", "-"]):
        subprocess.run(command, input=script, text=True, check=True)


def stub(name: str, script: str) -> None:
    """Make a program in `bin`."""
    Path("bin").mkdir(exist_ok=True)
    Path("bin", name).write_text(f"#!/bin/bash\n{script}\n")
    Path("bin", name).chmod(0o755)


@pytest.mark.slow
def test_a_batch_job_begins_its_run_and_then_continues_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run the script that sbatch gets, with real training in the place of srun's tasks."""
    stub("sbatch", 'cp "$1" job.sh')
    stub("srun", 'shift 2; "$@" > output; exit "${CODE:-$?}"')
    stub("scontrol", 'echo "$@" > scontrol')
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    flags = ["--time", "24:00:00", "--sbatch", "partition=long", "account=robots"]
    assert mjfleet(["submit", "slurm", *flags, "--", "train", *SMALL, "--agent.seed", "3"]) == 0
    script = Path("job.sh").read_text()
    check_shell(script)
    options = dict(re.findall(r"^#SBATCH --([a-z-]+)=?(.*)$", script, flags=re.MULTILINE))
    assert options | {"time": "24:00:00", "partition": "long", "account": "robots"} == options
    assert (options["nodes"], options["ntasks-per-node"]) == ("1", "1")
    assert {"requeue", "signal"} <= {*options}
    assert "gpus-per-node" not in options
    codes = []
    for code in ("", "143"):
        environ = {**os.environ, "SLURM_JOB_ID": "7", "CODE": code}
        done = subprocess.run(["bash", "job.sh"], check=False, env=environ)
        codes.append(done.returncode)
        assert Path("scontrol").exists() == bool(code)
    assert codes == [0, 143]
    assert Path("scontrol").read_text().split() == ["requeue", "7"]
    assert "nothing is left to do" in Path("output").read_text()
    assert [path.name for path in Path("logs", TASK).iterdir()] == ["job7"]


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run a script of sbatch, and return what srun was to start; it ends with 143, or CODE."""

    def call(script: str, **variables: str) -> list[str]:
        monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
        stub("srun", 'echo "${@:3}" > words; exit "${CODE:-143}"')
        stub("scontrol", 'echo "$@" > requeued')
        check_shell(script)
        environ = {**os.environ, "SLURM_JOB_ID": "9", **variables}
        done = subprocess.run(["bash"], input=script, check=False, text=True, env=environ)
        assert done.returncode == int(variables.get("CODE", "143"))
        return Path("words").read_text().partition("-m mjfleet ")[2].split()

    return call


def test_each_job_of_an_array_has_a_run_whose_seed_is_its_index(printed: Any, started: Any) -> None:
    script = printed("slurm", "--sbatch", "array=1-3", "--", "train", *SMALL)
    words = started(script, SLURM_ARRAY_JOB_ID="7", SLURM_ARRAY_TASK_ID="2")
    run_dir = ["--run-dir", f"logs/{TASK}/job7_2", "--as-trained"]
    assert words == ["train", *SMALL, *run_dir, "--agent.seed", "2"]
    assert Path("requeued").read_text().split() == ["requeue", "7_2"]
    # The workers of two runs share no seed.
    script = printed("slurm", "--gpus", "4", "--sbatch", "array=1-3", "--", "train", TASK)
    words = started(script, SLURM_ARRAY_JOB_ID="8", SLURM_ARRAY_TASK_ID="2")
    assert words[-2:] == ["--agent.seed", "8"]


def test_several_seeds_share_a_job(printed: Any, started: Any) -> None:
    flags = ("--gpus", "4", "--cpus", "2")
    command = ("train", TASK, "--seeds", "5", "--per-run", "2", "--run-dir", "of five")
    script = printed("slurm", *flags, "--", *command)
    assert "# runs: 5, 2 at a time, each on 2 GPUs" in script
    assert {"#SBATCH --ntasks-per-node=1", "#SBATCH --cpus-per-task=8"} <= {*script.splitlines()}
    run_dir = ["--run-dir", "of", "five", "--as-trained"]
    assert started(script) == [*command[:6], *run_dir]
    pod = yaml.safe_load(printed(*K8S, *flags, "--", *command[:-1], "/runs/five"))
    (pods,) = (replicated["template"]["spec"] for replicated in pod["spec"]["replicatedJobs"])
    (container,) = pods["template"]["spec"]["containers"]
    assert "torchrun" not in container["command"][-1]
    assert container["resources"]["requests"] == {"cpu": 8}


def test_machines_of_an_array_share_a_sweep(printed: Any, started: Any) -> None:
    sweep = ["--try", "agent.seed=1,2", "--trials", "4", "--storage", "shared.db"]
    script = printed("slurm", "--sbatch", "array=1-2", "--", "sweep", *SMALL, *sweep)
    assert "# runs: 4, " in script
    words = started(script, SLURM_ARRAY_JOB_ID="7", SLURM_ARRAY_TASK_ID="2")
    assert words == ["sweep", *SMALL, *sweep, "--run-dir", f"logs/{TASK}/job7_2", "--as-trained"]


def test_several_machines_are_planned_as_a_worker_there_plans(printed: Any) -> None:
    words = ("--nodes", "2", "--gpus", "4", "--", "train", TASK, "--total-envs", "1024")
    shown = printed("slurm", *words)
    assert "# workers: 8," in shown
    assert "# environments: 128 per worker, 1024 in total" in shown
    assert "--gpus-per-node=4" in shown
    check_shell(shown)
    assert "--gpu-ids None" in printed("slurm", "--gpus", "0", "--", "train", TASK)
    assert "--ntasks-per-node=2" in printed("slurm", "--", "train", TASK, "--cpu-workers", "2")
    again = printed("slurm", "--", "train", TASK, "--max-restarts", "3", "--run-dir", "my run")
    check_shell(again)
    assert " --run-dir 'my run' --max-restarts 0 --as-trained\n" in again


@pytest.mark.parametrize("place", [(), ("--run-dir", "my run")])
def test_a_batch_job_is_queued_again_after_failures_that_alone_count(
    printed: Any, started: Any, place: tuple[str, ...]
) -> None:
    script = printed("slurm", "--", "train", *SMALL, "--max-restarts", "2", *place)
    assert "srun --kill-on-bad-exit=1 " in script

    def is_queued_again(code: str, job: str = "9") -> bool:
        Path("requeued").unlink(missing_ok=True)
        started(script, CODE=code, SLURM_RESTART_COUNT="7", SLURM_JOB_ID=job)
        return Path("requeued").exists()

    assert [is_queued_again(code) for code in ("143", "0", "2")] == [True, False, False]
    codes = ("1", "143", "137", "143", "1", "143")  # 143: stopped at the end of the time.
    assert [is_queued_again(code) for code in codes] == [True] * 4 + [False, True]
    assert is_queued_again("1", job="19")  # Another job, with failures of its own.
    # Where the failures cannot be counted, they are not restarted for ever.
    folder = Path(place[1] if place else f"logs/{TASK}/job19")
    (folder / "slurm_failures").unlink()
    (folder / "slurm_failures").mkdir()
    assert not is_queued_again("1", job="19")


def test_torchrun_leaves_workers_the_time_to_save(
    printed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch.distributed.launcher.api import LaunchConfig

    command = ("--nodes", "2", "--gpus", "8", "--", "train", TASK)
    (pods,) = yaml.safe_load(printed(*K8S, *command))["spec"]["replicatedJobs"]
    pod = pods["template"]["spec"]["template"]["spec"]
    (pair,) = pod["containers"][0]["env"]
    envs = yaml.safe_load(printed(*SKY, *command))["envs"]
    assert envs == {pair["name"]: pair["value"]}
    assert pair["value"] == str(pod["terminationGracePeriodSeconds"])
    if Version(torch.__version__) >= Version("2.12"):
        monkeypatch.setenv(pair["name"], pair["value"])
        launch = LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=1)
        assert launch.shutdown_timeout == SAVE_SECONDS


def test_a_jobset_has_a_pod_for_each_machine(printed: Any) -> None:
    flags = ("--nodes", "2", "--gpus", "8", "--time", "1:00:00", "--name", "go1")
    job = yaml.safe_load(printed(*K8S, *flags, "--", "train", TASK, "--max-restarts", "3"))
    assert (job["kind"], job["metadata"]) == ("JobSet", {"name": "go1"})
    assert job["spec"]["failurePolicy"]["maxRestarts"] == 3
    (pods,) = (replicated["template"]["spec"] for replicated in job["spec"]["replicatedJobs"])
    assert (pods["completions"], pods["parallelism"]) == (2, 2)
    assert pods["activeDeadlineSeconds"] == 3600
    pod = pods["template"]["spec"]
    (container,) = pod["containers"]
    assert container["resources"] == {"requests": {"cpu": 32}, "limits": {"nvidia.com/gpu": 8}}
    mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounted == {"runs": "/runs", "memory": "/dev/shm"}
    assert {volume["name"] for volume in pod["volumes"]} == {*mounted}
    script = container["command"][-1]
    check_shell(script)
    words = script.replace("\\\n", "").split()
    assert words[:6] == ["exec", "torchrun", "--nnodes", "2", "--nproc-per-node", "8"]
    assert words[6:10] == [
        "--node-rank", '"$JOB_COMPLETION_INDEX"', "--master-addr", "go1-train-0-0.go1",
    ]  # fmt: skip
    assert words[-3] == "--run-dir"
    assert words[-2].startswith(f"/runs/{TASK}/")
    assert words[-1] == "--as-trained"


def test_names_and_texts_are_what_they_were_in_a_file(printed: Any) -> None:
    text = "the first\n\n  'second'\tline: # 2"
    words = ("--", "train", TASK, "--agent.logger", "wandb", "--agent.wandb.notes", text)
    job = yaml.safe_load(printed(*K8S, "--name", "no", *words))
    task = yaml.safe_load(printed(*SKY, "--name", "null", *words))
    assert (job["metadata"]["name"], task["name"]) == ("no", "null")
    (replicated,) = job["spec"]["replicatedJobs"]
    pod = replicated["template"]["spec"]["template"]["spec"]
    for script in (pod["containers"][0]["command"][-1], task["run"]):
        assert text in shlex.split(script)


def test_a_job_of_any_task_has_a_name_that_clusters_allow(printed: Any, tmp_path: Path) -> None:
    config = write_task(tmp_path) / "config.py"
    config.write_text(config.read_text().replace("mine-balance", "2d reach"))
    command = ("train", "2d reach", "--tasks-dir", str(tmp_path / "tasks"))
    job = yaml.safe_load(printed(*K8S, "--", *command))
    assert job["metadata"]["name"] == "train-2d-reach"


def test_a_task_of_skypilot_keeps_its_runs_in_the_volume(printed: Any) -> None:
    task = yaml.safe_load(printed(*SKY, "--nodes", "2", "--gpus", "8", "--", "train", TASK))
    assert (task["num_nodes"], task["resources"]["accelerators"]) == (2, "H100:8")
    assert task["file_mounts"]["/runs"]["source"] == "s3://runs"
    check_shell(task["run"])
    assert '--node-rank "$SKYPILOT_NODE_RANK"' in task["run"]
    Path("pyproject.toml").touch()
    words = ("sky", "--volume", "runs", "--spot", "--", "train", TASK, "--gpu-ids", "None")
    task = yaml.safe_load(printed(*words))
    assert (task["volumes"], task["resources"]["use_spot"]) == ({"/runs": "runs"}, True)
    check_shell(task["setup"])
    check_shell(task["run"].replace(". .venv", "# .venv"))
    assert "torchrun" not in task["run"]


@pytest.mark.parametrize("typed", [(), ("--as-trained",)], ids=["", "typed"])
def test_a_fork_is_planned_with_the_task_of_today(
    printed: Any, run: Run, tmp_path: Path, typed: tuple[str, ...]
) -> None:
    edit(task := write_task(tmp_path))
    assert run("train", "mine-balance", *SMALL[1:]).returncode == 0
    run_dir = str(only_run(tmp_path, "mine-balance"))
    edit_config = (task / "config.py").read_text()
    (task / "config.py").write_text(f"{edit_config}\nprint('the task of today')\n")
    fork = ("train", "mine-balance", "--resume", run_dir, "--fork", *typed)
    script = printed("slurm", "--", *fork, "--agent.max-iterations", "4")
    assert "the task of today" in script
    assert "as it was when" not in script


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["pbs", "--", "train", TASK], "slurm, sky, k8s"),
        (["slurm", "--sbatch", "array=1-3", "--", "train", TASK, "--seed", "3"], "--agent.seed"),
        (["slurm", "--sbatch", "a b", "--", "train", TASK], "without dashes"),
        (["slurm", "--", "play", TASK], "train <task>"),
        (["slurm", "--time", "0:01:00", "--", "train", TASK], "more than 0:04:00"),
        (["slurm", "--", "train", TASK, "--hosts", "a", "b"], "--hosts"),
        (["slurm", "--", "train", TASK, "--resume", "latest"], "--run-dir"),
        (["slurm", "--nodes", "2", "--", "train", TASK, "--seeds", "3"], "--nodes"),
        (["slurm", "--", "train", *SMALL], "--print"),
        ([*K8S, "--", "train", TASK, "--run-dir", "logs/x"], "/runs"),
        (["sky", "--volume", "runs", "--", "train", TASK], "H100"),
        (["sky", "--volume", "runs", "--gpus", "0", "--", "train", TASK], "--image"),
        (["slurm", "--", "train", TASK, "--per-run", "2"], "add --seeds"),
        (["slurm", "--gpus", "1", "--", "train", TASK, "--cpu-workers", "4"], "on the CPU"),
        (["slurm", "--gpus", "2", "--", "train", TASK, "--gpu-ids", "0"], "--gpu-ids in the"),
        (["slurm", "--gpus", "0", "--", "train", TASK, "--gpu-ids", "0"], "--gpu-ids in the"),
        (["slurm", "--", "sweep", TASK, "--resume", "a", "--fork"], "--resume: leave it out"),
    ],
)
def test_a_mistake_is_answered_before_anything_is_submitted(
    words: list[str], answer: str, refusal: Refusal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    assert answer in refusal("submit", *words)


def test_the_image_is_made_by_the_commands_that_are_tested() -> None:
    """Each command of the Dockerfile is one of .ci's, which have other folders."""
    lint = Path(sys.executable).with_name("hadolint")
    subprocess.run([lint, REPOSITORY / "Dockerfile"], check=True)
    scripts = "".join((REPOSITORY / f".ci/{name}").read_text() for name in ("prepare", "run"))
    tested = re.sub(r'"?\$scratch"?|"', "", scripts)
    text = (REPOSITORY / "Dockerfile").read_text().replace("\\\n", " ")
    commands = [
        command.strip()
        for line in re.findall(r"^RUN (.*)$", text, flags=re.MULTILINE)
        for command in line.split("&&")
    ]
    install = "apt-get install -y --no-install-recommends "
    (packages,) = (c.removeprefix(install) for c in commands if c.startswith(install))
    (known,) = re.findall(r"packages=\((.*)\)", tested)
    assert {*packages.split()} <= {*known.split()}
    others = [c for c in commands if not c.startswith((install, "rm -rf "))]
    assert len(others) == 6
    for command in others:
        assert command in tested


def test_the_image_has_what_the_wheel_is_built_from(tmp_path: Path) -> None:
    ignored = (REPOSITORY / ".dockerignore").read_text().splitlines()
    kept = {line.removeprefix("!") for line in ignored if line.startswith("!")}
    project = (REPOSITORY / "pyproject.toml").read_text()
    assert {"pyproject.toml", "requirements.lock", "src", "tasks"} <= kept
    assert all(name in project for name in kept - {"pyproject.toml", "requirements.lock"})
    assert all((REPOSITORY / name).exists() for name in kept)
