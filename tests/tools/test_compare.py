"""Several runs side by side: tables, pages and pictures of runs that were written by hand."""

import json
import os
import pty
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import html5lib
import numpy as np
import pytest
from matplotlib import image

from mjfleet.tools.report.curves import bootstrap
from mjfleet.tools.report.results import as_cell

from ..conftest import POISON, Output, Refusal, run_here
from .browser import captions_after_pointing
from .test_list_runs import write_run

EVIL = "<img src=x onerror=alert(1)> & </script>"
STEPS = 1000  # Steps of an iteration.


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
def runs(here: Path) -> list[str]:
    """A group of two seeds, of which the second learns half as fast, and another run."""
    root = Path("logs/cartpole")
    error = [1.0 - i / 100 for i in range(60)]
    columns = {"task/error": error, "eval/return": [7.0]}
    trained(root / "ab/seed_1", [2.0 * i for i in range(60)], columns)
    trained(root / "ab/seed_2", [1.0 * i for i in range(60)], {"task/error": [1.0]}, seed=2)
    group(root / "ab")
    trained(root / "c", [*range(40), *[5.0] * 5], gamma=0.99)
    return ["ab", "c"]


@pytest.fixture
def as_json(printed: Output) -> Callable[..., dict[str, Any]]:
    """What `compare --json` prints."""
    return lambda *flags: json.loads(printed("compare", *flags, "--json"))


def entries(page: Path) -> list[dict[str, Any]]:
    """The curves that a page draws; the page is HTML without a mistake."""
    html5lib.HTMLParser(strict=True).parse(page.read_text())
    document = html5lib.parse(page.read_text(), namespaceHTMLElements=False)
    (data,) = (script.text for script in document.iter("script") if script.get("id"))
    return json.loads(data or "")


def change_record(folder: Path, **entries: Any) -> None:
    record = folder / "run.json"
    record.write_text(json.dumps(json.loads(record.read_text()) | entries))


def test_a_seed_group_is_one_row(runs: list[str], as_json: Any) -> None:
    change_record(trained(Path("logs/cartpole/ab/seed_3"), [9.0]), status="failed")  # Left out.
    found = as_json(*runs, "--columns", "task/")
    returns, error, settings = found["tables"].values()
    assert found["runs"] == {
        "ab": [f"logs/cartpole/ab/seed_{n}" for n in (1, 2)], "c": ["logs/cartpole/c"],
    }  # fmt: skip
    both, other = returns["1 ab"], returns["2 c"]
    assert settings == {"agent.algorithm.gamma": {"1": "0.9", "2": "0.99"}}
    assert (both["runs"], both["iterations"]) == ("2", [60, 60])
    assert both["last mean_return"] == [118, 59]
    assert both["best eval/return"] == [7, None]
    assert (other["last mean_return"], other["best mean_return"]) == ([5], [39])
    assert other["best eval/return"] == [None]
    assert error["1 ab"]["min"] == [pytest.approx(0.41), 1.0]
    assert error["2 c"] == {key: [None] for key in ("last", "min", "max")}
    # Runs that are named one by one are rows of their own; code and workers may differ, too.
    assert list(as_json("seed_1", "seed_2")["tables"]) == ["Returns"]
    two = trained(Path("logs/cartpole/two"), [1.0], {"world_size": [2]})
    change_record(two, attempts=[{"code": {"hash": "0123456789"}}])
    _, settings = as_json("seed_1", "two")["tables"].values()
    assert {name: other["2"] for name, other in settings.items()} == {
        "workers": "2", "code": "01234567"
    }  # fmt: skip


def test_trials_of_a_sweep_with_a_damaged_record_are_no_seed_group(refusal: Refusal) -> None:
    folder = Path("logs/cartpole/sweep")
    trained(folder / "trial_0", [1.0])
    trained(folder / "trial_1", [2.0], gamma=0.5)
    group(folder, "sweep")
    for damaged in ("{", '{"task": "cartpole"}'):
        (folder / "group.json").write_text(damaged)
        assert f"{folder}/group.json: " in refusal("compare", "sweep")


def test_a_cell_is_the_mean_of_the_runs_and_its_interval() -> None:
    assert as_cell([118, 59]) == "88.5 [59, 118]"
    assert as_cell([7.0, None]) == "7 (1 of 2)"
    assert as_cell([None, None]) == as_cell(None) == "-"
    assert as_cell([12345.6]) == "12,346"
    assert as_cell(9999.9) == "10,000"


