"""`mjfleet bench gpu`: its plan, its limits and its report, which need no GPU."""

import json
import sys
import time
from pathlib import Path

from mjfleet.bench.gpu import Part, make_tables, run_parts

from ..cli.test_cli import POISON
from ..conftest import Run
from .tiny import measured


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_a_dry_run_prints_the_parts_in_order_and_writes_nothing(run: Run, tmp_path: Path) -> None:
    result = run("mjfleet", "bench", "gpu", "--dry-run", prelude=POISON)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    most = "doctor build-cart build-go1 conditional tests speed-cart speed-go1 graphs one two"
    parts = [*most.split(), "memcheck", "profile", "mjlab"]
    assert len(lines) == len(parts)
    assert all(part in line for part, line in zip(parts, lines, strict=True))
    assert all(float(line.split()[0]) > 0 for line in lines)
    assert not list(tmp_path.iterdir())


def test_parts_that_fail_hang_or_lack_something_end_no_other(tmp_path: Path) -> None:
    told = {"samples": [{"speed": 2.5}, {"speed": 3}]}
    parts = [
        Part("figures", 60, python('print(\'text\'); print(\'{"a": {"b": 1, "c": true}}\')')),
        Part("fails", 60, python("import sys; print('begun'); sys.exit('too bad')")),
        Part("hangs", 6, python("import time; print('begun', flush=True); time.sleep(60)")),
        Part("lacks", 60, python("assert False"), "a thing"),
        Part("text", 60, python("print('first'); print('last')")),
        Part("file", 60, python(f"open('x.json', 'w').write('{json.dumps(told)}')")),
    ]
    samples = {sample["part"]: sample for sample in run_parts(parts, 600, tmp_path)}
    assert list(samples) == [part.name for part in parts]
    assert samples["figures"]["status"] == "ok"
    assert samples["figures"]["found"] == {"a": {"b": 1, "c": True}}
    assert samples["fails"]["status"] == "ended with exit code 1"
    assert "begun" in samples["fails"]["output"]
    assert "too bad" in samples["fails"]["output"]
    assert samples["hangs"]["status"] == "stopped after 6 s"
    assert samples["hangs"]["output"] == "begun"
    assert samples["lacks"]["status"] == "needs a thing"
    assert samples["text"]["found"] == {"last line": "last"}
    assert samples["file"]["found"] == {"0": {"speed": 2.5}, "1": {"speed": 3}}
    assert not list(tmp_path.iterdir())
    summary, figures, *_ = make_tables(list(samples.values()))
    assert [row[0] for row in summary.rows] == list(samples)
    assert figures.rows == [["a b", 1], ["a c", "True"]]


def test_parts_after_the_last_minute_are_named(tmp_path: Path) -> None:
    hang = python("import time; time.sleep(60)")
    start = time.monotonic()
    first, second = run_parts([Part("long", 60, hang), Part("next", 60, hang)], 6, tmp_path)
    assert time.monotonic() - start < 30
    assert first["status"] == "stopped after 6 s"
    assert second["status"] == "not reached"


def test_parts_run_on_the_cpu_and_earlier_results_are_kept(run: Run, tmp_path: Path) -> None:
    parts = ("build-cartpole-balance", "graphs-and-calls", "one-rank-by-nccl", "profile")
    flags = ("--num-envs", "16", "--parts")
    data = measured(run, tmp_path, "gpu", "cartpole-balance", *flags, *parts)
    samples = {sample["part"]: sample for sample in data["samples"]}
    assert {name: sample["status"] == "ok" for name, sample in samples.items()} == {
        "build-cartpole-balance": True,
        "graphs-and-calls": True,
        "one-rank-by-nccl": True,
        "profile": False,  # It asks CUDA.
    }
    assert samples["build-cartpole-balance"]["found"]["finite"]
    for how in ("graphs", "calls"):
        found = samples["graphs-and-calls"]["found"][how]
        assert found["largest error of a rollout's first actions"] < 1e-5
    assert samples["one-rank-by-nccl"]["found"]["reduces and gathers"]
    assert "NVIDIA" in samples["profile"]["output"]
    again = ("bench", "gpu", *flags, "memcheck", "--gpu-ids", "None", "--minutes", "0.01")
    assert run("mjfleet", *again).returncode == 0
    (path,) = (tmp_path / "benchmarks").glob("*.json")
    names = [sample["part"] for sample in json.loads(path.read_text())["samples"]]
    assert names == [*parts, "memcheck"]
