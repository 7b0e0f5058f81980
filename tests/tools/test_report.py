"""`mjfleet report`: the page of a real run, in every state that a run can be in, in a browser."""

import json
import os
import shutil
import subprocess
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import html5lib
import pytest

from ..conftest import Output, only_run, run_here, run_warm
from .browser import captions_after_pointing

SHORT = ("--env.num-envs", "8", "--env.episode-seconds", "1", "--agent.max-iterations", "4",
         "--agent.num-steps-per-env", "60", "--agent.no-init-at-random-ep-len",
         "--agent.algorithm.learning-rate", "5e-4")  # fmt: skip
EVIL = "<img src=x onerror=alert(1)> & </script>"

Page = Callable[..., str]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory, warm: "subprocess.Popen[str]") -> Path:
    """The directory of a run."""
    root = tmp_path_factory.mktemp("original")
    done = run_warm(warm, "train", ["cartpole-balance", *SHORT], dict(os.environ), root)
    assert done.returncode == 0, done.stderr
    return only_run(root)


@pytest.fixture
def trained(original: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return shutil.copytree(original, tmp_path / "cartpole-balance" / original.name)


@pytest.fixture
def page(printed: Output) -> Page:
    """Report on a run directory; returns the page, which is HTML without a mistake."""

    def write(run_dir: Path) -> str:
        assert printed("report", str(run_dir)) == f"wrote {run_dir / 'report.html'}\n"
        text = (run_dir / "report.html").read_text()
        html5lib.HTMLParser(strict=True).parse(text)
        return text

    return write


def test_a_real_run_is_listed(trained: Path, printed: Output) -> None:
    (found,) = json.loads(printed("runs", "--json", "--log-root", str(trained.parents[1])))
    assert found["run"] == f"cartpole-balance/{trained.name}"
    assert (found["status"], found["problem"]) == ("finished", None)
    assert found["iterations"] == found["max_iterations"] == 4
    assert found["bytes"] == sum(p.stat().st_size for p in trained.rglob("*") if p.is_file())


def test_a_page_tells_all_of_a_run(trained: Path, page: Page) -> None:
    (trained / "videos").mkdir()
    (trained / "videos/iteration_4.mp4").write_bytes(b"a video")
    text = page(trained)
    record = json.loads((trained / "run.json").read_text())
    shown = text_of(text)
    for what in (
        f"cartpole-balance/{trained.name}", "finished", "4 of 4",
        "environment steps 1920",
        "--agent.algorithm.learning-rate 0.0005 0.001", record["host"], record["versions"]["torch"],
        "engine native", "iteration 4",
    ):  # fmt: skip
        assert what in shown, what
    for column in ("mean_return", "reward/balance", "loss/value", "collect_seconds"):
        assert f'data-column="{column}"' in text
    assert b64encode(b"a video").decode() in text
    # Complete in itself: it asks for nothing.
    document = html5lib.parse(text, namespaceHTMLElements=False)
    targets = [node.get(name) for node in document.iter() for name in ("src", "href")]
    assert all(target.startswith(("data:", "#")) for target in targets if target is not None)


def text_of(page: str) -> str:
    """What a reader of a page reads, in one line."""
    document = html5lib.parse(page, namespaceHTMLElements=False)
    body = document.find("body")
    assert body is not None
    for parent in list(body.iter()):
        for script in parent.findall("script"):
            parent.remove(script)
    return " ".join(" ".join(body.itertext()).split())


def test_every_state_of_a_run_has_a_page(trained: Path, page: Page) -> None:
    record = json.loads((trained / "run.json").read_text())

    def with_record(**changes: Any) -> str:
        (trained / "run.json").write_text(json.dumps(record | changes))
        return text_of(page(trained))

    # It failed, with a text that no browser must take for more than that; then it went on.
    failure = {
        "rank": 1, "iteration": 3, "kind": "RuntimeError", "message": EVIL, "traceback": EVIL,
        "is_secondary": False, "time": 1.0, "log": [EVIL],
    }  # fmt: skip
    (trained / "failures/attempt_1").mkdir(parents=True)
    (trained / "failures/attempt_1/rank1.json").write_text(json.dumps(failure))
    (trained / "failures/rank0.json").write_text("half a rec")
    first = record["attempts"][0]
    failed = first | {"status": "failed", "cause": EVIL}
    again = first | {"checkpoint": "model_2.pt", "is_restart": True, "cause": "a second fault"}
    shown = with_record(status="failed", attempts=[failed, again])
    for what in ("failed a second fault", "RuntimeError on rank 1 in iteration 3", EVIL,
                 "in 2 attempts", "model_2.pt by itself", "failures/rank0.json"):  # fmt: skip
        assert what in shown, what
    assert EVIL not in (trained / "report.html").read_text()

    # A line of metrics.csv is damaged; the run is of before some entries were recorded.
    with (trained / "metrics.csv").open("a") as file:
        file.write("5,garbage\n")
    (trained / "run.json").write_text('{"task": "cartpole-balance"}')
    shown = text_of(page(trained))
    assert "does not record its task's defaults" in shown

    (trained / "run.json").write_text("{")
    assert "run.json: Expecting" in text_of(page(trained))

    # It has just begun.
    (trained / "metrics.csv").unlink()
    shown = with_record(task="unheard-of", status="running", ended=None)
    assert "No iteration has been completed yet" in shown


def test_no_code_runs_that_a_run_names(
    trained: Path, page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evil, ran = tmp_path / "evil/task", tmp_path / "ran"
    evil.mkdir(parents=True)
    (evil / "config.py").write_text(f"open({str(ran)!r}, 'w')\n")
    record = json.loads((trained / "run.json").read_text())
    record["plan"]["task_folder"] = str(evil)
    (trained / "run.json").write_text(json.dumps(record))
    config = (trained / "config.yaml").read_text()
    config = config.replace("tasks_dir: null", f"tasks_dir: {evil.parent}")
    (trained / "config.yaml").write_text(config)
    monkeypatch.chdir(trained.parents[1])
    (tmp_path / "tasks").symlink_to(evil.parent)  # `train` searches a folder of this name.
    page(trained)
    run = str(trained)
    for command in (["runs", "--log-root", "."], ["plot", run, "--output", "curves.png"]):
        assert run_here(*command) == 0
    assert not ran.exists()


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
def test_a_browser_draws_it_without_an_error_or_a_request(
    trained: Path, page: Page, tmp_path: Path
) -> None:
    text = page(trained)
    curves = text.count("data-column=")
    assert curves > 10
    captions = captions_after_pointing(trained / "report.html", tmp_path, curves)
    # All curves show their value there.
    assert sum(" at " in caption for caption in captions) == curves
