"""`mjfleet bench exchange`: what many ranks tell each other, without the simulation around it.

Runs in the launching process.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from mjfleet.bench.children import run_child
from mjfleet.bench.options import ExchangeOptions
from mjfleet.bench.result import Cell, Result, Spread, Table
from mjfleet.bench.setup import Setup

NOTES = (
    "Medians of the repeats, with the least and the greatest. All ranks are processes of this "
    "machine, which share its cores: more of them than cores also wait for their turn.",
    "An iteration's gradients are one all-reduce for each minibatch; its statistics two sums and "
    "an all-gather; for a checkpoint, rank 0 gathers what belongs to each rank: its worlds.",
    "Joining is the time until a first collective is done, and begins with processes that have "
    "imported what they need.",
)
COLUMNS = {
    "join": "seconds to join",
    "gradients": "ms of an iteration's gradients",
    "statistics": "ms of its statistics",
    "checkpoint": "ms of a checkpoint",
}


def exchange(setup: Setup, options: ExchangeOptions) -> Result:
    """Measure every number of ranks in turn."""
    config = setup.config(options.num_envs, max_iterations=1)
    run_dir = setup.scratch / "run"
    run_dir.mkdir()
    job = asdict(setup.job(config, run_dir)) | {"devices": ("cpu",), "backend": "gloo"}

    def measure(ranks: int) -> Mapping[str, Any]:
        request = {
            "job": job,
            "ranks": ranks,
            "warmup": options.warmup,
            "iterations": options.iterations,
        }
        command = [sys.executable, "-m", "mjfleet.bench.ranks", json.dumps(request)]
        child = run_child(command, setup.scratch, {"OMP_NUM_THREADS": "1"})
        return {"ranks": ranks, **json.loads(child.lines[-1][1])}

    taken = setup.rounds(options.ranks, measure, lambda n: f"ranks: {n}")
    samples = [sample for _, sample in taken]
    sizes = samples[0]["sizes"]
    rows: list[list[Cell]] = [
        [str(n), *(Spread.of(s[name] for s in samples if s["ranks"] == n) for name in COLUMNS),
         n * sizes["state"] / 2**20]
        for n in options.ranks
    ]  # fmt: skip
    return Result(
        name=f"exchange-{setup.found.name}",
        title=f"What ranks of {setup.found.name} exchange by gloo: {options.num_envs} worlds each",
        tables=[
            Table("Ranks", ["ranks", *COLUMNS.values(), "MiB gathered for it"], rows),
            Table(
                "What a rank sends",
                ["", "bytes", "how often"],
                [
                    ["gradients", f"{sizes['gradients'] * 4:,}", f"{sizes['minibatches']} times"],
                    ["statistics", f"{sizes['report'] * 8:,}", "each iteration"],
                    ["worlds and generators", f"{sizes['state']:,}", "each checkpoint"],
                ],
            ),
        ],
        notes=NOTES,
        samples=samples,
    )
