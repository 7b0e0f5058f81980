"""Medians and ranges, tables and files of results."""

import json
from pathlib import Path

import pytest

from mjfleet.bench import result as result_module
from mjfleet.bench.result import Result, Spread, Table, our_commit, show


def test_a_table_has_a_row_of_spreads_for_each_key() -> None:
    measured = [(256, [3.0, 5.0]), (1024, [2.0, 6.0]), (256, [1.0, 6.0]), (256, [10.0, 5.0])]
    assert Table.of("Speed", ["environments", "steps", "waiting"], measured).rows == [
        ["256", Spread(3.0, 1.0, 10.0), Spread(5.0, 5.0, 6.0)],
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


def test_a_result_is_a_page_and_its_data(tmp_path: Path) -> None:
    rows = [["256", Spread(1500.0, 1000.0, 2000.0), None], ["1024", 12.34, "none"]]
    table = Table("Speed", ["environments", "steps", "other"], rows)
    result = Result("speed", "Title", [table], ["Mind the gap."], [{"seconds": 1.5}])
    machine = {"CPU": "Abacus 3", "torch": "1.0"}
    page = result.write(tmp_path / "new", "mjfleet bench", "2026-05-04T12:00:00+02:00", machine)
    assert page == (tmp_path / "new/speed.md").read_text()
    for words in (
        "1,500 (1,000 to 2,000)", "- Mind the gap.", "mjfleet bench",
        "Taken 2026-05-04 with CPU Abacus 3, torch 1.0.",
    ):  # fmt: skip
        assert words in page
    data = json.loads((tmp_path / "new/speed.json").read_text())
    assert data["tables"][0]["rows"][0][1] == {"median": 1500.0, "low": 1000.0, "high": 2000.0}
    assert data["samples"] == [{"seconds": 1.5}]


def test_only_a_clone_has_a_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(our_commit().partition(",")[0]) == 9
    monkeypatch.setattr(result_module, "clone_folder", lambda: None)
    assert our_commit() == ""
