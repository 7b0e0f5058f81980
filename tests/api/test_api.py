"""The Python API, from a script and from a notebook, with real trainings."""

import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import mujoco
import nbformat
import pytest
import torch
from nbclient import NotebookClient

import mjfleet
from mjfleet.api.choose_task import as_flags, choose_task, new_run_dir
from mjfleet.api.in_process import check_waiting
from mjfleet.config import AgentConfig, PPOConfig, TrainConfig
from mjfleet.config.flags import parse_flags
from mjfleet.runs.run_lock import lock_run
from mjfleet.utils.wait_until import wait_until

from ..conftest import PATIENCE, REPOSITORY, TESTS, Output, copy_task

FRAGILE = """

IS_MENDED = False


@dataclass(frozen=True, kw_only=True)
class FragileConfig(RailConfig):
    breaks_on: str = ""


def mend():
    global IS_MENDED
    IS_MENDED = True


class FragileEnv(RailEnv, mjfleet.Env[FragileConfig]):
    def rewards(self):
        self.cache("calls")
        self.calls = getattr(self, "calls", 0) + 1
        rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
        if self.calls > 20 and str(rank) == self.cfg.breaks_on and not IS_MENDED:
            raise ValueError("the rail is broken")
        return super().rewards()
"""
BEGIN = """
import os
import pickle
import signal
import sys
import tempfile
from pathlib import Path

import numpy as np

import mjfleet
from mjfleet.runs.run_json import read_record
from rail import mend, FragileConfig, FragileEnv, RailConfig, RailEnv

SHORT = {"gpu_ids": None, "cpu_threads": 1}
AGENT = {"num_steps_per_env": 8, "max_iterations": 3}


def expect(messages):
    for message, call in messages.items():
        try:
            call()
        except mjfleet.UserError as error:
            assert message in str(error), error
        else:
            raise AssertionError(message)


def fail(**changes):
    try:
        mjfleet.train(FragileEnv, agent=AGENT | {"max_iterations": 9}, **SHORT | changes)
    except mjfleet.TrainingError as error:
        assert (error.kind, error.cause) == ("ValueError", "the rail is broken"), error
        assert error.phase == "collect" and error.host and "rail.py" in error.traceback
        assert error.run.status == "failed"
        again = pickle.loads(pickle.dumps(error))
        assert str(again) == str(error) and again.run.path == error.run.path
        return error
    raise AssertionError("a worker has failed")
"""
PROGRAM = """
rates = []
for iteration in mjfleet.iterate(RailEnv, agent=AGENT | {"max_iterations": 99}, gpu_ids=None):
    rates.append(iteration.metrics["learning_rate"])
    if iteration.number == 2:
        iteration.save("policy.pt")
        break

expect({
    "there is no task": lambda: mjfleet.train("cartpol"),
    "neither a task": lambda: mjfleet.train(int),
    "resume: only": lambda: next(mjfleet.iterate(RailEnv, resume="latest")),
    "env.foo": lambda: mjfleet.train(RailEnv, env={"foo": 1}),
    "--log-root /proc/logs": lambda: mjfleet.train(RailEnv, log_root="/proc/logs"),
    "--gpu-ids 99": lambda: mjfleet.train(RailEnv, gpu_ids=[99]),
    "no effect": lambda: mjfleet.train(RailEnv, agent={"algorithm": {"group_size": 4}}),
    "device is": lambda: mjfleet.make(RailEnv, device="tpu"),
    "give one": lambda: mjfleet.train(RailEnv, total_steps=9, agent={"max_iterations": 1}),
    "seeds: it is": lambda: mjfleet.train(RailEnv, config={"seeds": [1, 2]}),
    "gpu_ids: `device`": lambda: mjfleet.make(RailEnv, gpu_ids=[0]),
})
assert not Path("logs").exists()

failed = fail(env=FragileConfig(num_envs=32, episode_seconds=0.2, breaks_on="0")).run
expect({"a object; a": lambda: failed.resume(FragileEnv, env={"breaks_on": object()})})
# What the class uses may change: it is that of this moment, here and in workers.
mend()
run = failed.resume(FragileEnv)
assert (run.status, run.iteration, run.task, run.path) == ("finished", 9, "fragile", failed.path)
assert run.config["env"]["num_envs"] == 32
assert isinstance(run.metrics()["mean_reward"], np.ndarray)
assert "mean_reward" in run._repr_html_() and "finished" in run._repr_html_()

policy = run.policy()
with mjfleet.make(FragileEnv, num_envs=np.int64(2), device="cpu", env={"breaks_on": "0"}) as env:
    for _ in range(21):
        observations, rewards, dones, extras = env.step(policy(env.get_observations()))
    assert rewards.shape == (2,)
    by_array = policy({"actor": env.get_observations()["actor"].numpy()})
    assert np.allclose(by_array, policy(env.get_observations()))
expect({"nothing.pt does not exist": lambda: run.policy("nothing.pt")})
# Nothing but the run has been left.
assert [path.name for path in Path("logs").iterdir()] == ["fragile"]
"""
CHANGES = """
run = mjfleet.train(RailEnv, agent=AGENT, env=RailConfig(num_envs=32, episode_seconds=0.2), **SHORT)
assert (run.status, run.iteration, run.task) == ("finished", 3, "rail"), run
assert run.resume(agent={"max_iterations": 4}).path == run.path and run.iteration == 4
fork = run.resume(fork=True, agent={"max_iterations": 5, "algorithm": {"gamma": 0.5}})
assert fork.path != run.path and fork.iteration == 5 and run.iteration == 4
played = run.evaluate(episodes=4, gpu_ids=None, env={"num_envs": 4})
assert played["length"]["mean"] == 4
assert run.export(format="pretrained").exists()

# Two at once; one of them is stopped, with two workers of which one fails in the other.
long = AGENT | {"max_iterations": 10**6}
endless = mjfleet.train(RailEnv, agent=long, background=True, **SHORT)
assert fail(cpu_workers=2, cpu_threads=2, env=FragileConfig(breaks_on="1")).rank == 1
while endless.iteration < 2:
    endless.wait(0.2)
assert endless.is_running and endless.status == "running"
assert endless.stop().status == "stopped" and not endless.is_running
killed = mjfleet.train(RailEnv, agent=long, background=True, **SHORT)
while killed.iteration < 2:
    killed.wait(0.2)
os.kill(read_record(killed.path)["pid"], signal.SIGKILL)
try:
    raise AssertionError(killed.wait())
except mjfleet.TrainingError as error:
    assert "137" in str(error) and killed.status == "died"

for iteration in mjfleet.iterate(RailEnv, agent=AGENT, gpu_ids=None):
    iteration.save("policy.pt")
begun = mjfleet.train(RailEnv, init_from="policy.pt", agent=AGENT | {"max_iterations": 1}, **SHORT)
assert begun.iteration == 1
student = {"algorithm": {"name": "distillation"}, "max_iterations": 1, "num_steps_per_env": 8}
assert mjfleet.train(RailEnv, teacher=str(begun.path), agent=student, **SHORT).iteration == 1
assert not [*Path(tempfile.gettempdir()).glob("*mjfleet*"), *Path("logs").glob(".*")]

Path("logs").rename("moved")
moved = mjfleet.Run("moved" / run.path.relative_to(Path("logs").absolute()))
assert moved.resume(RailEnv, agent={"max_iterations": 5}).iteration == 5
"""
TERMINATED = """
is_watched = sys.argv[1] == "watched"
run = mjfleet.train(
    RailEnv, agent=AGENT | {"max_iterations": 10**6}, background=not is_watched, quiet=True, **SHORT
)
while run.iteration < 2:
    run.wait(0.1)
os.kill(os.getpid(), signal.Signals[sys.argv[1]])
"""


