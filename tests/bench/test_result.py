"""Medians and ranges, tables and files of results."""

import json
from pathlib import Path

import pytest

from mjfleet.bench import result as result_module
from mjfleet.bench.result import Result, Spread, Table, our_commit, show


def result(name: str = "speed-cart", cpu: str = "Abacus 3") -> Result:
    rows = [["256", Spread(1500.0, 1000.0, 2000.0), None], ["1024", 12.34, "none"]]
    return Result(
        name=name,
        title=f"Title of {name}",
        command="mjfleet bench speed cart",
        taken="2026-05-04T12:00:00+02:00",
        machine={"CPU": cpu},
        versions={"torch": "1.0"},
        tables=[Table("Speed", ["worlds", "steps", "other"], rows)],
        notes=["Mind the gap."],
        plots=[f"{name}.png"],
        samples=[{"seconds": 1.5}],
    )


def test_a_spread_is_the_median_with_the_range() -> None:
    assert Spread.of([3.0, 1.0, 10.0]) == Spread(3.0, 1.0, 10.0)
    assert Spread.of([1.0, 2.0]).median == 1.5


def test_a_table_has_a_row_of_spreads_for_each_key() -> None:
    measured = [(256, [1.0, 5.0]), (1024, [2.0, 6.0]), (256, [3.0, 5.0])]
    assert Table.of("Speed", ["worlds", "steps", "waiting"], measured).rows == [
        ["256", Spread(2.0, 1.0, 3.0), Spread(5.0, 5.0, 5.0)],
        ["1024", Spread(2.0, 2.0, 2.0), Spread(6.0, 6.0, 6.0)],
    ]


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        (123456.7, "123,457"), (12.34, "12.3"), (1.234, "1.23"), (0.01234, "0.012"), (2.0, "2"),
        (Spread(2.0, 1.5, 2.5), "2 (1.50 to 2.50)"), (Spread(3.0, 3.0, 3.0), "3"), (None, "-"),
    ],
)  # fmt: skip
def test_a_cell_is_about_three_digits(cell: float | Spread | None, text: str) -> None:
    assert show(cell) == text


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    result().write(tmp_path / "new")
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == [
        "speed-cart.json", "speed-cart.md",
    ]  # fmt: skip
    data = json.loads((tmp_path / "new/speed-cart.json").read_text())
    assert data["tables"][0]["rows"][0][1] == {"median": 1500.0, "low": 1000.0, "high": 2000.0}
    assert data["samples"] == [{"seconds": 1.5}]
    text = (tmp_path / "new/speed-cart.md").read_text()
    assert text == result().markdown()
    for words in (
        "1,500 (1,000 to 2,000)",
        "- Mind the gap.",
        "mjfleet bench speed cart",
        "Taken 2026-05-04 with CPU Abacus 3, torch 1.0.",
    ):
        assert words in text


def test_only_a_clone_has_a_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    state = {"commit": "0123456789abcdef", "dirty": True}
    monkeypatch.setattr(result_module, "git_state", lambda _: {"/repository": state})
    assert our_commit() == "012345678, changed"
    monkeypatch.setattr(result_module, "clone_folder", lambda: None)
    assert our_commit() == ""
