"""Several runs side by side: tables, pages and pictures of runs that were written by hand."""

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
import numpy as np
import pytest
from matplotlib import image

from mjfleet.cli.dispatcher import mjfleet
from mjfleet.cli.run_command import run_command
from mjfleet.tools.report.curves import bootstrap
from mjfleet.tools.report.results import Estimate
from mjfleet.tools.report.threshold import Threshold, reached

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


def group(folder: Path, kind: str = "seeds", **entries: Any) -> str:
    """Make a folder with runs a group; return its name."""
    record = {"task": "cartpole", "kind": kind, "status": "finished", **entries}
    (folder / "group.json").write_text(json.dumps(record))
    return folder.name


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Two seeds of one setting, of which the second learns half as fast, and another setting."""
    monkeypatch.chdir(tmp_path)
    root = Path("logs/cartpole")
    error = [1.0 - i / 100 for i in range(60)]
    trained(root / "a", [2.0 * i for i in range(60)], {"error": error, "eval/return": [7.0]})
    trained(root / "b", range(60), {"error": [1.0]}, seed=2)
    trained(root / "c", [*range(40), *[5.0] * 5], gamma=0.99)
    return ["a", "b", "c"]


def as_json(capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, Any]:
    """What `compare --json` prints."""
    assert run_command(mjfleet, ["compare", *flags, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def entries(page: Path) -> list[dict[str, Any]]:
    """The curves that a page draws; the page is HTML without a mistake."""
    html5lib.HTMLParser(strict=True).parse(page.read_text())
    document = html5lib.parse(page.read_text(), namespaceHTMLElements=False)
    (data,) = (script.text for script in document.iter("script") if script.get("id"))
    return json.loads(data or "")


def test_seeds_are_one_row_and_rows_keep_the_names_that_were_given(
    runs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    found = as_json(capsys, *runs, "--columns", "error", "--until", "mean_return > 30")
    returns, error, until, settings = found["tables"].values()
    assert found["runs"] == {"a, b": [f"logs/cartpole/{n}" for n in "ab"], "c": ["logs/cartpole/c"]}
    both, other = returns["1 a, b"], returns["2 c"]
    assert settings == {"agent.algorithm.gamma": {"1": "0.9", "2": "0.99"}}
    last = {"mean": 88.5, "low": 59.0, "high": 118.0, "runs": 2, "of": 2}
    assert (both["runs"], both["iterations"], both["last mean_return"]) == (2, "60", last)
    of_one = {"low": None, "high": None, "runs": 1, "of": 1}
    assert other["last mean_return"] == {"mean": 5.0, **of_one}
    assert other["best mean_return"] == {"mean": 39.0, **of_one}
    assert both["best eval/return"]["runs"] == 1  # Of two.
    assert other["best eval/return"] is None
    assert error["1 a, b"]["min"]["mean"] == pytest.approx((0.41 + 1.0) / 2)
    assert error["2 c"] == dict.fromkeys(("last", "min", "max"))
    # The means over ten iterations are greater than 30 from iteration 21, 36 and 36 on.
    steps, minutes = until["1 a, b"].values()
    assert steps["runs"] == minutes["runs"] == 2
    assert steps["mean"] == pytest.approx(STEPS / 1e6 * (21 + 36) / 2)
    assert minutes["mean"] == pytest.approx(10 / 60 * (21 + 36) / 2)
    assert until["2 c"]["million steps"]["mean"] == pytest.approx(STEPS / 1e6 * 36)

    # Without a condition: 90% of 109, the best mean over ten, which one of the runs has reached.
    until = as_json(capsys, *runs)["tables"]["Until mean_return > 98.1 (90% of the best)"]
    assert until["1 a, b"]["minutes"]["runs"] == 1
    assert until["2 c"]["minutes"] is None


def test_groups_that_differ_in_seeds_alone_are_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    evaluated = {"eval/return": [*[""] * 7, 8.0]}
    for name, seeds in (("first", (1, 2)), ("second", (3, 4))):
        folder = Path("logs/cartpole") / name
        for seed in seeds:
            trained(folder / f"seed_{seed}", [float(seed)] * (10 + seed), evaluated, seed=seed)
        group(folder)
    rows = as_json(capsys, "first", "logs/cartpole/second")["tables"]["Returns"]
    assert list(rows) == ["1 first", "2 logs/cartpole/second"]
    assert [row["iterations"] for row in rows.values()] == ["11 to 12", "13 to 14"]
    assert rows["1 first"]["last mean_return"]["mean"] == 1.5
    assert len(as_json(capsys, "first")["tables"]["Returns"]) == 1
    for names in (["first"], ["first", "second"]):
        assert run_command(mjfleet, ["report", *names, "--output", "page.html"]) == 0
        found = entries(Path("page.html"))
        assert len(found) == len(names)
        # One evaluation is one point; where a run has ended, the other is drawn.
        assert [v for v in found[0]["columns"]["eval/return"][0] if v] == [8.0]
        mean, low, high = found[0]["columns"]["mean_return"]
        assert mean == [1.5] * 11 + [2.0]
        assert (low, high) == ([1.0] * 11 + [2.0], [2.0] * 12)


def test_tables_fit_80_columns_and_a_row_is_a_line_in_a_pipe(
    run: Run, runs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ("--columns", "error", "eval/", "--until", "mean_return > 900")
    piped = run("mjfleet", "compare", *runs, *flags, prelude=POISON)
    assert piped.returncode == 0, piped.stderr
    lines = [" ".join(line.split()) for line in piped.stdout.splitlines()]
    for line in (
        "1 a, b 2 60 88.5 [59, 118] 88.5 [59, 118] 7 (1 of 2)",
        "2 c 1 45 5 39 -",
        "Until mean_return > 900",
        "1 a, b - -",
        "agent.algorithm.gamma 0.9 0.99",
    ):
        assert line in lines, piped.stdout

    reader, writer = pty.openpty()
    with open(reader, "rb", buffering=0) as screen, open(writer, "w") as terminal:
        monkeypatch.setenv("COLUMNS", "80")
        with redirect_stdout(terminal):
            assert run_command(mjfleet, ["compare", *runs]) == 0
        shown = re.sub(r"\x1b\[[0-9;]*m", "", screen.read(4000).decode()).splitlines()
    assert max(map(len, shown)) <= 80


def test_nobody_reads_the_tables(runs: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as pipe, redirect_stdout(pipe), pytest.raises(SystemExit):
        run_command(mjfleet, ["compare", *runs])
    assert capfd.readouterr().err == ""


def test_a_note_names_what_makes_returns_differ(
    runs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert as_json(capsys, *runs)["note"] is None
    for name, change, what in (
        ("run.json", {"task": "other"}, "the task"),
        ("run.json", {"attempts": [{"code": {"hash": "0123456789abcdef"}}]}, "the task's code"),
        ("config.yaml", "env: {weights: {slip: -1.0}}", "env.weights.slip"),
        ("config.yaml", "env: {healthy_reward: 5.0}", "env.healthy_reward"),
        ("metrics.csv", ",reward/slip", "the reward terms"),
    ):
        file = Path("logs/cartpole/c", name)
        before = file.read_text()
        if isinstance(change, dict):
            file.write_text(json.dumps(json.loads(before) | change))
        elif name == "metrics.csv":
            header, *rest = before.splitlines()
            file.write_text("\n".join([header + change, *(line + ",1" for line in rest), ""]))
        else:
            file.write_text(before + change)
        assert run_command(mjfleet, ["compare", *runs]) == 0
        note = f"Returns may be of different rewards, since these differ: {what}."
        assert note in " ".join(capsys.readouterr().out.split())
        file.write_text(before)


def test_a_sweep_has_a_row_for_each_setting_and_its_page_the_trials(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = Path("logs/cartpole/swept")
    trained(folder / "trial_0", [1.0] * 10)
    trained(folder / "trial_1", [2.0] * 10, gamma=0.99)
    gamma = {"tried": "0.9,0.99", "best": 0.99, "default": 0.9, "importance": 0.875}
    trials = [
        {"number": 1, "status": "finished", "value": 2.0, "steps": 10000, "params": {"g": 0.99}},
        {"number": 7, "status": "failed", "cause": EVIL, "value": None, "params": {"g": 0.9}},
    ]
    results = {"metric": "eval/return", "best": 1, "fields": {"g": gamma}, "trials": trials}
    group(folder, "sweep", results=results)
    rows = as_json(capsys, "swept")["tables"]["Returns"]
    assert list(rows) == ["1 swept (gamma 0.9)", "2 swept (gamma 0.99)"]
    assert run_command(mjfleet, ["report", "swept"]) == 0
    page = folder / "report.html"
    assert len(entries(page)) == 2
    text = page.read_text()
    assert EVIL not in text
    for part in ("A sweep of cartpole", "0.9,0.99", "88%", "onerror=alert(1)", "10,000"):
        assert part in text, part


def test_a_page_compares_runs_and_a_browser_draws_it(runs: list[str], tmp_path: Path) -> None:
    record = Path("logs/cartpole/c/run.json")
    record.write_text(json.dumps(json.loads(record.read_text()) | {"task": EVIL}))
    page = tmp_path / "page.html"
    assert run_command(mjfleet, ["report", *runs, "--output", str(page)]) == 0
    assert len(entries(page)) == 2
    text = page.read_text()
    assert EVIL not in text
    assert "Returns may be of different rewards" in text
    assert "What differs in the configuration" in text
    # The return and the error; what is constant in all of them is not drawn.
    assert re.findall('data-column="(.*?)"', text) == ["mean_return", "error"]
    if shutil.which("chromium") is None:
        return
    document = html5lib.parse(document_after_pointing(text, tmp_path), namespaceHTMLElements=False)
    assert len(list(document.iter("canvas"))) == 2
    captions = ["".join(caption.itertext()) for caption in document.iter("figcaption")]
    # The mean of the seeds there, and the other setting's value.
    name, mean, other, _, minutes = captions[0].split()
    assert name == "mean_return"
    assert float(mean) == pytest.approx(1.5 * (6 * float(minutes) - 1), rel=0.03)
    assert float(other) == pytest.approx(6 * float(minutes) - 1, rel=0.05)


def test_runs_become_pictures(runs: list[str]) -> None:
    assert run_command(mjfleet, ["plot", "a"]) == 0
    pixels = image.imread("logs/cartpole/a/plots/curves.png")
    assert pixels.shape[0] > 300
    assert pixels.std() > 0.05  # Something is drawn.
    flags = ("--x", "minutes", "--png", "curves.svg", "--columns", "eval/", "mean_return")
    assert run_command(mjfleet, ["report", *runs, *flags]) == 0
    drawn = Path("curves.svg").read_text()
    texts = re.findall("<!-- (minutes|million steps|mean_return|eval/return|a, b|c|b) -->", drawn)
    assert texts == ["minutes", "eval/return", "minutes", "mean_return", "a, b", "c"]
    assert not Path("logs/cartpole/c/report.html").exists()


def test_mistakes_are_answered_and_nothing_is_written(
    runs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(Path("logs/cartpole/empty"), [])
    Path("a_file").touch()
    Path("a_folder").mkdir()
    before = sorted(tmp_path.rglob("*"))
    for command, arguments, problem in (
        ("compare", [], "one or more"),
        ("compare", ["a"], "nothing to compare"),
        ("compare", [*runs, "logs/cartpole/a"], "same run"),
        ("compare", ["a", "empty"], "no iterations"),
        ("compare", ["a", "nowhere"], "nowhere does not exist"),
        ("compare", [*runs, "--columns", "eror"], "error"),
        ("compare", [*runs, "--until", "eror < 1"], "error"),
        ("compare", [*runs, "--until", "error"], "quotation marks"),
        ("report", ["a", "empty"], "no iterations"),
        ("report", ["a_folder"], "a_folder is not a run directory"),
        ("report", ["a_file"], "a_file is not a run directory"),
        ("report", ["a", "--output", "a_folder"], "a_folder: Is a directory"),
        ("report", ["a", "--output", "a_file/page.html"], "a_file: Not a directory"),
        ("report", ["a", "--png", "curves.jpeg"], ".png, .svg, .pdf"),
        ("plot", ["a", "--output", "curves.jpeg"], ".png, .svg, .pdf"),
        ("plot", ["a", "--columns", "world_size"], "error"),
    ):
        assert run_command(mjfleet, [command, *arguments]) == 2
        shown = capsys.readouterr()
        assert problem in shown.err
        assert shown.err.count("\n") == 1
        assert not shown.out
    assert sorted(tmp_path.rglob("*")) == before


def test_what_stays_the_same_is_not_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # The second seed never succeeds: a mean over both counts its zeros.
    rising, never = [0.1 * i for i in range(10)], [0.0] * 10
    same = {"wait_seconds": never, "loss/nan": ["nan"] * 10, "huge": ["1e300"] * 10}
    for seed, successes in ((1, rising), (2, never)):
        folder = Path(f"logs/cartpole/group/seed_{seed}")
        trained(folder, [5.0] * 10, {"task/success": successes, **same}, seed=seed)
    group(Path("logs/cartpole/group"))
    trained(Path("logs/cartpole/one"), [5.0], same)
    for run, drawn in (("group", ["task/success"]), ("seed_1", ["task/success"]), ("one", [])):
        assert run_command(mjfleet, ["report", run, "--output", "page.html"]) == 0
        found = entries(Path("page.html"))
        text = Path("page.html").read_text()
        assert re.findall('data-column="(.*?)"', text) == drawn
        assert "<code>mean_return</code>" in text  # In the table of all numbers.
        if run == "group":
            mean = found[0]["columns"]["task/success"][0]
            assert mean == pytest.approx([value / 2 for value in rising])
        assert run_command(mjfleet, ["plot", run, "--output", "curves.svg"]) == 0
        labels = re.findall("<!-- (task/success|mean_return|wait_seconds) -->",
                            Path("curves.svg").read_text())  # fmt: skip
        assert labels == (drawn or ["mean_return"])  # One iteration: all that there is.


def test_an_interval_holds_the_true_mean_as_often_as_it_says() -> None:
    samples = np.random.default_rng(1).normal(3.0, 2.0, size=(20, 400))  # 400 times 20 runs.
    mean, low, high = bootstrap(samples)
    assert mean == pytest.approx(samples.mean(axis=0))
    assert 0.88 < np.mean((low < 3.0) & (high > 3.0)) < 0.97  # Of so few, a little less than 95%.
    assert np.array_equal(bootstrap(samples)[1], low)
    samples[3:, 0] = np.nan
    assert bootstrap(samples)[0, 0] == pytest.approx(samples[:3, 0].mean())
    assert Estimate.over([None]) is None
    assert Estimate.over([2.5, None]) == Estimate(2.5, None, None, 1, 2)


def test_a_condition_holds_for_the_mean_of_ten_iterations_and_all_at_once() -> None:
    error = Threshold.parse("task/error < 0.5")
    assert str(error) == "task/error < 0.5"

    def when(*values: float) -> int | None:
        return reached([error], {"task/error": np.array(values)})

    assert when(*[1.0] * 10, 0.0, *[1.0] * 9) is None
    # Six of ten below, from iteration 15 on.
    assert when(*[1.0] * 10, *[0.0] * 10) == 15
    assert when(*[0.5] * 20) is when(*[0.0] * 9) is None
    assert when(*[0.0] * 10) == 9
    assert when(np.nan, np.nan, *[0.0] * 12) == 11
    # An evaluation counts alone, since it is a mean already.
    evaluated = {"eval/return": np.array([*[np.nan] * 19, 8.0])}
    assert reached([Threshold.parse("eval/return > 7.5")], evaluated) == 19

    both = [Threshold.parse("up>-1e-1"), Threshold.parse(" down <+2. ")]
    apart = {"up": [0.0] * 10 + [-1.0] * 20, "down": [5.0] * 20 + [0.0] * 10}
    assert reached(both, {name: np.array(values) for name, values in apart.items()}) is None
    together = {"up": np.zeros(30), "down": np.array([5.0] * 15 + [0.0] * 15)}
    assert reached(both, together) == 21