@pytest.fixture
def rail(tmp_path: Path) -> Path:
    """A module with the page's task, by which users begin, and one that fails."""
    page = (REPOSITORY / "docs/api.md").read_text()
    (task,) = re.findall(r"```python\n(from dataclasses .*?)\n\n\nrun = ", page, flags=re.DOTALL)
    (tmp_path / "rail.py").write_text(task + FRAGILE)
    (tmp_path / "tmp").mkdir()
    return tmp_path


def program(folder: Path, text: str, *arguments: str) -> "subprocess.Popen[str]":
    """Start a program in a new Python in a folder, with temporary files in a folder of its own."""
    (folder / "program.py").write_text(text)
    return subprocess.Popen(
        [sys.executable, "program.py", *arguments], cwd=folder, text=True,
        env=os.environ | {"TMPDIR": str(folder / "tmp")},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def stopped(rail: Path) -> None:
    """Wait until the endless run of a program that was killed has saved and stopped."""
    (run_dir,) = rail.glob("logs/rail/*")
    run = mjfleet.Run(run_dir)
    assert wait_until(lambda: run.status == "stopped", PATIENCE), run
    assert run.checkpoints[-1].name == f"model_{run.iteration}.pt"
    left = lambda: [*rail.glob("tmp/*mjfleet*"), *rail.glob("logs/.*")]  # noqa: E731
    assert wait_until(lambda: not left(), PATIENCE)


def test_a_task_of_a_script_is_trained_resumed_and_used(rail: Path, output: Output) -> None:
    # Its commands are forks, which must not need threads of OpenMP that it has.
    threads = "import torch\ntorch.set_num_threads(1)"
    (rail / "program.py").write_text(threads + BEGIN + PROGRAM)
    output("python", "program.py", TMPDIR=str(rail / "tmp"))


@pytest.mark.slow
def test_runs_are_changed_begun_from_others_and_moved(rail: Path, output: Output) -> None:
    with program(rail, BEGIN + CHANGES) as process:
        _, errors = process.communicate()
    assert process.returncode == 0, errors
    # The program and its class are gone: the run continues with the code that it keeps.
    (rail / "rail.py").unlink()
    (kept,) = rail.glob("moved/fragile/*")
    resumed = ("train", "fragile", "--resume", str(kept), "--as-trained", "--gpu-ids", "None")
    output(*resumed, "--cpu-workers", "1", "--agent.max-iterations", "10")
    assert mjfleet.Run(kept).iteration == 10


@pytest.mark.slow
@pytest.mark.parametrize("how", ["SIGKILL", "SIGTERM", "watched"])
def test_a_run_is_saved_and_stops_when_its_program_is_killed(how: str, rail: Path) -> None:
    with program(rail, BEGIN + TERMINATED, how) as process:
        if how == "watched":
            files = lambda: [*rail.glob("logs/rail/*/metrics.csv")]  # noqa: E731
            learns = lambda: files() and mjfleet.Run(files()[0].parent).iteration > 1  # noqa: E731
            assert wait_until(learns, PATIENCE)
            process.terminate()
        process.communicate()
    stopped(rail)


@pytest.mark.slow
def test_a_program_that_is_killed_at_once_leaves_no_files(rail: Path) -> None:
    text = "mjfleet.train(RailEnv, background=True, **SHORT); os.kill(os.getpid(), 9)"
    with program(rail, BEGIN + text) as process:
        process.communicate()
    assert process.returncode == -9
    assert wait_until(lambda: not [*rail.rglob("*mjfleet-*")], PATIENCE)


def test_tasks_are_those_of_the_command(tmp_path: Path) -> None:
    assert "Keep a pole upright" in mjfleet.tasks()["cartpole-balance"]
    with pytest.raises(mjfleet.UserError, match="--tasks-dir names"):
        mjfleet.tasks(str(tmp_path / "none"))
    for use in (mjfleet.tasks, partial(mjfleet.train, "cartpole-balance")):
        with pytest.raises(mjfleet.UserError, match="`tasks_dir` is 3; it must be text"):
            use(tasks_dir=3)  # pyright: ignore[reportArgumentType]


def test_a_checkpoint_is_no_run() -> None:
    file = TESTS / "data/cartpole-balance-9159368/checkpoints/model_3.pt"
    with pytest.raises(mjfleet.UserError, match=r"model_3\.pt is a file, no run directory"):
        mjfleet.Run(file)


def test_a_configuration_of_another_task_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("task: cartpole-balance\nenv: {swing_up: false, num_envs: 3}\n")
    mapping = {"task": "cartpole-balance", "env": {"num_envs": 3}}
    for config in (file, str(file), mapping):
        with pytest.raises(mjfleet.UserError, match="is of the task cartpole-balance, not of"):
            mjfleet.make("cartpole-swingup", config=config, device="cpu")
    with mjfleet.make("cartpole-balance", config=mapping, device="cpu") as env:
        assert env.num_envs == 3
    with pytest.raises(mjfleet.UserError, match="must hold a mapping"):
        mjfleet.make("cartpole-balance", config=[mapping], device="cpu")  # pyright: ignore[reportArgumentType]


def test_what_has_another_type_or_no_effect_is_refused(here: Path) -> None:
    task: Any = "cartpole-balance"
    make: Any = partial(mjfleet.make, task, device="cpu")
    three: Any = 3
    for refused, call in {
        r"`env` is \[1\]": partial(make, env=[1], num_envs=2),
        "`env` is None": partial(make, env=None, num_envs=2),
        "name is '-x'": partial(mjfleet.make, mjfleet.Env, name="-x"),
        "name is 3": partial(mjfleet.make, mjfleet.Env, name=three),
        "`log_root` holds b'logs'": partial(mjfleet.train, task, log_root=b"logs"),
        "config: must hold a mapping": partial(make, config=False),
        "log_root: nothing is learned": partial(make, log_root="logs"),
        "device is '3'": partial(mjfleet.make, task, device=three),
        "model_file is 3; it must be text": partial(
            mjfleet.make, NumberEnv, env=GoalConfig(goal=1.0), device="cpu"
        ),
        "as_trained: it is": partial(mjfleet.train, task, as_trained=True, gpu_ids=None),
        "config: it is": partial(mjfleet.train, task, config={"config": "x"}, gpu_ids=None),
        "no run directory: it has no run.json": partial(mjfleet.Run, "."),
    }.items():
        with pytest.raises(mjfleet.UserError, match=refused):
            call()
    assert not [*here.iterdir()]


def test_a_run_and_its_policy_refuse_values_of_another_type(tmp_path: Path) -> None:
    run: Any = mjfleet.Run(
        shutil.copytree(TESTS / "data/cartpole-balance-9159368", tmp_path / "run")
    )
    three: Any = 3
    policy, before = run.policy(), sorted(tmp_path.rglob("*"))
    must = r"`agent.max_iterations` is 4.0; it must be an integer"
    for refused, call in {
        "device is 'foo'": partial(run.policy, device="foo"),
        "device is None": partial(run.policy, device=None),
        r"`actor` is \(3, 2\); it must be \(num_envs, 5\)": partial(
            policy, {"actor": torch.zeros(3, 2)}
        ),
        "name must end in": partial(run.plot, 3),
        "no run of this user in 3": partial(mjfleet.Run, "latest", log_root=three),
    }.items():
        with pytest.raises(mjfleet.UserError, match=refused):
            call()
    for fork in (False, True):
        with pytest.raises(mjfleet.UserError, match=must):
            run.resume(fork=fork, agent={"max_iterations": 4.0})
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_of_tasks_in_a_configuration_is_searched_and_has_to_be_there(here: Path) -> None:
    robots = copy_task(here / "robots", "mine").parent
    config = {"tasks_dir": "robots"}
    assert choose_task("mine-balance", None, config, {})[0].folder.parent == robots
    (here / "config.yaml").write_text("tasks_dir: gone\n")
    for config, refused in (
        ({"tasks_dir": "gone"}, "--tasks-dir names 'gone'"),
        (TrainConfig(tasks_dir="gone"), "--tasks-dir names 'gone'"),
        ("config.yaml", "its tasks_dir, gone, is no folder"),
    ):
        with pytest.raises(mjfleet.UserError, match=refused):
            choose_task("cartpole-balance", None, config, {})
        found, _ = choose_task("mine-balance", None, config, {"tasks_dir": "robots"})
        assert found.folder.parent == robots


def test_a_run_of_the_api_does_not_begin_inside_another_one(here: Path) -> None:
    for name in ("run.json", "config.yaml"):
        (here / name).touch()
    for log_root in ("logs", "."):
        for begin in (
            mjfleet.train,
            lambda *task, **changes: next(mjfleet.iterate(*task, **changes)),
        ):
            with pytest.raises(mjfleet.UserError, match=f"--log-root {log_root}: .*inside the run"):
                begin("cartpole-balance", log_root=log_root, gpu_ids=None)
    assert len([*here.iterdir()]) == 2


def test_iterate_trains_for_total_steps() -> None:
    settings = {"env": {"num_envs": 4}, "agent": {"num_steps_per_env": 8}, "gpu_ids": None}
    iterations = mjfleet.iterate("cartpole-balance", total_steps=65, **settings)
    steps, wrong_rates = list[Any](), list[Any]([-1.0, float("nan"), "1e-3", None, True])
    wrong_places = list[Any](["missing/policy.pt", ".", 3])
    for iteration in iterations:
        steps.append(iteration.metrics["total_steps"])
        for wrong in wrong_rates:
            with pytest.raises(mjfleet.UserError, match="the learning rate is"):
                iteration.set_learning_rate(wrong)
        for place in wrong_places:
            with pytest.raises(mjfleet.UserError, match=r"missing|is 3|Is a directory"):
                iteration.save(place)
    assert steps == [32, 64, 96]
    with pytest.raises(mjfleet.UserError, match="--gpu-ids 99"):
        next(mjfleet.iterate("cartpole-balance", config={"gpu_ids": [99]}))


def test_importing_is_light_and_names_are_documented() -> None:
    code = "import sys, mjfleet; assert not {'torch', 'mujoco', 'tyro', 'yaml'} & {*sys.modules}"
    subprocess.run([sys.executable, "-c", code], check=True)
    page = (REPOSITORY / "docs/api.md").read_text()
    for name in mjfleet.__all__:
        assert getattr(mjfleet, name).__doc__
        assert f"`{name}" in page or f"mjfleet.{name}" in page, name
    with pytest.raises(AttributeError, match="nothing"):
        mjfleet.nothing  # noqa: B018


@pytest.mark.slow
def test_the_notebook_runs_from_the_task_to_the_video(tmp_path: Path) -> None:
    notebook = nbformat.read(REPOSITORY / "examples/notebook.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)
    first = notebook.cells[1]
    first.source = first.source.replace("= 40, 3.0", "= 3, 0.2")
    place = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=int(PATIENCE), resources=place).execute()
    shown = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert any("finished" in output.get("data", {}).get("text/html", "") for output in shown)
    (video,) = tmp_path.glob("logs/rail/*/videos/policy.mp4")
    assert video.stat().st_size


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "last"), [("own_learner", "mean reward"), ("three_seeds", "png")]
)
def test_the_scripts_run(script: str, last: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, REPOSITORY / f"examples/{script}.py", "2"], cwd=tmp_path,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert last in done.stdout.splitlines()[-1]


