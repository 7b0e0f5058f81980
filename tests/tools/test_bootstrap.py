"""Means over runs, and the intervals that bootstrapping gives them."""

import numpy as np
import pytest

from mjfleet.tools.bootstrap import Estimate, bootstrap_interval, common_x, mean_curve


def test_an_interval_holds_the_true_mean_as_often_as_it_says() -> None:
    samples = np.random.default_rng(1).normal(3.0, 2.0, size=(20, 400))  # 400 times 20 runs.
    low, high = bootstrap_interval(samples)
    assert 0.88 < np.mean((low < 3.0) & (high > 3.0)) < 0.97  # Of so few, a little less than 95%.
    again = bootstrap_interval(samples)
    assert np.array_equal(low, again[0])
    assert np.array_equal(high, again[1])


def test_a_number_of_several_runs() -> None:
    assert Estimate.of([]) is None
    assert Estimate.of([2.5]) == Estimate(2.5, None, None, 1)
    assert Estimate.of([4.0, 4.0]) == Estimate(4.0, 4.0, 4.0, 2)
    some = Estimate.of([1.0, 2.0, 6.0])
    assert some is not None
    assert some.low is not None
    assert some.high is not None
    assert 1.0 <= some.low < some.mean == 3.0 < some.high <= 6.0


def test_a_curve_is_the_mean_of_the_runs_that_have_got_so_far() -> None:
    lines = [([0, 2], [0, 2]), ([1, 5], [3, 3])]
    x = common_x([x for x, _ in lines], points=6)
    assert x == [0, 1, 2, 3, 4, 5]
    low, mean, high = mean_curve(lines, x)
    assert mean == pytest.approx([0, 2, 2.5, 3, 3, 3])
    assert low == pytest.approx([0, 1, 2, 3, 3, 3])
    assert high == pytest.approx([0, 3, 3, 3, 3, 3])
    assert np.isnan(mean_curve(lines[1:], x)[1][0])
