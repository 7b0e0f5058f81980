"""`--env.num-envs auto`: measured by real children, remembered, and nothing left behind."""

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from mjfleet.autotune.num_envs_search import Answer, cache_file, find_num_envs, recall, remember
from mjfleet.autotune.num_envs_trial import TrialResult
from mjfleet.config import PPOConfig, to_dict
from mjfleet.errors import UserError
from mjfleet.registry import FoundTask, discover
from mjfleet.utils.hardware_names import cpu_name
from mjfleet.worker.worker_args import WorkerArgs

from ..conftest import Run, only_run
from ..launch.workers import started, write_noisy

CARTPOLE = "cartpole-balance"
NO_CHILD = """
import sys
def refuse(event, args):
    if event == "subprocess.Popen" and "mjfleet.autotune.num_envs_trial" in args[1]:
        raise RuntimeError("it measured")
sys.addaudithook(refuse)
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("WORLD_SIZE", raising=False)


def wanted(
    found: FoundTask | None = None, cpu_workers: int = 1, **changes: Any
) -> tuple[WorkerArgs, list[str]]:
    """Workers on the CPU whose number of environments is to be found, and their devices' names."""
    found = found or discover({}).find(CARTPOLE)
    config = found.defaults()
    config = replace(
        config,
        env=replace(config.env, num_envs="auto"),
        agent=replace(config.agent, num_steps_per_env=8, **changes),
    )
    args = WorkerArgs(
        task=found.name,
        task_folder=str(found.folder),
        config=to_dict(config),
        devices=("cpu",) * cpu_workers,
        engine="native",
        threads=max(1, len(os.sched_getaffinity(0)) // cpu_workers),
        run_dir="",
    )
    return args, [cpu_name()] * cpu_workers


def curve(*speeds: float) -> list[TrialResult]:
    return [
        TrialResult(num_envs=256 << index, steps_per_second=speed, memory=0.1 * (index + 1))
        for index, speed in enumerate(speeds)
    ]


KNOWN = Answer("then", [curve(1, 2)])


@pytest.mark.slow
def test_what_was_measured_is_shown_remembered_and_written_into_the_configuration(
    run: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    worlds = find_num_envs(*wanted(), largest=512)
    assert worlds in (256, 512)
    shown = capfd.readouterr().out
    assert "measuring how many worlds train fastest on cpu" in shown
    assert f"{worlds} worlds per worker, remembered in {cache_file()}" in shown
    flags = (
        "--env.num-envs", "auto", "--agent.num-steps-per-env", "8", "--agent.max-iterations", "1",
        "--gpu-ids", "None",
    )  # fmt: skip
    dry = run("train", CARTPOLE, *flags, "--dry-run", prelude=NO_CHILD)
    assert f"{worlds} per worker, {worlds} in total" in dry.stdout
    assert "worlds as measured at" in dry.stdout
    result = run("train", CARTPOLE, *flags, prelude=NO_CHILD)
    assert result.returncode == 0, result.stderr
    assert f"to measure anew, remove {cache_file()}" in result.stdout
    assert "steps/s" in result.stdout
    recorded = yaml.safe_load((only_run(tmp_path) / "config.yaml").read_text())
    assert recorded["env"]["num_envs"] == worlds
    cache_file().unlink()
    anew = run("train", CARTPOLE, *flags, prelude=NO_CHILD)
    assert "it measured" in anew.stderr


@pytest.mark.slow
def test_all_workers_measure_and_use_the_smallest_answer() -> None:
    num_envs = find_num_envs(*wanted(cpu_workers=2), largest=512)
    remembered = recall(*wanted(cpu_workers=2))
    assert remembered
    assert [results[0].num_envs for results in remembered.curves] == [256, 256]
    assert num_envs == remembered.num_envs


def test_the_smallest_answer_counts_and_the_table_ends_where_a_worker_had_enough() -> None:
    answer = Answer("now", [curve(100, 190, 360, 370), curve(100, 190, 195)])
    assert answer.num_envs == 512
    assert answer.table().split("\n") == [
        "worlds per worker  steps/s  memory",
        "              256      200     10%",
        "              512      380     20%",
        "             1024      555     30%",
    ]


def test_it_is_remembered_for_what_throughput_depends_on(tmp_path: Path) -> None:
    assert remember(*wanted(), KNOWN)
    assert recall(*wanted(seed=7, max_iterations=3, run_name="a"))
    assert recall(*wanted()) == recall(*wanted(logger=("none",)))
    assert not recall(*wanted(cpu_workers=2))
    assert not recall(*wanted(algorithm=PPOConfig(num_learning_epochs=2)))
    assert not recall(*wanted(discover({}).find("cartpole-swingup")))
    write_noisy(tmp_path)
    noisy = discover({}, str(tmp_path / "tasks")).find("noisy")
    assert remember(*wanted(noisy), KNOWN)
    assert recall(*wanted(noisy))
    assert recall(*wanted())
    (tmp_path / "tasks/noisy/model.xml").write_text("another")
    assert not recall(*wanted(noisy))


def test_a_damaged_file_is_replaced_and_a_folder_that_cannot_be_made_is_no_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert remember(*wanted(), KNOWN)
    for damage in ("", "[]", "{", cache_file().read_text().replace("num_envs", "words")):
        cache_file().write_text(damage)
        assert recall(*wanted()) is None
        assert remember(*wanted(), KNOWN)
        assert recall(*wanted())
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    assert recall(*wanted()) is None
    assert not remember(*wanted(), KNOWN)


@pytest.mark.slow
def test_what_a_task_raises_is_shown(tmp_path: Path) -> None:
    write_noisy(tmp_path)
    noisy = discover({}, str(tmp_path / "tasks")).find("noisy")
    # Only one of several workers is told its rank.
    with pytest.raises(UserError, match=r"(?s)env.py cannot be imported.*KeyError: 'RANK'"):
        find_num_envs(*wanted(noisy))
    assert not cache_file().exists()


@pytest.mark.slow
def test_a_mistake_of_the_user_is_told_as_one(tmp_path: Path) -> None:
    too_many = PPOConfig(num_mini_batches=5000)
    with pytest.raises(UserError, match="num-mini-batches is 5000, more than the 2048 samples"):
        find_num_envs(*wanted(algorithm=too_many))
    write_noisy(tmp_path, setup='print("{"); raise UserError("no motor")')
    noisy = discover({}, str(tmp_path / "tasks")).find("noisy")
    with pytest.raises(UserError, match=r"^no motor$"):
        find_num_envs(*wanted(noisy, cpu_workers=2))


@pytest.mark.slow
def test_worlds_for_which_there_is_no_memory_are_no_answer(tmp_path: Path) -> None:
    kill = "os.kill(os.getpid(), signal.SIGKILL)"  # As the system does.
    full = f'if RANK: {kill}\n            raise RuntimeError("Failed to allocate 8 bytes")'
    write_noisy(tmp_path, setup=f"if self.num_envs > 256:\n            {full}")
    noisy = discover({}, str(tmp_path / "tasks")).find("noisy")
    assert find_num_envs(*wanted(noisy, cpu_workers=2)) == 256
    remembered = recall(*wanted(noisy, cpu_workers=2))
    assert remembered
    assert [len(results) for results in remembered.curves] == [1, 1]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_measuring_ends_all_and_nothing_was_created(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    with started(tmp_path, "--env.num-envs", "auto", "--cpu-workers", "2") as process:
        assert process.stdout is not None
        assert "measuring" in process.stdout.readline()
        assert len(psutil.Process(process.pid).children()) == 2
        process.send_signal(number)
        assert process.wait() == code
        assert f"{number.name}: stopping at once" in process.stdout.read()
    assert not list(tmp_path.iterdir())
