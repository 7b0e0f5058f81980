"""Sums over ranks and what becomes of them: the newest episodes, and the rank that is slow."""

import math
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
import torch

from mjfleet.env.episode_statistics import Sums, means
from mjfleet.rl.checks.replicas import OutOfStepError, check_replicas
from mjfleet.rl.device.gpu_usage import read_usage, usage_columns
from mjfleet.rl.ranks.statistics import EpisodeWindow, gather, make_row, slowest


def ended(episodes: int, mean_return: float) -> Sums:
    returns = episodes * mean_return
    return {
        "return": (returns, episodes),
        "length": (episodes * 10.0, episodes),
        "reward/alive": (returns, episodes),
        "task/speed": (3.0, 4.0),
        "reward": (0.0, 1.0),
        "nan_resets": (0.0, 1.0),
    }


def test_the_mean_is_over_the_newest_iterations_that_hold_enough_episodes() -> None:
    window = EpisodeWindow(["alive"])
    assert set(means(window.add(ended(0, 0.0))).values()) == {None}
    window.add(ended(60, 1.0))
    window.add(ended(60, 2.0))
    window.add(ended(0, 0.0))
    found = means(window.add(ended(50, 4.0)))
    mean = (60 * 2.0 + 50 * 4.0) / 110
    assert found == {"return": mean, "length": 10.0, "reward/alive": mean}
    assert means(window.add(ended(100, 3.0)))["return"] == 3.0


def test_a_window_is_kept_unless_reward_terms_have_changed() -> None:
    window, same, other = EpisodeWindow(["alive"]), EpisodeWindow(["alive"]), EpisodeWindow(["b"])
    window.add(ended(60, 1.0))
    for restored in (same, other):
        restored.restore(window.state())
    assert same.state() == window.state()
    assert other.state() == []


class TwoRanks:
    """Gathers what this rank has, and the same numbers tenfold from another."""

    def all_gather(self, values: list[float]) -> list[list[float]]:
        return [values, [10 * value for value in values]]


def test_sums_are_added_over_ranks_and_values_are_read_as_they_are() -> None:
    collectives: Any = TwoRanks()
    sums, ranks = gather(collectives, ended(2, 2.0), {"collective_seconds": 0.5, "warning/A": 3})
    assert sums["return"] == (44.0, 22.0)
    assert ranks == [
        {"collective_seconds": 0.5, "warning/A": 3},
        {"collective_seconds": 5.0, "warning/A": 30},
    ]
    row = make_row(7, 100, 50.4, 0.1, EpisodeWindow(["alive"]).add(sums), sums, ranks)
    assert row == {
        "iteration": 7, "world_size": 2, "total_steps": 100, "steps_per_second": 25,
        "global_steps_per_second": 50, "mean_return": 2.0, "mean_episode_length": 10.0,
        "mean_reward": 0.0, "reward/alive": 2.0, "task/speed": 0.75, "learning_rate": 0.1,
        "slowest_rank": 0, "wait_seconds": 4.5, "collective_seconds": 0.5, "sim_warnings": 33,
        "nan_resets": 0,
    }  # fmt: skip


READINGS = {
    "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=2**31),
    "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=40),
    "nvmlDeviceGetTemperature": 50,
}
"""What NVML's functions return."""


def usage(memory: float, utilization: float, temperature: float) -> dict[str, float]:
    names = "gpu_memory", "gpu_utilization", "gpu_temperature"
    return dict(zip(names, (memory, utilization, temperature), strict=True))


def test_the_usage_of_all_gpus_is_in_columns_of_their_own() -> None:
    first, second, unknown = usage(3, 50, 61), usage(2, 100, 70), usage(*[math.nan] * 3)
    both = usage(3.0, 75.0, 70.0)
    assert usage_columns([first, second]) == usage_columns([first, unknown, second]) == both
    assert usage_columns([unknown]) == dict.fromkeys(both)
    assert usage_columns([first, unknown | {"gpu_temperature": 80.0}]) == usage(3, 50, 80)
    assert usage_columns([{}, {}]) == {}


def test_the_room_for_contacts_and_what_was_needed_are_the_largest_of_all_ranks() -> None:
    sums: Sums = {"nan_resets": (0.0, 1.0), "reward": (0.0, 1.0)}
    numbers = {"contacts": 20.25, "nconmax": 16.0, "constraints": 300.0, "njmax": 64.0}
    ranks = [{"collective_seconds": 0.0, **numbers} for _ in range(2)]
    ranks[1] |= {"contacts": 3.0, "nconmax": 32.0}
    row = make_row(1, 1, 1.0, 0.1, EpisodeWindow([]).add(ended(0, 0.0)), sums, ranks)
    assert {name: row[name] for name in numbers} == numbers | {"nconmax": 32}


@pytest.mark.parametrize("lacks", [None, "nvmlInit", *READINGS])
def test_a_reading_that_nvml_lacks_is_unknown_and_the_others_are_taken(
    monkeypatch: pytest.MonkeyPatch, lacks: str | None
) -> None:
    """No GPU is here: NVML's functions, and the UUID that torch knows, are stand-ins."""

    def fail(*_: Any) -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    def is_there(name: str) -> bool:
        return lacks not in (name, "nvmlInit")  # Without NVML, none of its functions works.

    for name, value in {"nvmlInit": None, **READINGS}.items():
        given = (lambda *_, value=value: value) if is_there(name) else fail
        monkeypatch.setattr(pynvml, name, given)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", lambda uuid: uuid)
    properties = SimpleNamespace(uuid=f"without {lacks}")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    numbers = zip(READINGS, (2.0, 40.0, 50.0), strict=True)
    expected = usage(*(number if is_there(name) else math.nan for name, number in numbers))
    assert str(read_usage("cuda:0")) == str(expected)  # NaN is not equal to itself.


@pytest.mark.gpu
def test_nvml_knows_the_usage_of_a_gpu() -> None:
    found = read_usage("cuda:0")
    assert found["gpu_memory"] > 0
    assert 0 <= found["gpu_utilization"] <= 100


def test_the_slowest_rank_is_the_one_that_the_others_waited_for() -> None:
    rank, wait, own = slowest([0.5, 0.1, 0.4])
    assert (rank, own) == (1, 0.1)
    assert abs(wait - 0.35) < 1e-9
    assert slowest([0.5]) == (0, 0.0, 0.5)


def test_the_rank_that_differs_is_named() -> None:
    check_replicas(1, [7, 7, 7])
    for checksums, names in (
        ([7, 7, 9], "of rank 2 differ from those of the others"),
        ([9, 7, 8, 7], "of rank 0, rank 2 differ"),
        ([7, 8], r"of rank 1 differ from those of the other\."),
    ):
        with pytest.raises(OutOfStepError, match=names):
            check_replicas(1, checksums)
