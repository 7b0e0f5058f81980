"""Several hosts: which they are, what must hold on them, and runs on two in network namespaces."""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import pytest
import torch

from mjfleet.config import LaunchConfig
from mjfleet.errors import UserError
from mjfleet.launch.host_names import LOCALHOST, choose_hosts
from mjfleet.launch.hosts.host_environment import take_variables, travelling, without_values

from ..conftest import PATIENCE, REPOSITORY, changed, copy_task, only_run, rows
from .network import TOOLS, Network
from .workers import (
    PAIR,
    TRAIN,
    saved,
    wait_for_iteration,
    write_faulty,
    write_noisy,
)

EACH = (*PAIR[:-2], "--cpu-workers", "1", "--cpu-threads", "1")
TWO = (*EACH, "--hosts", "node1", "node2")
ENDLESS = ("--agent.max-iterations", "100000", "--agent.save-interval", "1")


def test_a_slurm_allocation_of_several_nodes_names_the_hosts() -> None:
    names = ["n1.invalid", "n2.invalid"]
    inside = {"SLURM_JOB_NODELIST": "n[1-2].invalid", "SLURM_JOB_NUM_NODES": "2"}
    assert choose_hosts(LaunchConfig(), inside) == names
    assert choose_hosts(LaunchConfig(hosts=["slurm"]), inside) == names
    odd = inside | {"SLURM_JOB_NODELIST": "login,gpu[01-02,11]-a.invalid"}
    several = ["login", "gpu01-a.invalid", "gpu02-a.invalid", "gpu11-a.invalid"]
    assert choose_hosts(LaunchConfig(), odd) == several
    assert choose_hosts(LaunchConfig(hosts=["localhost"]), inside) == [LOCALHOST]
    # One of several processes of srun trains alone, or is told which of them it is.
    assert choose_hosts(LaunchConfig(), inside | {"SLURM_STEP_NUM_TASKS": "2"}) == [LOCALHOST]
    assert choose_hosts(LaunchConfig(), inside | {"SLURM_JOB_NUM_NODES": "1"}) == [LOCALHOST]
    with pytest.raises(UserError, match="no SLURM allocation"):
        choose_hosts(LaunchConfig(hosts=["slurm"]), {})
    with pytest.raises(UserError, match=r"SLURM_JOB_NODELIST=n\[1"):
        choose_hosts(LaunchConfig(), inside | {"SLURM_JOB_NODELIST": "n[1"})
    for too_many in ("n[1-9999]", "n[1-99999999]"):
        with pytest.raises(UserError, match="SLURM_JOB_NODELIST=n"):
            choose_hosts(LaunchConfig(), inside | {"SLURM_JOB_NODELIST": too_many})


