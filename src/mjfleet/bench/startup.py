"""`mjfleet bench startup`: from Enter to help and to the first iteration. In the launcher."""

import ctypes
import os
import re
import shutil
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mjfleet.bench.benchmark_options import Options, Setup
from mjfleet.bench.result import Result, Spread, Table
from mjfleet.bench.timed_training import TRAIN, run_timed, train_ours
from mjfleet.config.validation import Count

COLD, WARM = "first iteration, cold kernel cache", "first iteration"
IMPORTS = "imports"
PHASES = ("command line", "imports and building", "first rollout and update")
SHOWN = 10  # Packages whose imports are listed: those that take the longest.
NOTES = (
    "Medians of the repeats, with the least and the greatest, in seconds from the start of the "
    "process; files are in the system's cache.",
    "The command line's part ends when a worker says that it builds its worlds: with several "
    "workers, launching them is in it. The first rollout and update are what metrics.csv says; the "
    "rest is importing and building.",
    "Imports are those of a run of its own, timed by Python (PYTHONPROFILEIMPORTTIME), which takes "
    "a little longer by that; each module counts for its package alone.",
    "A cold kernel cache is an empty folder for warp's kernels, a warm one is the same folder "
    "afterwards. A compilation is one of a module of kernels, by any process.",
)
INOTIFY_CREATE = 0x100


@dataclass(frozen=True, kw_only=True)
class StartupOptions(Options):
    """The time from Enter to help and to the first iteration, and what it consists of."""

    several = True

    iterations: int = 1
    """Iterations of each run, of which the first counts."""
    num_envs: Count = 1024
    """Environments of each worker."""
    workers: Count = 1
    """Workers."""


def startup(setup: Setup, options: StartupOptions) -> Result:
    """Measure help and first iterations in turn."""
    workers, iterations = options.workers, options.iterations
    config = setup.config(options.num_envs, workers=workers, max_iterations=iterations)
    worker = setup.worker_args(replace(config, cpu_workers=None), setup.scratch)
    cache = setup.scratch / "kernels"
    helps = {"`train --help`": ["--help"], "`train <task> --help`": [setup.found.name, "--help"]}
    firsts = [COLD, WARM] if worker.engine == "warp" else [WARM]

    def measure(what: str) -> dict[str, Any]:
        if what in helps:
            return {"seconds": run_timed([*TRAIN, *helps[what]], setup.scratch).seconds}
        if what == COLD:
            shutil.rmtree(cache, ignore_errors=True)
        environ = {"WARP_CACHE_PATH": str(cache)}
        environ |= {"PYTHONPROFILEIMPORTTIME": "1"} if what == IMPORTS else {}
        with compilations(cache) as modules:
            trained, child = train_ours(setup, config, (), environ)
        if what == IMPORTS:
            return {"packages": _packages(child.errors)}
        first = trained["iterations"][0]
        begun = next(seconds for seconds, line in child.lines if "building" in line)
        learned = first["collect_seconds"] + first["learn_seconds"]
        parts = begun, first["seconds"] - begun - learned, learned
        phases = dict(zip(PHASES, parts, strict=True))
        counts = {"compilations": len(modules), "modules": len(set(modules))}
        return {"seconds": first["seconds"], "phases": phases, **counts}

    # With several workers, imports are logged to files of their own.
    names = [*helps, *firsts, *([IMPORTS] if workers == 1 else [])]
    samples = setup.rounds([{"what": name} for name in names], measure, "{what}")
    seconds = [(s["what"], [s["seconds"]]) for s in samples if "seconds" in s]
    runs = [(s["what"], s) for s in samples if "phases" in s]
    tables = [
        Table.of("Seconds from Enter", ["", "seconds"], seconds),
        Table.of("Where they go", ["", *PHASES], [(n, s["phases"].values()) for n, s in runs]),
    ]
    if COLD in firsts:
        counts = [(name, [s["modules"], s["compilations"]]) for name, s in runs]
        tables.append(Table.of("Kernels", ["", "modules compiled", "compilations"], counts))
    if IMPORTS in names:
        tables.append(_import_table([s["packages"] for s in samples if "packages" in s]))
    name = f"startup-{setup.found.name}-{worker.engine}-{workers}-{setup.kind}"
    where = f"{worker.engine} engine on {setup.kind}, workers: {workers}"
    return Result(name, f"Start of {setup.found.name}, {where}", tables, NOTES, samples)


@contextmanager
def compilations(cache: Path) -> Iterator[list[str]]:
    """Record the module of each compilation by warp, in any process with this WARP_CACHE_PATH.

    The list is filled when the block ends. For each module that it compiles, warp makes a folder
    that carries the process's number, and renames it in the end: only a watch (inotify(7)) shows
    that a module is compiled twice.
    """
    folder = cache / version("warp-lang")
    folder.mkdir(parents=True, exist_ok=True)
    libc = ctypes.CDLL(None, use_errno=True)
    queue = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if queue < 0 or libc.inotify_add_watch(queue, os.fsencode(folder), INOTIFY_CREATE) < 0:
        raise OSError(ctypes.get_errno(), "inotify does not work here")
    modules: list[str] = []
    with open(queue, "rb", closefd=True) as events:
        yield modules
        data = events.read() or b""
    # Each event is a header, whose last byte is 0 for names as short as these, and a name that
    # ends in zeros: <module>_p<process>...
    modules += [name.decode() for name in re.findall(rb"\0([^\0]+)_p[^\0]*\0", data)]


def _packages(errors: str) -> dict[str, float]:
    """Return the seconds that importing each package took, without what it imports itself."""
    seconds: dict[str, float] = defaultdict(float)
    for line in errors.splitlines():
        parts = line.removeprefix("import time:").split("|")
        if len(parts) == 3 and parts[0].strip().isdecimal():
            seconds[parts[2].strip().partition(".")[0]] += int(parts[0]) / 1e6
    return dict(seconds)


def _import_table(samples: Sequence[Mapping[str, float]]) -> Table:
    """Summarise the imports of the packages that took the longest, and of all together."""
    names = dict.fromkeys(name for sample in samples for name in sample)
    spreads = {name: Spread.of(sample.get(name, 0.0) for sample in samples) for name in names}
    longest = sorted(spreads.items(), key=lambda item: -item[1].median)[:SHOWN]
    together = Spread.of(sum(sample.values()) for sample in samples)
    return Table("Imports", ["package", "seconds"], [*longest, ("all", together)])
