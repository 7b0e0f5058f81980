"""`mjfleet bench startup`: from Enter to help, and to the first iteration.

Runs in the launching process; what is measured are the commands that users type.
"""

import shutil
import sys
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
IMPORTS = (
    "import mjfleet.rl.runner, mjfleet.rl.saver, mjfleet.worker.group, mjfleet.report.sinks, "
    "mjfleet.sim.{engine}"
)
PHASES = ("command line", "imports", "building", "first rollout and update")
NOTES = (
    "Medians of the repeats, with the least and the greatest, in seconds from the start of the "
    "process; files are in the system's cache.",
    "The command line's part ends when a worker says that it builds its worlds: with several "
    "workers, launching them is in it. Imports are timed in a process of their own. The first "
    "rollout and update are what metrics.csv says; building is what is left.",
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
        with compilations(cache) as compiled:
            trained, child = train_ours(setup, config, WARP_CACHE_PATH=str(cache))
        code = IMPORTS.format(engine=job.engine)
        imports = run_child([sys.executable, "-c", code], setup.scratch).seconds
        first = trained.iterations[0]
        phases = {
            "command line": child.time_of("building"),
            "imports": imports,
            "first rollout and update": first["collect_seconds"] + first["learn_seconds"],
        }
        phases["building"] = first["seconds"] - sum(phases.values())
        return {
            "seconds": first["seconds"],
            "phases": phases,
            "compilations": len(compiled.events),
            "modules": len(set(compiled.events)),
        }

    firsts = [COLD, WARM] if job.engine == "warp" else [WARM]
    taken = setup.rounds([*helps, *firsts], measure)
    samples = [{"what": name, **sample} for name, sample in taken]

    def of(name: str) -> list[Mapping[str, Any]]:
        return [sample for sample in samples if sample["what"] == name]

    return Result(
        name=f"startup-{setup.found.name}-{job.engine}-{options.workers}-{setup.kind}",
        title=f"Start of {setup.found.name}, {job.engine} engine on {setup.kind}, "
        f"workers: {options.workers}",
        tables=_tables({name: of(name) for name in (*helps, *firsts)}, firsts),
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
