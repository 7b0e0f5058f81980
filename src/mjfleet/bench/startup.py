"""`mjfleet bench startup`: from Enter to help and to the first iteration. In the launcher."""

import shutil
from dataclasses import dataclass, replace
from typing import Any

from mjfleet.bench.benchmark_options import Options, Setup
from mjfleet.bench.result import Result, Table
from mjfleet.bench.timed_training import TRAIN, run_timed, train_timed
from mjfleet.config.validation import Count

COLD, WARM = "first iteration, cold kernel cache", "first iteration"
PHASES = ("start, imports and building", "first rollout and update")
NOTES = (
    "Medians of the repeats, with the least and the greatest; files are in the system's cache. The "
    "first rollout and update are what metrics.csv says; launching workers is in the rest.",
    "A cold kernel cache is an empty folder for warp's kernels.",
)


@dataclass(frozen=True, kw_only=True)
class StartupOptions(Options):
    """The time from Enter to help and to the first iteration, and what it consists of."""

    several = True

    iterations: Count = 1
    """Iterations of each run, of which the first counts."""
    num_envs: Count = 1024
    """Environments of each worker."""
    workers: Count = 1
    """Workers."""


def startup(setup: Setup, options: StartupOptions) -> Result:
    """Measure help and first iterations in turn."""
    config = setup.config(
        options.num_envs, workers=options.workers, max_iterations=options.iterations
    )
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
        rows, _ = train_timed(setup.found.name, config, setup.scratch, environ=environ)
        learned = rows[0]["collect_seconds"] + rows[0]["learn_seconds"]
        parts = rows[0]["seconds"] - learned, learned
        return {"seconds": rows[0]["seconds"], "phases": dict(zip(PHASES, parts, strict=True))}

    samples = setup.rounds([{"what": name} for name in (*helps, *firsts)], measure, "{what}")
    totals = [(s["what"], [s["seconds"]]) for s in samples]
    phases = [(s["what"], s["phases"].values()) for s in samples if "phases" in s]
    tables = [
        Table.of("Seconds from Enter", ["", "seconds"], totals),
        Table.of("Where they go", ["", *PHASES], phases),
    ]
    name = f"startup-{setup.found.name}-{worker.engine}-{options.workers}-{setup.kind}"
    where = f"{worker.engine} engine on {setup.kind}, workers: {options.workers}"
    return Result(name, f"Start of {setup.found.name}, {where}", tables, NOTES, samples)