def test_a_step_of_srun_names_its_own_hosts() -> None:
    job = {"SLURM_JOB_NODELIST": "n[1-3].invalid", "SLURM_JOB_NUM_NODES": "3"}
    step = {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_NUM_NODES": "1"}
    step |= {"SLURM_STEP_NODELIST": "n2.invalid"}
    assert choose_hosts(LaunchConfig(), job | step) == [LOCALHOST]
    assert choose_hosts(LaunchConfig(hosts=["slurm"]), job | step) == ["n2.invalid"]
    wide = job | step | {"SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NODELIST": "n[2-3].invalid"}
    assert choose_hosts(LaunchConfig(), wide) == ["n2.invalid", "n3.invalid"]
    with pytest.raises(UserError, match=r"SLURM_STEP_NODELIST=n\[2"):
        choose_hosts(LaunchConfig(), wide | {"SLURM_STEP_NODELIST": "n[2"})
    # The shell of `salloc` is a step too, on one node of the job.
    shell = job | step | {"SLURM_STEP_ID": str(0xFFFFFFFA)}
    assert choose_hosts(LaunchConfig(), shell) == [f"n{i}.invalid" for i in (1, 2, 3)]


def test_variables_travel_and_their_values_are_not_recorded() -> None:
    environ = {"WANDB_API_KEY": "k", "MUJOCO_GL": "egl", "HOME": "/home/me", "TOKEN": "t"}
    environ |= {"MJFLEET_PARENT": "7", "NCCL_DEBUG": "WARN"}
    names = take_variables(["TOKEN", "LEVEL=3=4"], environ)
    assert names == ["TOKEN", "LEVEL"]
    assert travelling(environ, names) == {
        "WANDB_API_KEY": "k", "MUJOCO_GL": "egl", "TOKEN": "t", "NCCL_DEBUG": "WARN",
        "LEVEL": "3=4",
    }  # fmt: skip
    with pytest.raises(UserError, match="--env-var MISSING"):
        take_variables(["MISSING"], environ)
    with pytest.raises(UserError, match=r"^--env-var A is given 2 times; give it once\.$"):
        take_variables(["A=1", "A=2"], environ)
    typed = ["go1", "--env-var", "A=1", "B", "--agent.seed=2", "--env_var=C=3=3", "--plain"]
    shown = ["go1", "--env-var", "A", "B", "--agent.seed=2", "--env_var=C", "--plain"]
    assert without_values(typed) == shown


@pytest.mark.parametrize(
    ("hosts", "words"),
    [
        (["-oProxyCommand=x"], "names of at most"),
        (["a", "a"], "names of at most"),
        (["localhost", "127.0.0.1"], "are both this host"),
        ([f"node{i}" for i in range(2000)], "at most 1024 different hosts"),
    ],
)
def test_names_that_are_no_hosts_are_refused(hosts: list[str], words: str) -> None:
    with pytest.raises(UserError, match=words):
        choose_hosts(LaunchConfig(hosts=hosts), {})


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        pytest.skip(f"needs {', '.join(missing)}: packages iproute2 and openssh-server")
    made = Network(tmp_path_factory.mktemp("network"))
    yield made
    made.close()


def train(
    network: Network, folder: Path, *flags: str, task: str = "cartpole-balance"
) -> "subprocess.Popen[str]":
    """Train from node1."""
    command = [*TRAIN, task, *flags, "--ssh-config", str(network.ssh_config)]
    return subprocess.Popen(
        network.on("node1", *command, folder=folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for(process: "subprocess.Popen[str]", text: str) -> None:
    assert process.stdout is not None
    while text not in process.stdout.readline():
        assert process.poll() is None


def wait_for_one_worker(process: "subprocess.Popen[str]", run_dir: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while rows(run_dir)[-1]["world_size"] != "1":
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.2)


@pytest.mark.slow
def test_two_hosts_are_like_one_and_one_may_fail_or_be_lost(
    network: Network, tmp_path: Path
) -> None:
    write_faulty(tmp_path, """raise RuntimeError(os.environ["GRIPPER"] + " broke")""")
    (tmp_path / "failed").touch()
    command = [*TRAIN, "faulty-balance", *PAIR, "--cpu-threads", "2", "--log-root", "one"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    (tmp_path / "failed").unlink()
    one = saved(next((tmp_path / "one").glob("*/*")), 4)

    # An exception on the other host; then it starts again from the checkpoint before, once that
    # host, which takes its time, is back.
    flags = (*changed(TWO, *ENDLESS), "--max-restarts", "9", "--min-hosts", "2")
    flags = (*flags, "--env-var", "GRIPPER=the left one")
    with train(network, tmp_path, *flags, task="faulty-balance") as process:
        wait_for(process, "starting again in ")
        with network.cuttable("node2") as cut:
            cut()
            wait_for(process, "to come back")
        wait_for_iteration(process, 4)
        time.sleep(1.0)  # Until the launcher knows as well that training has begun.
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
    assert process.returncode == 130
    assert errors.startswith("rank 1 on node2 (cpu), iteration 2, collect")
    assert "RuntimeError: the left one broke" in errors
    run_dir = only_run(tmp_path, "faulty-balance")
    assert attempts(run_dir) == [("RuntimeError", "failed"), (None, "stopped")]
    assert all(torch.equal(value, one[name]) for name, value in saved(run_dir, 4).items())
    assert {row["world_size"] for row in rows(run_dir)} == {"2"}
    names = {"node1.log", "node1[0].log", "node2.log", "node2[0].log"}
    for logs in (run_dir / "torchrunx").iterdir():
        # The end of what the agent there logged may have been in the cable.
        assert {path.name for path in logs.iterdir()} | {"node2.log"} == names
        assert "rank 1: building" in (logs / "node2[0].log").read_text()
    failure = json.loads((run_dir / "failures/attempt_1/rank1.json").read_text())
    assert (failure["host"], failure["kind"]) == ("node2", "RuntimeError")
    for record in ("run.json", "config.yaml"):
        text = (run_dir / record).read_text()
        assert "GRIPPER" in text
        assert "the left one" not in text.replace("the left one broke", "")

    # It goes on, until the cable is cut; then without the other host.
    resumed = ("--resume", "latest", "--min-hosts", "1", "--env-var", "GRIPPER=")
    with (
        network.cuttable("node2") as cut,
        train(network, tmp_path, *resumed, task="faulty-balance") as process,
    ):
        wait_for_iteration(process, len(rows(run_dir)) + 1)
        cut()
        wait_for(process, "starting again in ")
        wait_for_one_worker(process, run_dir)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate()
    assert process.returncode == 143
    assert "on node2: this host is lost" in errors
    assert attempts(run_dir)[2:] == [("Lost", "failed"), (None, "stopped")]
    iterations = [int(row["iteration"]) for row in rows(run_dir)]
    assert iterations == list(range(1, len(iterations) + 1))
    # What was there notices as well that it is alone, and leaves nothing.
    deadline = time.monotonic() + PATIENCE
    while list(Path(tempfile.gettempdir()).glob("mjfleet-*-node2-*")):
        assert time.monotonic() < deadline
        time.sleep(0.2)


KEPT = """
import torch
from rsl_rl.algorithms import PPO


class Kept(PPO):
    \"\"\"Remembers its rewards, which differ between ranks.\"\"\"

    def __init__(self, *args, **settings):
        super().__init__(*args, **settings)
        self.kept = torch.zeros(3)

    def update(self):
        self.kept += self.storage.rewards.mean()
        return super().update()
"""


@pytest.mark.slow
def test_what_a_learner_remembers_on_another_host_comes_and_goes_with_the_checkpoint(
    network: Network, tmp_path: Path
) -> None:
    folder = copy_task(tmp_path / "tasks", "pole")
    (folder / "kept.py").write_text(KEPT)
    kept = []
    whole = (("--run-dir", "whole"), 4)
    parts = (("--run-dir", "part"), 2), (("--resume", "part"), 4)
    own = ("--agent.algorithm.name", "kept:Kept")
    for runs in ((whole,), parts):
        for (flag, where), iterations in runs:
            flags = (flag, where, "--agent.max-iterations", str(iterations))
            if flag == "--run-dir":
                flags = (flag, where, *own, *changed(TWO, *flags[2:]))
            with train(network, tmp_path, *flags, task="pole-balance") as process:
                _, errors = process.communicate()
            assert process.returncode == 0, errors
        run_dir = tmp_path / runs[0][0][1]
        files = [run_dir / "checkpoints" / f"rank{rank}_4.pt" for rank in (0, 1)]
        kept.append([torch.load(file, weights_only=True)["kept"][1].tolist() for file in files])
    assert kept[0] == kept[1]
    assert kept[0][0] != kept[0][1]


@pytest.mark.slow
def test_workers_follow_clips_that_only_the_first_host_has(
    network: Network, tmp_path: Path
) -> None:
    moves, empty = tmp_path / "moves", tmp_path / "empty"
    for folder in (moves, empty):
        folder.mkdir()
    shutil.copy(REPOSITORY / "tasks/g1/clips/walk.npz", moves)
    flags = changed(TWO, "--env.num-envs", "4", "--agent.max-iterations", "2")
    with network.mounted("node2", {moves: empty}):
        clips = ("--env.clips", str(moves))
        with train(network, tmp_path, *flags, *clips, task="g1-tracking") as process:
            _, errors = process.communicate()
        assert process.returncode == 0, errors
        (moves / "walk.npz").unlink()  # The run has a copy.
        more = ("--resume", "latest", "--agent.max-iterations", "4")
        with train(network, tmp_path, *more, task="g1-tracking") as process:
            _, errors = process.communicate()
        assert process.returncode == 0, errors
    run_dir = only_run(tmp_path, "g1-tracking")
    assert [row["world_size"] for row in rows(run_dir)] == ["2"] * 4


def attempts(run_dir: Path) -> list[tuple[str | None, str]]:
    listed = json.loads((run_dir / "run.json").read_text())["attempts"]
    return [(attempt.get("kind"), attempt["status"]) for attempt in listed]


def test_all_that_is_missing_on_any_host_is_told_and_nothing_started(
    network: Network, tmp_path: Path
) -> None:
    def refused(*flags: str, hosts: str = "node1 node2") -> str:
        where = ("--cpu-workers", "1", "--hosts", *hosts.split())
        with train(network, here, *where, *flags, task="noisy") as process:
            _, errors = process.communicate()
        assert process.returncode == 2
        assert not (here / "logs").exists()
        return errors

    here = tmp_path / "clone/here"
    write_noisy(here)
    (version,) = Path(str(distribution("tensordict").locate_file("."))).glob(
        "tensordict-*/METADATA"
    )
    other_version = tmp_path / "METADATA"
    other_version.write_text(version.read_text().replace("\nVersion: ", "\nVersion: 1"))
    # Another task and another version of a library there; and a host that nobody knows.
    other = tmp_path / "other"
    write_noisy(other, step="pass; pass")
    with network.mounted("node2", {here / "tasks": other / "tasks", version: other_version}):
        errors = refused(hosts="node1 node2 node3.invalid 10.77.0.2")
    assert "node2: its task folder" in errors
    assert "differs from this host's in env.py" in errors
    assert "node2: it has tensordict 1" in errors
    assert "node3.invalid: Could not resolve hostname" in errors
    assert "10.77.0.2: it is the same host as node2" in errors
    # An address that it cannot reach, one that is everybody's own, and GPUs that are not there.
    network.run("node1", "ip", "address", "add", "10.78.0.1/32", "dev", "eth0")
    errors = refused("--launcher-address", "10.78.0.1")
    assert "node2: it cannot reach node1 at 10.78.0.1" in errors
    errors = refused("--launcher-address", "node1")
    assert "node1 is 127.0.1.1" in errors
    assert "this host is seen as 10.77.0.1 by node2" in errors
    # No such folder there, and a log root that only one has.
    empty = tmp_path / "empty"
    empty.mkdir()
    with network.mounted("node2", {here.parent: empty}):
        assert "node2: it has no folder" in refused()
    with network.mounted("node2", {here / "tasks": empty}):
        errors = refused("--log-root", "tasks/logs", hosts="node2 node1")
    assert "node2: it does not share the folder tasks/logs" in errors
    assert "node2: it has no task folder" in errors
    # A key that is not the host's.
    known = network.known_hosts.read_text()
    network.known_hosts.write_text("")
    errors = refused()
    network.known_hosts.write_text(known)
    assert "Host key verification failed" in errors
