"""`mjfleet bench` on the command line: help, mistakes, and real measurements, tiny ones."""

import os
import signal
from pathlib import Path

import psutil
import pytest

from mjfleet.bench.benchmark import Setup
from mjfleet.bench.command import BenchOptions, as_in_long_runs
from mjfleet.launch.devices import Devices
from mjfleet.registry import discover
from mjfleet.utils.wait_until import wait_until

from ..conftest import PATIENCE, POISON, Output, Refusal, Run, Start
from .tiny import measured


@pytest.mark.slow
def test_throughput_says_where_the_time_goes(run: Run, tmp_path: Path) -> None:
    data = measured(run, tmp_path, "throughput", "cartpole-balance", "--num-envs", "16")
    (sample,) = data["samples"]
    assert sample["num_envs"] == 16
    end_to_end, rollout, update, environment, engine, ratio = sample["speeds"]
    assert engine > rollout > end_to_end > 0
    assert environment > 0
    assert 0 < ratio < 1
    times = sample["milliseconds"]
    assert times[0] > times[1] + times[2]
    assert update == pytest.approx(1e3 * 16 * 32 / times[2])
    assert data["tables"][0]["rows"][0][0] == "16"


@pytest.mark.slow
def test_startup_says_what_the_first_iteration_waits_for(run: Run, tmp_path: Path) -> None:
    flags = ("cartpole-balance", "--num-envs", "16", "--quiet")
    data = measured(run, tmp_path, "startup", *flags)
    *helps, first = data["samples"]
    assert all(0 < sample["seconds"] < first["seconds"] for sample in helps)
    assert sum(first["phases"]) == pytest.approx(first["seconds"])
    assert all(seconds > 0 for seconds in first["phases"])


@pytest.mark.slow
def test_two_workers_are_compared_with_one(run: Run, tmp_path: Path) -> None:
    flags = ("cartpole-balance", "--num-envs", "16", "--workers", "2")
    one, two = measured(run, tmp_path, "scaling", *flags)["samples"]
    assert (one["workers"], two["workers"]) == (1, 2)
    speed, efficiency, _, collectives = two["figures"]
    assert efficiency == pytest.approx(speed / one["figures"][0] / 2)
    assert collectives > 0


@pytest.mark.slow
def test_iterations_of_sac_that_are_measured_learn(run: Run, tmp_path: Path) -> None:
    flags = ("--num-envs", "64", "--workers", "1", "--agent.algorithm.name", "sac")
    few = ("warm-up", "700", "updates-per-transition", "0.02", "batch-size", "8")
    flags += tuple(f"--agent.algorithm.{x}" if x[0].isalpha() else x for x in few)
    (sample,) = measured(run, tmp_path, "scaling", "cartpole-balance", *flags)["samples"]
    losses = [row["loss/critic"] for row in sample["iterations"]]
    assert [loss > 0.0 for loss in losses] == [False] * 3 + [True] * 3


def test_as_many_updates_of_sac_are_measured_as_a_long_run_makes() -> None:
    found = discover({}).find("cartpole-balance")
    base = found.with_algorithm(found.defaults(), "sac")
    for num_envs, updates in ((256, 1.0), (1024, 0.25)):
        options = BenchOptions(what="throughput", num_envs=(num_envs,))
        setup = Setup(found, base, options, Devices(), Path(), print)
        setup, options = as_in_long_runs(setup, options)
        algorithm = setup.config(num_envs).agent.algorithm
        assert vars(algorithm)["updates_per_transition"] == updates


@pytest.mark.slow
def test_ctrl_c_leaves_nothing(start: Start, tmp_path: Path) -> None:
    scratch = tmp_path / "temporary"
    scratch.mkdir()
    process = start(
        "mjfleet", "bench", "scaling", "cartpole-balance", "--iterations", "100000",
        "--workers", "1", "--gpu-ids", "None", environ=os.environ | {"TMPDIR": str(scratch)},
    )  # fmt: skip
    assert wait_until(lambda: bool(list(scratch.glob("*/run/metrics.csv"))), PATIENCE)
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    assert process.wait() == 130
    assert children
    assert not [child for child in children if child.is_running()]
    assert not list(scratch.iterdir())
    assert list(tmp_path.iterdir()) == [scratch]


def test_help_is_light(output: Output) -> None:
    shown = output("mjfleet", "bench", "throughput", "--help", prelude=POISON)
    assert all(word in shown for word in ("throughput", "scaling", "startup", "--output"))


def test_a_mistake_is_one_message(refusal: Refusal) -> None:
    for arguments, problem in (
        (["throughput", "cartpole-balance", "--iterations", "0"], "--iterations is 0"),
        (["throughput", "cartpole-balance", "--cpu-threads", "1000"], "--cpu-threads is 1000"),
        (["scaling", "cartpole-balance", "--workers", "1000"], "--workers is 1000"),
        (["startup", "cartpole-balance", "--output", "/dev/null/x"], "--output /dev/null/x"),
        (["startup", "--seeds", "2"], "leave out --seeds"),
        (["startup", "--agent.algorithm.gamma", "2"], "gamma is 2.0"),
    ):
        assert problem in refusal("bench", *arguments)