def test_curves_are_means_where_runs_have_values(tmp_path: Path) -> None:
    evaluated = {"eval/return": [*[""] * 7, 8.0]}
    folder = tmp_path / "cartpole/first"
    for seed in (1, 2):
        trained(folder / f"seed_{seed}", [float(seed)] * (10 + seed), evaluated, seed=seed)
    group(folder)
    assert run_here("report", str(folder)) == 0
    (curves,) = entries(folder / "report.html")
    # One evaluation is one point; where a run has ended, the other is drawn.
    assert [v for v in curves["eval/return"][0] if v] == [8.0]
    mean, low, high = curves["mean_return"]
    assert mean == [1.5] * 11 + [2.0]
    assert (low, high) == ([1.0] * 11 + [2.0], [2.0] * 12)
    assert curves["million steps"] == [pytest.approx([STEPS / 1e6 * n for n in range(1, 13)])]


def test_what_stays_the_same_is_not_drawn(tmp_path: Path) -> None:
    # The second seed never succeeds: a mean over both counts its zeros.
    rising, never = [0.1 * i for i in range(10)], [0.0] * 10
    same = {"wait_seconds": never, "loss/nan": ["nan"] * 10, "huge": ["1e300"] * 10}
    folder = tmp_path / "cartpole/group"
    for seed, successes in ((1, rising), (2, never)):
        columns = {"task/success": successes, **same}
        trained(folder / f"seed_{seed}", [5.0] * 10, columns, seed=seed)
    group(folder)
    for run, drawn in ((folder, ["task/success"]), (folder / "seed_2", [])):
        assert run_here("report", str(run)) == 0
        page = run / "report.html"
        assert re.findall('data-column="(.*?)"', page.read_text()) == drawn
        assert "<code>mean_return</code>" in page.read_text()  # In the table of all numbers.
        if drawn:
            mean = entries(page)[0]["task/success"][0]
            assert mean == pytest.approx([value / 2 for value in rising])


