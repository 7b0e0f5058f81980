"""`mjfleet bench ablation`: the table of what training loses without each trick."""

from pathlib import Path

import pytest

from mjfleet.bench.ablation import BEGIN, END, TRICKS, write_between_markers
from mjfleet.errors import UserError

from ..conftest import Run
from .tiny import measured

PAGE = f"# Speed\n\nBefore.\n\n{BEGIN}\nan old table\n{END}\n\nAfter.\n"


@pytest.mark.slow
def test_the_table_is_written_between_the_markers(run: Run, tmp_path: Path) -> None:
    page = tmp_path / "speed.md"
    page.write_text(PAGE)
    flags = ("--num-envs", "16", "--also", "--page", "speed.md")
    data = measured(run, tmp_path, "ablation", "cartpole-balance", *flags)
    (table,) = data["tables"]
    assert [row[0] for row in table["rows"]] == list(TRICKS)
    assert [sample["trick"] for sample in data["samples"]] == list(TRICKS)
    for row, sample in zip(table["rows"], data["samples"], strict=True):
        assert row[2]["median"] == pytest.approx(sample["without"] / sample["with"])
    text = page.read_text()
    assert text.startswith(f"# Speed\n\nBefore.\n\n{BEGIN}\n")
    assert text.endswith(f"\n{END}\n\nAfter.\n")
    assert "an old table" not in text
    assert all(f"| {name} " in text for name in TRICKS)


@pytest.mark.parametrize("text", ["", BEGIN, END, f"{END}\n{BEGIN}\n"])
def test_a_page_without_markers_is_refused_and_left_alone(tmp_path: Path, text: str) -> None:
    page = tmp_path / "speed.md"
    page.write_text(text)
    with pytest.raises(UserError, match=r"speed\.md"):
        write_between_markers(page, "a table")
    assert page.read_text() == text
