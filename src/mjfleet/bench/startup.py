"""`mjfleet bench startup`: from Enter to help, and to the first iteration.

Runs in the launching process; what is measured are the commands that users type.
"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mjfleet.bench.children import run_child
from mjfleet.bench.compilations import compilations
from mjfleet.bench.options import StartupOptions
from mjfleet.bench.result import Result, Spread, Table
from mjfleet.bench.setup import Setup
from mjfleet.bench.training import TRAIN, train_ours
from mjfleet.bench.workers import with_workers

COLD, WARM = "first iteration, cold kernel cache", "first iteration"
IMPORTS = "imports"
PHASES = ("command line", "imports and building", "first rollout and update")
SHOWN = 10
"""Packages whose imports are listed: those that take the longest."""
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


def startup(setup: Setup, options: StartupOptions) -> Result:
    """Measure help and first iterations in turn."""
    config = with_workers(setup, options.workers, options.num_envs, options.cpu_threads)
    config = replace(config, agent=replace(config.agent, max_iterations=options.iterations))
    job = setup.job(replace(config, cpu_workers=None), setup.scratch)
    cache = setup.scratch / "kernels"
    helps = {"`train --help`": ["--help"], "`train <task> --help`": [setup.found.name, "--help"]}

    def measure(name: str) -> dict[str, Any]:
        if name in helps:
            return {"seconds": run_child([*TRAIN, *helps[name]], setup.scratch).seconds}
        if name == COLD:
            shutil.rmtree(cache, ignore_errors=True)
        environ = {"PYTHONPROFILEIMPORTTIME": "1"} if name == IMPORTS else {}
        with compilations(cache) as compiled:
            trained, child = train_ours(setup, config, WARP_CACHE_PATH=str(cache), **environ)
        if name == IMPORTS:
            return {"packages": _packages(child.errors)}
        first = trained.iterations[0]
        begun, learned = (
            child.time_of("building"),
            first["collect_seconds"] + first["learn_seconds"],
        )
        return {
            "seconds": first["seconds"],
            "phases": {
                "command line": begun,
                "imports and building": first["seconds"] - begun - learned,
                "first rollout and update": learned,
            },
            "compilations": len(compiled.events),
            "modules": len(set(compiled.events)),
        }

    firsts = [COLD, WARM] if job.engine == "warp" else [WARM]
    # Several workers import in processes of which each has its own log.
    names: list[str] = [*helps, *firsts, *([IMPORTS] if options.workers == 1 else [])]
    taken = setup.rounds(names, measure)
    samples = [{"what": name, **sample} for name, sample in taken]

    def of(name: str) -> list[Mapping[str, Any]]:
        return [sample for sample in samples if sample["what"] == name]

    return Result(
        name=f"startup-{setup.found.name}-{job.engine}-{options.workers}-{setup.kind}",
        title=f"Start of {setup.found.name}, {job.engine} engine on {setup.kind}, "
        f"workers: {options.workers}",
        tables=[
            *_tables({name: of(name) for name in (*helps, *firsts)}, firsts),
            *_import_table([sample["packages"] for sample in of(IMPORTS)]),
        ],
        notes=NOTES,
        samples=samples,
    )


def _tables(
    samples: Mapping[str, Sequence[Mapping[str, Any]]], firsts: Sequence[str]
) -> list[Table]:
    def phases(name: str) -> list[Spread]:
        return [Spread.of(sample["phases"][phase] for sample in samples[name]) for phase in PHASES]

    tables = [
        Table(
            "Seconds from Enter",
            ["", "seconds"],
            [[name, Spread.of(s["seconds"] for s in each)] for name, each in samples.items()],
        ),
        Table("Where they go", ["", *PHASES], [[name, *phases(name)] for name in firsts]),
    ]
    if COLD in firsts:
        keys = ("modules", "compilations")
        rows = [[name, *(Spread.of(s[k] for s in samples[name]) for k in keys)] for name in firsts]
        tables.append(Table("Kernels", ["", "modules compiled", "compilations"], rows))
    return tables


def _packages(errors: str) -> dict[str, float]:
    """Seconds that importing each package took, without what it imports itself."""
    seconds: dict[str, float] = {}
    for line in errors.splitlines():
        parts = line.removeprefix("import time:").split("|")
        if len(parts) == 3 and parts[0].strip().isdecimal():
            package = parts[2].strip().partition(".")[0]
            seconds[package] = seconds.get(package, 0.0) + int(parts[0]) / 1e6
    return seconds


def _import_table(samples: Sequence[Mapping[str, float]]) -> list[Table]:
    """The packages that took the longest, and all together."""
    if not samples:
        return []
    spreads = {
        name: Spread.of(sample.get(name, 0.0) for sample in samples)
        for name in dict.fromkeys(name for sample in samples for name in sample)
    }
    longest = sorted(spreads, key=lambda name: -spreads[name].median)[:SHOWN]
    rows = [[name, spreads[name]] for name in longest]
    rows.append(["all", Spread.of(sum(sample.values()) for sample in samples)])
    return [Table("Imports", ["package", "seconds"], rows)]