def test_tables_fit_80_columns_and_a_row_is_a_line_in_a_pipe(
    output: Output, runs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    piped = output("mjfleet", "compare", *runs, "--columns", "task/error", prelude=POISON)
    lines = [" ".join(line.split()) for line in piped.splitlines()]
    for line in (
        "1 ab 2 60 [60, 60] 88.5 [59, 118] 88.5 [59, 118] 7 (1 of 2)",
        "2 c 1 45 5 39 -",
        "agent.algorithm.gamma 0.9 0.99",
    ):
        assert line in lines, piped

    listed = output("mjfleet", "runs", prelude=POISON)
    assert "cartpole/ab finished 2/2 runs" in " ".join(listed.split())

    reader, writer = pty.openpty()
    with open(reader, "rb", buffering=0) as screen, open(writer, "w") as terminal:
        monkeypatch.setenv("COLUMNS", "80")
        with redirect_stdout(terminal):
            assert run_here("compare", *runs) == 0
        shown = re.sub(r"\x1b\[[0-9;]*m", "", screen.read(4000).decode()).splitlines()
    assert max(map(len, shown)) <= 80


def test_nobody_reads_the_tables(runs: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as pipe, redirect_stdout(pipe), pytest.raises(SystemExit):
        run_here("compare", *runs)
    assert capfd.readouterr().err == ""


@pytest.mark.usefixtures("here")
def test_a_sweep_has_a_row_for_each_trial_and_its_page_the_results(as_json: Any) -> None:
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
    tables = as_json("swept")["tables"]
    assert list(tables["Returns"]) == ["1 swept/trial_0", "2 swept/trial_1"]
    assert "agent.algorithm.gamma" in tables["What differs in the configuration"]
    assert run_here("report", "swept") == 0
    page = folder / "report.html"
    assert len(entries(page)) == 2
    text = page.read_text()
    assert EVIL not in text
    for part in ("A sweep of cartpole", "0.9,0.99", "88%", "onerror=alert(1)", "10,000"):
        assert part in text, part


def test_a_page_compares_runs_and_a_browser_draws_it(runs: list[str], tmp_path: Path) -> None:
    change_record(Path("logs/cartpole/c"), task=EVIL)
    page = tmp_path / "page.html"
    assert run_here("report", *runs, "--output", str(page)) == 0
    assert len(entries(page)) == 2
    text = page.read_text()
    assert EVIL not in text
    assert "What differs in the configuration" in text
    # What is constant in all of them is not drawn.
    assert re.findall('data-column="(.*?)"', text) == ["mean_return", "task/error"]
    if shutil.which("chromium") is None:
        return
    captions = captions_after_pointing(page, tmp_path, curves=2)
    # The mean of the seeds there, and the other setting's value.
    name, mean, other, _, minutes = captions[0].split()
    assert name == "mean_return"
    assert float(mean) == pytest.approx(1.5 * (6 * float(minutes) - 1), rel=0.03)
    assert float(other) == pytest.approx(6 * float(minutes) - 1, rel=0.05)


def test_a_forks_minutes_are_its_own(here: Path) -> None:
    """Its steps include those of the run from whose checkpoint it has begun."""
    metrics = trained(Path("logs/cartpole/fork"), [1.0, 2.0, 3.0, 4.0]) / "metrics.csv"
    header, _, _, *own = metrics.read_text().splitlines(keepends=True)
    metrics.write_text("".join([header, *own]))
    assert run_here("report", "fork") == 0
    (curves,) = entries(Path("logs/cartpole/fork/report.html"))
    assert curves["million steps"] == [[0.003, 0.004]]
    assert curves["minutes"] == [pytest.approx([1 / 6, 2 / 6])]


def test_runs_become_pictures(runs: list[str]) -> None:
    assert run_here("plot", "seed_1") == 0
    pixels = image.imread("logs/cartpole/ab/seed_1/plots/curves.png")
    assert pixels.shape[0] > 300
    assert pixels.std() > 0.05  # Something is drawn.
    flags = ("--columns", "eval/", "mean_return")
    for command, shown in (
        (["plot", *runs, "--output", "curves.svg", "--x", "minutes", *flags], "minutes"),
        (["report", *runs, "--png", "curves.svg", *flags], "million steps"),
    ):
        assert run_here(*command) == 0
        drawn = Path("curves.svg").read_text()
        texts = re.findall("<!-- (minutes|million steps|mean_return|eval/return|ab|c) -->", drawn)
        assert texts == [shown, "eval/return", shown, "mean_return", "ab", "c"]
    assert not Path("logs/cartpole/c/report.html").exists()


def test_mistakes_are_answered_and_nothing_is_written(runs: list[str], refusal: Refusal) -> None:
    trained(Path("logs/cartpole/empty"), [])
    trained(Path("logs/cartpole/odd"), [1.0])
    Path("logs/cartpole/odd/config.yaml").write_text("- 1")
    trained(Path("logs/cartpole/blank"), [1.0], {"task/mood": []})
    Path("a_file").touch()
    Path("a_folder").mkdir()
    Path("a_folder.html").mkdir()
    for command, arguments, problem in (
        ("compare", [], "one or more"),
        ("compare", ["c"], "nothing to compare"),
        ("compare", ["c", "empty"], "nothing to compare"),
        ("compare", ["c", "odd"], "config.yaml"),
        ("compare", ["c", "nowhere"], "nowhere does not exist"),
        ("report", [""], "no run is named"),
        ("compare", [*runs, "--columns", "eror"], "task/error"),
        ("report", ["a_folder"], "a_folder is no run directory"),
        ("report", ["c", "a_folder"], "a_folder is no run directory"),
        ("report", ["a_file"], "a_file is no run directory"),
        ("plot", ["a_folder"], "a_folder is no run directory"),
        ("compare", [*runs, "logs/cartpole"], "logs/cartpole is no run directory"),
        ("plot", ["logs/cartpole/c/metrics.csv"], "metrics.csv is no run directory"),
        ("report", ["c", "--output", "a_folder.html"], "a_folder.html: Is a directory"),
        ("report", ["c", "--output", "a_file"], "must end in .html"),
        ("report", ["c", "--output", "a_file/page.html"], "a_file: Not a directory"),
        ("report", ["c", "--png", "curves.jpeg"], ".png, .svg, .pdf"),
        ("plot", ["c", "--output", "curves.jpeg"], ".png, .svg, .pdf"),
        ("plot", ["empty"], "nothing to draw"),
        ("plot", ["empty", "--columns", "mean_return"], "no run has an iteration yet"),
        ("plot", ["blank", "--columns", "task/mood"], "these columns have no values yet"),
    ):
        assert problem in refusal(command, *arguments)


def test_an_interval_holds_the_true_mean_as_often_as_it_says() -> None:
    samples = np.random.default_rng(1).normal(3.0, 2.0, size=(20, 400))  # 400 times 20 runs.
    mean, low, high = bootstrap(samples)
    assert mean == pytest.approx(samples.mean(axis=0))
    assert 0.88 < np.mean((low < 3.0) & (high > 3.0)) < 0.97  # So few samples give less.
    assert np.array_equal(bootstrap(samples)[1], low)
    samples[3:, 0] = samples[:, 1] = np.nan
    assert bootstrap(samples)[0, 0] == pytest.approx(samples[:3, 0].mean())
    assert np.isnan(bootstrap(samples)[:, 1]).all()
