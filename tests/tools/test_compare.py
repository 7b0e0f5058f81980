"""`mjfleet compare`: runs side by side, on the terminal, as JSON and as a page in a browser."""

import html
import json
import os
import pty
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import html5lib
import pytest

from mjfleet.cli.dispatcher import mjfleet
from mjfleet.errors import run_command

from ..cli.test_cli import POISON
from ..conftest import Run
from .browser import document_after_pointing
from .test_list_runs import write_run

EVIL = "<img src=x onerror=alert(1)> & </script>"
STEPS = 1000  # Of an iteration.


def trained(
    folder: Path,
    returns: Sequence[float],
    columns: Mapping[str, Sequence[object]] | None = None,
    seed: int = 1,
    gamma: float = 0.9,
) -> Path:
    """A run that took ten seconds for each iteration; columns may be shorter than it."""
    write_run(folder, "2026-05-04T10:00:00+00:00", status="finished", task="cartpole")
    config = f"task: cartpole\nagent: {{seed: {seed}, algorithm: {{gamma: {gamma}}}}}\n"
    (folder / "config.yaml").write_text(config)
    columns = columns or {}
    names = ["mean_return", *columns]
    lines = [f"iteration,total_steps,global_steps_per_second,{','.join(names)}"]
    for i, number in enumerate(returns):
        numbers = [number, *(column[i] if i < len(column) else "" for column in columns.values())]
        lines.append(f"{i + 1},{STEPS * (i + 1)},{STEPS / 10},{','.join(map(str, numbers))}")
    (folder / "metrics.csv").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture
def runs(tmp_path: Path) -> list[str]:
    """Two seeds of one setting, of which the second learns half as fast, and another setting."""
    root = tmp_path / "logs/cartpole"
    error = [1.0 - i / 100 for i in range(60)]
    one = trained(root / "a", [2.0 * i for i in range(60)], {"error": error, "eval/return": [7.0]})
    two = trained(root / "b", range(60), {"error": [1.0]}, seed=2)
    other = trained(root / "c", [*range(40), *[5.0] * 5], gamma=0.99)
    return [str(one), str(two), str(other)]


