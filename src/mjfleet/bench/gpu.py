"""`mjfleet bench gpu`: all that a first half hour on a GPU has to show, part after part.

Runs in the launcher. Each part is a child process with a time limit; one that fails does not end
the others. The results are written after each part.
"""

import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from mjfleet.bench.benchmark_options import Counts, Options, Setup
from mjfleet.bench.result import Cell, Result, Table
from mjfleet.config.validation import Positive
from mjfleet.errors import UserError
from mjfleet.registry import discover
from mjfleet.utils.child_process import ChildProcess, python_module
from mjfleet.utils.console import print_error, print_line
from mjfleet.utils.hardware_names import nvml

SHOWN_CHARACTERS = 1500  # Of each output of a part that failed.
LEAST_SECONDS = 5.0  # A part is not begun with less time than this.
NOTES = (
    "Each part has a time limit. For those that --minutes did not reach, run the command again "
    "with --parts and the same --output. The JSON file holds the end of what a failed one printed.",
)


@dataclass(frozen=True, kw_only=True)
class GpuOptions(Options):
    """Check within half an hour that training on a GPU is correct and fast."""

    task = "cartpole-balance"

    also: tuple[str, ...] = ("go1-velocity-flat",)
    """Further tasks; most parts take the last one."""
    num_envs: Counts = (4096, 16384)
    """Numbers of environments for the speed; other parts take the first."""
    iterations: int = 60
    """Iterations of the comparison of CUDA graphs with calls."""
    warmup: int = 3
    """Iterations before those that are measured."""
    repeats: int = 1
    """How often to measure the speed."""
    minutes: Positive = 25.0
    """Minutes for all parts together."""
    parts: tuple[str, ...] = ()
    """Parts to run; none: all. Results of other parts in --output are kept."""
    dry_run: bool = False
    """Print the parts and their time limits; run nothing and write nothing."""


@dataclass(frozen=True)
class Part:
    """A command that shows one thing."""

    name: str
    seconds: float  # Its time limit.
    command: Sequence[str]
    missing: str = ""  # What it needs and this machine lacks.


def gpu(setup: Setup, options: GpuOptions) -> Result:
    """Run the parts in turn, or print them; UserError if there is no such part, or no GPU."""
    parts = {part.name: part for part in make_plan(setup, options)}
    if unknown := set(options.parts) - set(parts):
        raise UserError(f"--parts: there is no part {min(unknown)}. Parts: {', '.join(parts)}.")
    chosen = [part for name, part in parts.items() if name in (options.parts or parts)]
    if options.dry_run:
        for part in chosen:
            needs = f"   needs {part.missing}" if part.missing else ""
            print_line(f"{part.seconds:5.0f} s   {part.name}{needs}")
        raise SystemExit(0)
    if setup.kind == "cpu" and options.gpu_ids is not None:
        raise UserError("there is no GPU; --gpu-ids None tries the parts on the CPU.")
    with nvml() as driver:
        version = str(driver.nvmlSystemGetDriverVersion()) if driver else "none"
    folder, versions = Path(options.output), {"NVIDIA driver": version}
    name = f"gpu-{setup.kind}"
    samples = {sample["part"]: sample for sample in _samples(folder / f"{name}.json")}
    result = Result(name, "A first half hour on a GPU", [], NOTES, versions=versions)
    for sample in run_parts(chosen, 60 * options.minutes, setup.scratch):
        samples[sample["part"]] = sample
        every = list(samples.values())
        result = replace(result, tables=make_tables(every), samples=every)
        result.write(folder)
    return result


