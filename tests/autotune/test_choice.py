"""When to stop doubling environments, and which number of them is the answer: pure functions."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mjfleet.autotune.num_envs_search import FULL, GAIN, choose, is_done
from mjfleet.autotune.num_envs_trial import TrialResult

POINTS = st.tuples(st.floats(1, 1e7), st.floats(0, 1))


def curve(*points: tuple[float, float]) -> list[TrialResult]:
    """What 256 environments, 512 and so on were like: steps per second and memory."""
    return [
        TrialResult(num_envs=256 << index, steps_per_second=speed, memory=memory)
        for index, (speed, memory) in enumerate(points)
    ]


@pytest.mark.parametrize(
    ("points", "answer", "done"),
    [
        ([(100, 0.1)], 256, False),
        ([(100, 0.9)], 256, True),
        ([(100, 0.1), (190, 0.1)], 512, False),
        ([(100, 0.1), (105, 0.1)], 512, False),
        ([(100, 0.1), (104, 0.1)], 256, True),
        ([(100, 0.1), (90, 0.1)], 256, True),
        # 512 more would take 40% more: together 80%, and 85% is too much.
        ([(100, 0.2), (200, 0.4)], 512, False),
        ([(100, 0.2), (200, 0.45)], 512, True),
        ([(100, 0.4), (200, 0.3)], 512, False),
        ([(100, 0.2), (200, 0.86)], 256, True),
    ],
)
def test_doubling_ends_where_it_gains_little_or_memory_fills(points, answer, done) -> None:
    assert choose(curve(*points)) == answer
    assert is_done(curve(*points)) == done


@given(st.lists(POINTS, min_size=1, max_size=9))
def test_every_doubling_up_to_the_answer_was_worth_it_and_the_next_was_not(points) -> None:
    measured = curve(*points)
    chosen = [point.num_envs for point in measured].index(choose(measured))
    worth = [
        now.steps_per_second >= GAIN * before.steps_per_second and now.memory < FULL
        for before, now in pairwise(measured)
    ]
    assert all(worth[:chosen])
    assert not any(worth[chosen : chosen + 1])


@given(st.lists(POINTS, min_size=2, max_size=9))
def test_measuring_goes_on_only_from_the_answer_so_far(points) -> None:
    measured = curve(*points)
    if not is_done(measured):
        assert choose(measured) == measured[-1].num_envs
