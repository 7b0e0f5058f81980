"""The plan: a pure function of configuration, devices and environment."""

from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from mjfleet.config import TrainConfig
from mjfleet.errors import UserError
from mjfleet.launch.devices import Devices
from mjfleet.launch.plan import LaunchPlan, make_plan
from mjfleet.registry import discover

CPU, GPU = Devices((), ()), Devices((1,), ("3",))
NOON = datetime(2026, 5, 4, 12, 0, 0)


def plan(
    devices: Devices = CPU, environ: dict[str, str] | None = None, **changes: Any
) -> LaunchPlan:
    found = discover({}).find("cartpole-balance")
    config: TrainConfig = replace(found.defaults(), **changes)
    return make_plan(found, config, devices, environ or {}, 4, NOON)


def test_auto_engine_is_native_on_the_cpu_and_warp_on_a_gpu() -> None:
    assert (plan().engine, plan().devices) == ("native", ("cpu",))
    assert (plan(GPU).engine, plan(GPU).devices) == ("warp", ("cuda:1",))
    assert plan(engine="warp").engine == "warp"


def test_run_directory_is_named_by_experiment_time_and_run_name() -> None:
    assert plan().run_dir == Path("logs/cartpole-balance/2026-05-04_12-00-00")
    agent = replace(discover({}).find("cartpole-balance").task.agent, run_name="tall")
    named = plan(log_root="/data", agent=replace(agent, experiment_name="poles"))
    assert named.run_dir == Path("/data/poles/2026-05-04_12-00-00_tall")


@pytest.mark.parametrize(
    ("variable", "flag", "expected", "source"),
    [
        (None, None, Path("logs/cartpole-balance/2026-05-04_12-00-00/torchrunx"), "default"),
        (None, "mine", Path("mine"), "--torchrunx-log-dir"),
        (None, "", None, "--torchrunx-log-dir"),
        ("/tmp/theirs", "mine", Path("/tmp/theirs"), "environment variable TORCHRUNX_LOG_DIR"),
        ("", "mine", None, "environment variable TORCHRUNX_LOG_DIR"),
    ],
)
def test_torchrunx_log_dir_precedence(variable, flag, expected, source) -> None:
    environ = {} if variable is None else {"TORCHRUNX_LOG_DIR": variable}
    made = plan(environ=environ, torchrunx_log_dir=flag)
    assert (made.torchrunx_log_dir, made.torchrunx_log_dir_source) == (expected, source)


@pytest.mark.parametrize(
    ("devices", "environ", "changes", "words"),
    [
        (Devices((0, 1), ("0", "1")), {}, {}, ["2 GPUs", "--gpu-ids 0"]),
        (GPU, {}, {"engine": "native"}, ["--engine native", "--gpu-ids None"]),
        (CPU, {}, {"cpu_threads": 5}, ["--cpu-threads is 5", "at most 4"]),
        (CPU, {"WORLD_SIZE": "2"}, {}, ["WORLD_SIZE is 2"]),
    ],
)
def test_impossible_plans_are_refused(devices, environ, changes, words) -> None:
    with pytest.raises(UserError) as error:
        plan(devices, environ, **changes)
    for word in words:
        assert word in str(error.value)


def test_threads_are_all_cores_unless_said_otherwise() -> None:
    assert plan().threads == 4
    assert plan(cpu_threads=3).threads == 3