def as_json(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert run_command(mjfleet, ["compare", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_seeds_are_one_row_and_rows_keep_the_names_that_were_given(
    runs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    found = as_json(capsys, *runs, "--metric", "error", "--until", "mean_return > 30")
    one, other = found["rows"]
    assert (one["name"], other["name"]) == (", ".join(runs[:2]), runs[2])
    assert [one["runs"], other["runs"]] == [runs[:2], runs[2:]]
    assert one["settings"] == {"agent.algorithm.gamma": 0.9}
    returns = one["results"]["mean_return"]
    assert returns["last"] == {"mean": 88.5, "low": 59.0, "high": 118.0, "runs": 2}
    assert other["results"]["mean_return"] == {
        "last": {"mean": 5.0, "low": None, "high": None, "runs": 1},
        "best": {"mean": 39.0, "low": None, "high": None, "runs": 1},
    }
    assert one["results"]["eval/return"]["best"]["runs"] == 1  # Of two.
    assert other["results"]["eval/return"]["best"] is None
    assert one["results"]["error"]["min"]["mean"] == pytest.approx((0.41 + 1.0) / 2)
    assert other["results"]["error"] == dict.fromkeys(("last", "min", "max"))
    # The means over ten iterations are greater than 30 from iteration 21, 36 and 36 on.
    steps, minutes = one["until"]["million steps"], one["until"]["minutes"]
    assert steps["runs"] == minutes["runs"] == 2
    assert steps["mean"] == pytest.approx(STEPS / 1e6 * (21 + 36) / 2)
    assert minutes["mean"] == pytest.approx(10 / 60 * (21 + 36) / 2)
    assert other["until"]["million steps"]["mean"] == pytest.approx(STEPS / 1e6 * 36)

    # Without a condition: 90% of 109, the best mean over ten, which one of the runs has reached.
    found = as_json(capsys, *runs)
    assert found["until"] == ["mean_return > 98.1"]
    assert found["rows"][0]["until"]["minutes"]["runs"] == 1
    assert found["rows"][1]["until"]["minutes"] is None
    # An evaluation counts alone, as it is a mean already.
    late = [*[""] * 19, 8.0]
    trained(Path(runs[2]).with_name("d"), [0.0] * 30, {"eval/return": late}, seed=5, gamma=0.99)
    found = as_json(capsys, *runs, f"{runs[2][:-1]}d", "--until", "eval/return > 7.5")
    assert found["rows"][1]["until"]["million steps"]["mean"] == pytest.approx(STEPS / 1e6 * 20)


def test_groups_that_differ_in_seeds_alone_are_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    evaluated = {"eval/return": [*[""] * 7, 8.0]}
    for group, seeds in (("first", (1, 2)), ("second", (3, 4))):
        folder = Path("logs/cartpole") / group
        for seed in seeds:
            trained(folder / f"seed_{seed}", [float(seed)] * (10 + seed), evaluated, seed=seed)
        record = {"task": "cartpole", "kind": "seeds", "status": "finished"}
        (folder / "group.json").write_text(json.dumps(record))
    found = as_json(capsys, "first", "logs/cartpole/second")
    assert [row["name"] for row in found["rows"]] == ["first", "logs/cartpole/second"]
    assert [row["iterations"] for row in found["rows"]] == [[11, 12], [13, 14]]
    assert found["rows"][0]["results"]["mean_return"]["last"]["mean"] == 1.5
    assert len(as_json(capsys, "first")["rows"]) == 1
    for command in (["compare", "first", "second"], ["report", "first"]):
        assert run_command(mjfleet, [*command, "--output", "page.html"]) == 0
        document = html5lib.parse(Path("page.html").read_text(), namespaceHTMLElements=False)
        (data,) = (each.text for each in document.iter("script") if each.get("id"))
        entry = json.loads(data or "")[0]
        # One evaluation is one point; where a run has ended, the other is drawn.
        assert [v for v in entry["columns"]["eval/return"] if v] == [8.0]
        assert entry["columns"]["mean_return"] == [1.5] * 11 + [2.0]


def test_tables_fit_80_columns_and_a_row_is_a_line_in_a_pipe(
    run: Run, runs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("--metric", "error", "--metric", "eval/", "--until", "mean_return > 900")
    piped = run("mjfleet", "compare", "a", "b", "c", *words, prelude=POISON)
    assert piped.returncode == 0, piped.stderr
    lines = piped.stdout.splitlines()
    for line in (
        "1 a, b 2 60 88.5 [59, 118] 88.5 [59, 118] 7 (1 of 2)",
        "2 c 1 45 5 39 -",
        "Until mean_return > 900",
        "1 a, b - -",
        "agent.algorithm.gamma 0.9 0.99",
    ):
        assert line in [" ".join(shown.split()) for shown in lines], piped.stdout

    reader, writer = pty.openpty()
    with open(reader, "rb", buffering=0) as screen, open(writer, "w") as terminal:
        monkeypatch.setenv("COLUMNS", "80")
        with redirect_stdout(terminal):
            assert run_command(mjfleet, ["compare", *runs]) == 0
        shown = re.sub(r"\x1b\[[0-9;]*m", "", screen.read(4000).decode()).splitlines()
    assert max(map(len, shown)) <= 80
    assert sum("[59, 118]" in line for line in shown) == 1


def test_returns_of_different_rewards_are_said_to_be(
    runs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert as_json(capsys, *runs)["note"] is None
    for name, change, said in (
        ("run.json", {"task": "other"}, "the task"),
        ("run.json", {"attempts": [{"code": {"hash": "0123456789abcdef"}}]}, "the task's code"),
        ("config.yaml", "env: {weights: {slip: -1.0}}", "env.weights.slip"),
        ("config.yaml", "env: {healthy_reward: 5.0}", "env.healthy_reward"),
        ("metrics.csv", ",reward/slip", "the reward terms"),
    ):
        file = Path(runs[2], name)
        before = file.read_text()
        if isinstance(change, dict):
            file.write_text(json.dumps(json.loads(before) | change))
        elif name == "metrics.csv":
            file.write_text("".join(f"{line}{change if not i else ',1'}\n"
                            for i, line in enumerate(before.splitlines())))  # fmt: skip
        else:
            file.write_text(before + change)
        page = tmp_path / "page.html"
        assert run_command(mjfleet, ["compare", *runs, "--output", str(page)]) == 0
        note = f"Returns may be of different rewards, since these differ: {said}."
        assert note in " ".join(capsys.readouterr().out.split())
        assert html.escape(note, quote=True).replace("&#x27;", "&#39;") in page.read_text()
        file.write_text(before)


def test_a_group_of_several_settings_is_several_rows(
    runs: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(runs[0]).parents[2])
    group = Path("logs/cartpole/group")
    trained(group / "trial_0", [1.0] * 10)
    trained(group / "trial_1", [2.0] * 10, gamma=0.99)
    (group / "group.json").write_text(json.dumps({"kind": "sweep", "status": "finished"}))
    names = [row["name"] for row in as_json(capsys, "group")["rows"]]
    assert names == ["group (gamma 0.9)", "group (gamma 0.99)"]


def test_a_page_shows_tables_and_curves(runs: list[str], tmp_path: Path) -> None:
    other = json.loads((Path(runs[2]) / "run.json").read_text())
    (Path(runs[2]) / "run.json").write_text(json.dumps(other | {"task": EVIL}))
    page = tmp_path / "page.html"
    assert run_command(mjfleet, ["compare", *runs, "--output", str(page)]) == 0
    text = page.read_text()
    html5lib.HTMLParser(strict=True).parse(text)
    assert EVIL not in text
    curves = text.count("data-column=")
    assert curves == 2  # The return and the error; what is constant in all of them is not drawn.
    if shutil.which("chromium") is None:
        return
    document = html5lib.parse(document_after_pointing(text, tmp_path), namespaceHTMLElements=False)
    assert len(list(document.iter("canvas"))) == curves
    captions = ["".join(caption.itertext()) for caption in document.iter("figcaption")]
    # The mean of the seeds there, and the other setting's value.
    name, mean, other, _, minutes = captions[0].split()
    assert name == "mean_return"
    assert float(mean) == pytest.approx(1.5 * (6 * float(minutes) - 1), rel=0.03)
    assert float(other) == pytest.approx(6 * float(minutes) - 1, rel=0.05)


def test_mistakes_are_answered_and_nothing_is_written(
    runs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = trained(tmp_path / "logs/cartpole/empty", [])
    before = sorted(tmp_path.rglob("*"))
    for words, said in (
        ([], "nothing to compare"),
        (runs[:1], "nothing to compare"),
        ([*runs, runs[0]], "same run"),
        ([runs[0], str(empty)], "no rows yet"),
        ([runs[0], "nowhere"], "nowhere does not exist"),
        ([*runs, "--metric", "eror"], "'error'"),
        ([*runs, "--until", "eror < 1"], "error"),
        ([*runs, "--until", "error"], "quotation marks"),
        ([*runs, "--output", str(tmp_path / "page.pdf")], ".html"),
    ):
        assert run_command(mjfleet, ["compare", *words]) == 2
        shown = capsys.readouterr()
        assert said in shown.err
        assert shown.err.count("\n") == 1
        assert not shown.out
    assert sorted(tmp_path.rglob("*")) == before


def test_what_stays_the_same_is_not_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    # The second seed never succeeds: a mean over both counts its zeros.
    rising, never = [0.1 * i for i in range(10)], [0.0] * 10
    same = {"wait_seconds": never, "loss/nan": ["nan"] * 10, "huge": ["1e300"] * 10}
    for seed, successes in ((1, rising), (2, never)):
        folder = Path(f"logs/cartpole/group/seed_{seed}")
        trained(folder, [5.0] * 10, {"task/success": successes, **same}, seed=seed)
    Path("logs/cartpole/group/group.json").write_text('{"task": "cartpole", "kind": "seeds"}')
    trained(Path("logs/cartpole/one"), [5.0], same)
    for run, drawn in (("group", ["task/success"]), ("seed_1", ["task/success"]), ("one", [])):
        assert run_command(mjfleet, ["report", run, "--output", "page.html"]) == 0
        text = Path("page.html").read_text()
        html5lib.HTMLParser(strict=True).parse(text)
        assert re.findall('data-column="(.*?)"', text) == drawn
        assert "<code>mean_return</code>" in text  # In the table of all numbers.
        document = html5lib.parse(text, namespaceHTMLElements=False)
        (data,) = (each.text for each in document.iter("script") if each.get("id"))
        if run == "group":
            mean = json.loads(data or "")[0]["columns"]["task/success"]
            assert mean == pytest.approx([value / 2 for value in rising])
        assert run_command(mjfleet, ["plot", run, "--output", "curves.svg"]) == 0
        labels = re.findall("<!-- (task/success|mean_return|wait_seconds) -->",
                            Path("curves.svg").read_text())  # fmt: skip
        assert labels == (drawn or ["mean_return"])  # One iteration: all that there is.
    assert run_command(mjfleet, ["compare", "group", "one"]) == 0
    capsys.readouterr()


def test_a_page_is_written_though_nobody_reads_the_tables(runs: list[str], tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    page = tmp_path / "page.html"
    with open(writer, "w") as pipe, redirect_stdout(pipe), pytest.raises(SystemExit):
        run_command(mjfleet, ["compare", *runs, "--output", str(page)])
    assert page.exists()
