"""When a run has reached a condition: not by a single good iteration, and all at once."""

from mjfleet.tools.threshold import Threshold, reached


def rows(**metrics: list[float]) -> list[dict[str, float]]:
    """The iterations of a run."""
    columns = metrics.values()
    return [dict(zip(metrics, row, strict=True)) for row in zip(*columns, strict=True)]


def test_a_condition_holds_for_the_mean_of_ten_iterations() -> None:
    error = Threshold.parse("task/error < 0.5")
    assert str(error) == "task/error < 0.5"
    noisy = rows(**{"task/error": [1.0] * 10 + [0.0] + [1.0] * 9})
    assert reached([error], noisy) is None
    # Six of ten below, from iteration 15 on.
    assert reached([error], rows(**{"task/error": [1.0] * 10 + [0.0] * 10})) == 15
    assert reached([error], rows(**{"task/error": [0.5] * 20})) is None
    assert reached([error], rows(**{"task/error": [0.0] * 9})) is None
    assert reached([error], rows(**{"task/error": [0.0] * 10})) == 9


def test_all_conditions_hold_at_the_same_time() -> None:
    both = [Threshold.parse("up>-1e-1"), Threshold.parse(" down <+2. ")]
    apart = rows(up=[0.0] * 10 + [-1.0] * 20, down=[5.0] * 20 + [0.0] * 10)
    assert reached(both, apart) is None
    assert reached(both, rows(up=[0.0] * 30, down=[5.0] * 15 + [0.0] * 15)) == 21


def test_iterations_without_a_value_do_not_count() -> None:
    late: list[dict[str, object]] = [{"other": 1.0}, {"return": ""}] + [{"return": "3.5"}] * 12
    assert reached([Threshold.parse("return > 3")], late) == 11
