"""The plan: a pure function of configuration, devices and environment."""

from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from mjfleet.config import TrainConfig
from mjfleet.errors import UserError
from mjfleet.launch.devices import Devices
from mjfleet.launch.launch_plan import LaunchPlan, make_plan, name_files
from mjfleet.registry import discover
from mjfleet.worker.rank_environment import Rank

CPU, GPU = Devices(), Devices((1,), ("3",))
CPUS, GPUS = Devices(cpu_workers=2), Devices((0, 2), ("4", "6"))
OUTER = {
    "WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "a", "MASTER_PORT": "1",
}  # fmt: skip
NOON = datetime(2026, 5, 4, 12, 0, 0)


def plan(
    devices: Devices = CPU, environ: dict[str, str] | None = None, **changes: Any
) -> LaunchPlan:
    found = discover({}).find("cartpole-balance")
    config: TrainConfig = replace(found.defaults(), **changes)
    environ = environ or {}
    outer = Rank.from_environ(environ)
    made = make_plan(found, config, [replace(devices, cores=4)], outer)
    return name_files(made, environ, NOON)


def test_auto_engine_is_native_on_the_cpu_and_warp_on_a_gpu() -> None:
    assert (plan().engine, plan().device) == ("native", "cpu")
    assert (plan(GPU).engine, plan(GPU).device) == ("warp", "cuda:1")
    assert plan(engine="warp").engine == "warp"


def test_run_directory_is_named_by_experiment_time_and_run_name() -> None:
    assert plan().run_dir == Path("logs/cartpole-balance/2026-05-04_12-00-00")
    agent = replace(discover({}).find("cartpole-balance").task.agent, run_name="tall")
    named = plan(log_root="/data", agent=replace(agent, experiment_name="poles"))
    assert named.run_dir == Path("/data/poles/2026-05-04_12-00-00_tall")


@pytest.mark.parametrize(
    ("variable", "flag", "expected"),
    [
        (None, None, Path("logs/cartpole-balance/2026-05-04_12-00-00/torchrunx")),
        (None, "logs", Path("logs")),
        (None, "", None),
        ("/tmp/theirs", "logs", Path("/tmp/theirs")),
        ("", "logs", None),
    ],
)
def test_logs_are_where_the_variable_says_else_the_flag_else_in_the_run(
    variable: str | None, flag: str | None, expected: Path | None
) -> None:
    environ = {} if variable is None else {"TORCHRUNX_LOG_DIR": variable}
    made = plan(CPUS, environ, torchrunx_log_dir=flag)
    assert made.logs == (expected and expected / "2026-05-04T12:00:00")


@pytest.mark.parametrize(
    ("devices", "environ", "changes", "named"),
    [
        (GPU, {}, {"engine": "native"}, ["--engine native", "--gpu-ids None"]),
        (CPU, {}, {"cpu_threads": 5}, ["--cpu-threads is 5", "at most 4"]),
        (CPU, {"WORLD_SIZE": "2"}, {}, ["WORLD_SIZE=2", "RANK"]),
        (CPUS, {}, {"backend": "nccl"}, ["--backend nccl", "gloo"]),
        (CPUS, OUTER, {"max_restarts": 1}, ["--max-restarts is 1", "has to restart them"]),
    ],
)
def test_impossible_plans_are_refused(devices, environ, changes, named) -> None:
    with pytest.raises(UserError) as error:
        plan(devices, environ, **changes)
    for word in named:
        assert word in str(error.value)


def test_a_host_with_too_few_cores_is_named() -> None:
    found = discover({}).find("cartpole-balance")
    hosts = [replace(CPU, host="a", cores=8), replace(CPU, host="b", cores=4)]
    with pytest.raises(UserError, match="must be at most 4, the cores that a process on b may use"):
        make_plan(found, replace(found.defaults(), cpu_threads=8), hosts)


def test_hosts_with_and_without_gpus_are_refused() -> None:
    found = discover({}).find("cartpole-balance")
    hosts = [replace(GPU, host="a"), replace(CPU, host="b")]
    with pytest.raises(UserError, match="a has GPUs to train on, b has none"):
        make_plan(found, found.defaults(), hosts)


@pytest.mark.parametrize(
    ("workers", "cpu_threads", "threads"), [(1, None, 4), (1, 3, 3), (3, None, 1), (6, 2, 1)]
)
def test_workers_share_the_cores(workers: int, cpu_threads: int | None, threads: int) -> None:
    made = plan(Devices(cpu_workers=workers), cpu_threads=cpu_threads)
    assert [worker["threads"] for worker in made.workers()] == [threads] * workers
    assert any("share 4 CPU cores" in note for note in made.notes) == (workers > 4)


def test_one_device_runs_here_and_several_through_torchrunx() -> None:
    assert (plan().launcher, plan().backend, plan().world_size) == ("in-process", None, 1)
    assert plan(GPU).launcher == "in-process"
    assert (plan(CPUS).launcher, plan(CPUS).backend) == ("torchrunx", "gloo")
    made = plan(GPUS)
    assert (made.launcher, made.backend, made.engine) == ("torchrunx", "nccl", "warp")
    keys = ("rank", "device", "physical", "seed")
    assert [tuple(w[key] for key in keys) for w in made.workers()] == [
        (0, "cuda:0", "4", 1),
        (1, "cuda:2", "6", 2),
    ]
    assert made.steps_per_iteration == 2 * 128 * 32
    assert made.logs
    files = [made.logs / "localhost[0].log", made.logs / "localhost[1].log"]
    assert [worker["log_file"] for worker in made.workers()] == files
    assert plan(GPUS, backend="gloo").backend == "gloo"


def test_a_process_that_something_else_started_is_the_rank_it_was_given() -> None:
    # The second of two on the second of two hosts, as torchrun tells it.
    environ = OUTER | {"WORLD_SIZE": "4", "RANK": "3", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    made = plan(GPUS, environ)
    assert (made.launcher, made.world_size, made.rank.rank) == ("outer", 4, 3)
    assert [(w["rank"], w["device"], w["seed"], w["log_file"]) for w in made.workers()] == [
        (2, "cuda:0", 3, None),
        (3, "cuda:2", 4, None),
    ]
    assert made.steps_per_iteration == 4 * 128 * 32
    assert plan(environ={"WORLD_SIZE": "1", "RANK": "0"}).launcher == "in-process"
    alone = plan(environ={"WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0"})
    assert (alone.launcher, alone.world_size, alone.backend) == ("outer", 1, None)


def test_the_worlds_of_all_workers_are_divided() -> None:
    def divided(workers: int) -> LaunchPlan:
        return plan(Devices(cpu_workers=workers), total_envs=96)

    assert divided(3).config.env.num_envs == 32
    assert "--total-envs 96: 32 environments for each of 3 workers" in divided(3).notes
    with pytest.raises(UserError, match="a multiple of 100"):
        divided(100)
