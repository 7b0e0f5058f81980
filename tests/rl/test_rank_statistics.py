"""Means over episodes: the newest ones, enough of them, and nothing where none has ended."""

import math
from dataclasses import replace

import pytest

from mjfleet.env import EpisodeStatistics
from mjfleet.rl.gpu_usage import GpuUsage, read_usage, usage_columns
from mjfleet.rl.rank_statistics import (
    EpisodeWindow,
    RankReport,
    from_numbers,
    slowest,
    to_numbers,
    total,
)
from mjfleet.rl.replica_checksum import OutOfStepError, check_replicas


def ended(episodes: int, mean_return: float) -> EpisodeStatistics:
    returns = episodes * mean_return
    return EpisodeStatistics(episodes, returns, episodes * 10.0, {"alive": returns}, 0.0, 1)


def test_there_is_no_mean_before_an_episode_has_ended() -> None:
    window = EpisodeWindow(100)
    window.add(ended(0, 0.0))
    assert window.means(("alive",)) == {"return": None, "length": None, "reward/alive": None}


def test_the_mean_is_over_the_newest_iterations_that_hold_enough_episodes() -> None:
    window = EpisodeWindow(100)
    for episodes, mean_return in ((60, 1.0), (60, 2.0), (0, 0.0), (50, 4.0)):
        window.add(ended(episodes, mean_return))
    means = window.means(("alive",))
    assert means["return"] == means["reward/alive"] == (60 * 2.0 + 50 * 4.0) / 110
    assert means["length"] == 10.0


def test_one_iteration_with_enough_episodes_is_enough() -> None:
    window = EpisodeWindow(100)
    window.add(ended(500, 1.0))
    window.add(ended(100, 3.0))
    assert window.means(("alive",))["return"] == 3.0


def report(episodes: int = 0, collective: float = 0.0, checksum: int = 7) -> RankReport:
    return RankReport(
        statistics=ended(episodes, 2.0),
        losses={"value": 0.5, "surrogate": -0.25},
        action_std=0.75,
        warnings={"BADQACC": 3, "INERTIA": 0},
        collect_seconds=0.25,
        learn_seconds=0.75 + collective,
        collective_seconds=collective,
        stop=15,
        diverged=True,
        checksum=checksum,
    )


def test_a_report_arrives_as_it_was_sent() -> None:
    sent = report(episodes=3, checksum=2**52 - 1)
    assert from_numbers(report(), to_numbers(sent)) == sent
    metrics = {"speed": (3.0, 4.0)}
    sent = replace(sent, evaluation=replace(ended(2, 5.0), metrics=metrics), eval_seconds=0.5)
    own = replace(report(), evaluation=replace(ended(1, 0.0), metrics={"speed": (0.0, 0.0)}))
    assert from_numbers(own, to_numbers(sent)) == sent


def test_the_usage_of_all_gpus_is_in_columns_of_their_own() -> None:
    first = GpuUsage(memory=3.0, utilization=50.0, temperature=61.0)
    second = GpuUsage(memory=2.0, utilization=100.0, temperature=70.0)
    unknown = GpuUsage(memory=math.nan, utilization=math.nan, temperature=math.nan)
    own = replace(report(), gpu=unknown)
    assert from_numbers(own, to_numbers(replace(report(), gpu=first))).gpu == first
    both = {"gpu_memory": 3.0, "gpu_utilization": 75.0, "gpu_temperature": 70.0}
    assert usage_columns([first, second]) == usage_columns([first, unknown, second]) == both
    assert usage_columns([unknown]) == dict.fromkeys(both)
    warm = replace(unknown, temperature=80.0)
    assert usage_columns([first, warm]) == {
        "gpu_memory": 3.0, "gpu_utilization": 50.0, "gpu_temperature": 80.0
    }  # fmt: skip
    assert usage_columns([None, None]) == {}


@pytest.mark.gpu
def test_nvml_knows_the_usage_of_a_gpu() -> None:
    usage = read_usage("cuda:0")
    assert usage is not None
    assert usage.memory > 0
    assert 0 <= usage.utilization <= 100


def test_episodes_of_all_ranks_are_added_up() -> None:
    both = total([ended(2, 2.0), ended(3, 2.0)])
    assert (both.episodes, both.returns, both.lengths, both.steps) == (5, 10.0, 50.0, 2)
    assert both.terms == {"alive": 10.0}


def test_the_slowest_rank_is_the_one_that_the_others_waited_for() -> None:
    reports = [report(collective=0.5), report(collective=0.1), report(collective=0.4)]
    rank, wait, own = slowest(reports)
    assert (rank, own) == (1, 0.1)
    assert abs(wait - 0.35) < 1e-9
    assert slowest([report()]) == (0, 0.0, 0.0)


def test_the_rank_that_differs_is_named() -> None:
    check_replicas(1, [7, 7, 7])
    for checksums, names in (
        ([7, 7, 9], "of rank 2 differ from those of the others"),
        ([9, 7, 8, 7], "of rank 0, rank 2 differ"),
        ([7, 8], r"of rank 1 differ from those of the other\."),
    ):
        with pytest.raises(OutOfStepError, match=names):
            check_replicas(1, checksums)