def make_plan(setup: Setup, options: GpuOptions) -> list[Part]:
    """Return all parts; what would make the others worthless comes first."""
    tasks, scratch = discover(os.environ), str(setup.scratch)
    names = list(dict.fromkeys([setup.found.name, *options.also]))
    last, most = names[-1], options.num_envs[0]
    indices = [str(index) for index in setup.devices.indices[:1]]
    device = ["--gpu-ids", *(indices or ["None"])]
    pair = ["--gpu-ids", *indices * 2] if indices else ["--cpu-workers", "2"]
    sanitizer = shutil.which("compute-sanitizer", path=f"{os.environ['PATH']}:/usr/local/cuda/bin")
    tests = Path(__file__).parents[3] / "tests"
    mjfleet = python_module("mjfleet.cli.dispatcher")

    def bench(*words: object) -> list[str]:
        rounds = "--warmup", options.warmup, "--repeats", options.repeats, "--output", scratch
        return [*mjfleet, "bench", *map(str, (*words, *rounds)), *device]

    def child(part: str, iterations: int, task: str = last, num_envs: int = most) -> list[str]:
        own = replace(setup, found=tasks.find(task))
        worker = own.worker_args(own.config(num_envs, max_iterations=iterations), setup.scratch)
        return python_module("mjfleet.bench.gpu_child", part, json.dumps(asdict(worker)))

    small = "--env.num-envs", "256", "--agent.max-iterations", "4", "--log-root", scratch
    two = python_module("mjfleet.cli.train", last, *small, *pair, "--backend", "gloo")
    marked = ["-m", "gpu", "-n", "0", "-q", "-p", "no:cacheprovider", "-p", "no:hypothesispytest"]
    # The other files may need packages that are not here.
    files = [str(f) for f in sorted(tests.rglob("test_*.py")) if "mark.gpu" in f.read_text()]
    pytest = python_module("pytest", *marked, *files)
    memcheck = [str(sanitizer), "--error-exitcode", "9", *child("train", 4, num_envs=64)]
    speed = "--iterations", 6, "--num-envs", *options.num_envs
    peer = bench("peer", "mjlab", last, "--num-envs", most, "--iterations", 10)
    lacks_tests = "" if (tests / "conftest.py").exists() else "the repository's tests"
    return [
        Part("doctor", 90, [*mjfleet, "doctor", *device]),
        *(Part(f"build-{name}", 240, child("build", 1, name)) for name in names),
        Part("conditional-nodes", 120, child("capture", 1)),
        Part("tests", 240, pytest, lacks_tests),
        *(Part(f"speed-{name}", 240, bench("throughput", name, *speed)) for name in names),
        Part("graphs-and-calls", 300, child("graphs", options.iterations)),
        Part("one-rank-by-nccl", 90, child("nccl", 4)),
        Part("two-ranks-by-gloo", 120, two),
        Part("memcheck", 300, memcheck, "" if sanitizer else "compute-sanitizer"),
        Part("profile", 120, child("profile", options.warmup + 3)),
        Part("mjlab", 300, peer, "" if shutil.which("uv") else "uv, and wheels of mjlab"),
    ]


def run_parts(parts: Sequence[Part], seconds: float, scratch: Path) -> Iterator[dict[str, Any]]:
    """Run the parts one after the other, and yield the outcome of each.

    They have `seconds` together. Benchmarks among them leave their JSON files in `scratch`.
    """
    end = time.monotonic() + seconds
    for part in parts:
        start = time.monotonic()
        limit = min(part.seconds, end - start)
        outcome: dict[str, Any] = {"status": "not reached"}
        if part.missing:
            outcome = {"status": f"needs {part.missing}"}
        elif limit > LEAST_SECONDS:
            print_error(f"{part.name}: at most {limit:.0f} s")
            outcome = _run(part, limit, scratch)
        elapsed = round(time.monotonic() - start, 1)
        yield {"part": part.name, "seconds": elapsed, "found": {}, "output": "", **outcome}


def _run(part: Part, limit: float, scratch: Path) -> dict[str, Any]:
    with ChildProcess(part.command, environ={"TMPDIR": str(scratch)}, cwd=scratch) as child:
        code = child.wait(limit)
        status = f"stopped after {limit:.0f} s" if code is None else child.how_it_ended()
        output, errors = child.output().decode(errors="replace"), child.errors()
    lines = [line for line in output.splitlines() if line.strip()]
    figures = [json.loads(line) for line in lines if line.startswith("{")]
    found = figures[-1] if figures else {"last line": "".join(lines[-1:])}
    for file in scratch.glob("*.json"):
        found = {str(number): sample for number, sample in enumerate(_samples(file))}
        file.unlink()
    if code == 0:
        return {"status": "ok", "found": found}
    text = f"{output[-SHOWN_CHARACTERS:]}\n{errors[-SHOWN_CHARACTERS:]}".strip()
    text = text.replace(str(scratch), "")
    return {"status": status, "output": text.replace(str(Path.home()), "~")}


def _samples(file: Path) -> list[dict[str, Any]]:
    return json.loads(file.read_text(encoding="utf-8"))["samples"] if file.exists() else []


def make_tables(samples: Sequence[Mapping[str, Any]]) -> list[Table]:
    """Return one table of all parts, and one with the figures of each."""
    columns = ("part", "status", "seconds")
    figures = [(sample["part"], list(_flat(sample["found"]))) for sample in samples]
    return [
        Table("Parts", columns, [[sample[column] for column in columns] for sample in samples]),
        *(Table(part, ["figure", "value"], rows) for part, rows in figures if rows),
    ]


def _flat(value: Any, name: str = "") -> Iterator[list[Cell]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _flat(item, f"{name} {key}".strip())
    else:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        yield [name, value if is_number else str(value)]