def test_iterate_applies_the_settings_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.backends.cuda.matmul.allow_tf32
    settings = {"env": {"num_envs": 4}, "gpu_ids": None, "deterministic": True}
    try:
        next(mjfleet.iterate("cartpole-balance", **settings))
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.backends.cuda.matmul.allow_tf32
    finally:
        torch.use_deterministic_algorithms(False)
        torch.backends.cuda.matmul.allow_tf32 = before


def test_iterate_reads_no_checkpoint_beside_it_and_leaves_torchs_threads(
    here: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (here / "best.pt").write_bytes(b"of another run")
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        settings = {"env": {"num_envs": 4}, "agent": {"max_iterations": 1}, "gpu_ids": None}
        (iteration,) = mjfleet.iterate("cartpole-balance", **settings)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    assert iteration.runner.best.mean_return is None
    assert not caplog.records


@pytest.mark.parametrize(("first", "policy"), [("", "PASSIVE"), ("torch", "None")])
def test_threads_wait_without_spinning_unless_torch_comes_first(first: str, policy: str) -> None:
    code = f"import os, sys; sys.modules[{first!r}] = None; import mjfleet; "
    environ = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    done = subprocess.run(
        [sys.executable, "-c", f"{code} print(os.environ.get('OMP_WAIT_POLICY'))"],
        env=environ, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == f"{policy}\n"


def test_what_makes_threads_wait_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY")
    check_waiting.cache_clear()
    for _ in range(2):
        mjfleet.make("cartpole-balance", num_envs=2, device="cpu").close()
    (record,) = caplog.records
    assert "import mjfleet first, or set OMP_WAIT_POLICY=PASSIVE before" in record.message


def test_a_run_has_a_folder_of_its_own_from_the_beginning(tmp_path: Path) -> None:
    """Programs that begin in one second would otherwise train in one folder."""
    config = choose_task("cartpole-balance", None, None, {"log_root": tmp_path / "logs"})[1]
    (first, made), (second, more) = new_run_dir(config), new_run_dir(config)
    assert (first != second, made, more) == (True, 3, 1)
    assert sorted(tmp_path.glob("logs/cartpole-balance/*")) == sorted([first, second])


def test_an_environment_that_is_given_whole_is_the_tasks() -> None:
    with pytest.raises(mjfleet.UserError, match=r"must be a CartpoleConfig\(\.\.\.\) or a mapping"):
        choose_task("cartpole-balance", None, None, {"env": mjfleet.EnvConfig(num_envs=8)})


def test_a_number_in_an_agent_that_is_given_whole_may_follow_from_a_total() -> None:
    changes = {"agent": AgentConfig(seed=3), "total_steps": 9}
    assert choose_task("cartpole-balance", None, None, changes)[1].total_steps == 9


def test_sac_has_a_gpus_numbers_where_none_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mjfleet.launch.devices.count_gpus", lambda: 1)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    file, sac = {"env": {"num_envs": 8}}, {"name": "sac", "batch_size": 64}
    for device, steps, window in (("auto", 8, 3), (None, 3, 1)):
        changes = {"gpu_ids": device, "agent": {"algorithm": sac}}
        _, chosen = choose_task("cartpole-balance", None, file, changes)
        algorithm: Any = chosen.agent.algorithm
        assert (chosen.env.num_envs, chosen.agent.num_steps_per_env) == (8, steps)
        assert (algorithm.batch_size, algorithm.n_step) == (64, window)


def test_an_agent_that_is_given_whole_may_have_fields_without_effect() -> None:
    agent = AgentConfig(max_iterations=7, algorithm=PPOConfig(group_size=4))
    assert choose_task("cartpole-balance", None, None, {"agent": agent})[1].agent == replace(
        agent, experiment_name="cartpole-balance"
    )
    flags = as_flags({"agent": agent})
    assert "--agent.max-iterations=7" in flags
    assert not [flag for flag in flags if "group-size" in flag or "wandb" in flag]
    parsed = parse_flags(TrainConfig, flags, "train", TrainConfig())
    assert parsed.agent == replace(agent, algorithm=PPOConfig())


def test_a_run_is_asked_for_nothing_that_an_empty_word_could_mean(tmp_path: Path) -> None:
    run = mjfleet.Run(shutil.copytree(TESTS / "data/cartpole-balance-9159368", tmp_path / "run"))
    for use in (run.policy, partial(run.evaluate, 1), partial(run.export, None)):
        with pytest.raises(mjfleet.UserError, match=r"no run is named|is ''"):
            use("")


def test_a_fork_with_a_wrong_value_leaves_no_folder(tmp_path: Path) -> None:
    place = tmp_path / "logs/cartpole-balance/run"
    run = mjfleet.Run(shutil.copytree(TESTS / "data/cartpole-balance-9159368", place))
    with pytest.raises(mjfleet.UserError, match=r"`env\.num_envs` holds"):
        run.resume(fork=True, env={"num_envs": object()})
    with pytest.raises(mjfleet.UserError, match="no flag --agent"):
        run.resume(fork=True, agent=None)
    with pytest.raises(mjfleet.UserError, match="nothing is left to do, so no run has begun"):
        run.resume(fork=True)
    assert [*place.parent.iterdir()] == [place]


@dataclass(frozen=True, kw_only=True)
class GoalConfig(mjfleet.EnvConfig):
    """A configuration with a field that has no default."""

    goal: float
    num_envs: int = 4
    decimation: int = 1
    episode_seconds: float = 1.0


class GoalEnv(mjfleet.Env[GoalConfig]):
    """ """

    @classmethod
    def make_model(cls, cfg: GoalConfig) -> mujoco.MjModel:
        body = '<body><joint name="a"/><geom size=".1"/></body>'
        motor = '<actuator><motor joint="a"/></actuator>'
        model = f"<mujoco><worldbody>{body}</worldbody>{motor}</mujoco>"
        return mujoco.MjModel.from_xml_string(model)

    def reset_worlds(self, mask: torch.Tensor) -> None:
        return

    def apply(self, action: torch.Tensor) -> None:
        self.sim.ctrl[:] = action

    def observe(self) -> dict[str, torch.Tensor]:
        return {"actor": self.sim.qpos, "critic": self.sim.qpos}

    def rewards(self) -> dict[str, torch.Tensor]:
        return {"near": -(self.sim.qpos[:, 0] - self.cfg.goal).abs()}


class NumberEnv(GoalEnv):
    """Its model is no file."""

    model_file: Any = 3
    make_model: Any = classmethod(mjfleet.Env.make_model.__func__)


def test_make_takes_a_configuration_together_with_a_number_of_environments() -> None:
    with mjfleet.make(GoalEnv, env=GoalConfig(goal=2.0), num_envs=3, device="cpu") as env:
        assert (env.num_envs, env.cfg.goal) == (3, 2.0)
    must = r"missing .*'goal'; give it a default, or env=GoalConfig\(\.\.\.\)\."
    with pytest.raises(mjfleet.UserError, match=must):
        mjfleet.make(GoalEnv, env={"num_envs": 3}, device="cpu")


def test_a_run_that_was_stopped_before_it_began_is_stopped_and_one_that_goes_on_is_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # As for a script's background job.
    try:
        run = mjfleet.train("cartpole-balance", gpu_ids=None, background=True, quiet=True)
        assert (run.task, run.iteration) == ("cartpole-balance", 0)  # It has no file yet.
        run.stop()
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert run.status == "stopped"
    run.path.mkdir(parents=True, exist_ok=True)
    with closing(lock_run(run.path)):  # As a process that continues it.
        assert run.status == "running"
    assert run.status == "stopped"
