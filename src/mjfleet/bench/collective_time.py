"""`mjfleet bench exchange`: the time of the collectives of many ranks, without the simulation.

`exchange` runs in the launcher; its child process runs `main`, which forks the ranks.
"""

import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Literal

from mjfleet.bench.benchmark_options import Options, Setup
from mjfleet.bench.result import Result, Table
from mjfleet.bench.timed_training import run_module
from mjfleet.config.validation import Count, Rule
from mjfleet.utils.parent_death import PARENT_VARIABLE, die_with_parent
from mjfleet.worker.worker_args import WorkerArgs

TIMEOUT_SECONDS = 600.0  # After which a collective gives up.
SEVERAL = Rule(lambda v: min(v, default=0) > 1, "numbers from 2 on")
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


@dataclass(frozen=True, kw_only=True)
class ExchangeOptions(Options):
    """The collectives of many ranks on this machine, without the simulation around them."""

    gpu_ids: list[int] | Literal["auto", "all"] | None = None
    """`None`: the ranks are processes of the CPU."""
    ranks: Annotated[tuple[int, ...], SEVERAL] = (2, 4, 16, 64)
    """Numbers of ranks to measure."""
    num_envs: Count = 1024
    """Environments whose state a rank hands over for a checkpoint."""


def exchange(setup: Setup, options: ExchangeOptions) -> Result:
    """Measure every number of ranks in turn."""
    config = setup.config(options.num_envs, max_iterations=1)
    run_dir = setup.scratch / "run"
    run_dir.mkdir()
    worker = asdict(setup.worker_args(config, run_dir)) | {"devices": ("cpu",), "backend": "gloo"}
    request = {"worker": worker, "warmup": options.warmup, "iterations": options.iterations}

    def measure(ranks: int) -> dict[str, Any]:
        module, asked = "mjfleet.bench.collective_time", request | {"ranks": ranks}
        return run_module(module, asked, setup.scratch, OMP_NUM_THREADS="1")

    samples = setup.rounds([{"ranks": n} for n in options.ranks], measure, "ranks: {ranks}")
    sizes = samples[0]["sizes"]
    times = [
        (s["ranks"], [*(s[name] for name in COLUMNS), s["ranks"] * sizes["state"] / 2**20])
        for s in samples
    ]
    sent = [
        ["gradients", f"{sizes['gradients'] * 4:,}", f"{sizes['minibatches']} times"],
        ["statistics", f"{sizes['report'] * 8:,}", "each iteration"],
        ["worlds and generators", f"{sizes['state']:,}", "each checkpoint"],
    ]
    title = f"What ranks of {setup.found.name} exchange by gloo: {options.num_envs} worlds each"
    tables = [
        Table.of("Ranks", ["ranks", *COLUMNS.values(), "MiB gathered for it"], times),
        Table("What a rank sends", ["", "bytes", "how often"], sent),
    ]
    return Result(f"exchange-{setup.found.name}", title, tables, NOTES, samples)


def _find_sizes(worker: Mapping[str, Any]) -> dict[str, int]:
    """Find what a rank sends, by training for an iteration and a checkpoint.

    Returns numbers of gradients (with the measures that travel with them), of minibatches and of
    reported statistics, and the bytes of the state of a rank's environments.
    """
    from mjfleet.bench.built_task import built_task
    from mjfleet.rl.checkpoint_contents import Checkpointer
    from mjfleet.rl.collectives import Collectives

    sizes: dict[str, int] = {}

    class RecordingCollectives(Collectives):
        def all_gather(self, values: Any) -> list[list[float]]:
            sizes["report"] = len(values)
            return super().all_gather(values)

        def gather_bytes(self, data: bytes) -> list[bytearray] | None:
            sizes["state"] = len(data)
            return super().gather_bytes(data)

    with built_task(worker) as task:
        runner = task.runner(collectives=RecordingCollectives())
        checkpointer = Checkpointer(runner, task.found.name, Path(worker["run_dir"]), keep=None)
        runner.train(lambda metrics: None, lambda: None, checkpointer.save)
    algorithm: Any = runner.alg
    ppo = runner.agent.algorithm
    minibatches = ppo.num_learning_epochs * ppo.num_mini_batches
    return sizes | {"gradients": algorithm.gradient.flat.numel(), "minibatches": minibatches}


def _run_rank(
    request: Mapping[str, Any], worker: WorkerArgs, sizes: Mapping[str, int], rank: int
) -> dict[str, float]:
    """Take part as one of the ranks; returns the seconds to join, and medians in ms."""
    import torch

    from mjfleet.worker.torch_process_group import process_group

    start = time.perf_counter()
    with process_group(worker, worker.rank_of(rank), TIMEOUT_SECONDS) as collectives:
        collectives.total([0])
        join = time.perf_counter() - start
        flat, state = torch.zeros(sizes["gradients"]), bytes(sizes["state"])
        seconds: dict[str, list[float]] = defaultdict(list)
        for _ in range(request["warmup"] + request["iterations"]):
            collectives.take_seconds()
            for _ in range(sizes["minibatches"]):
                collectives.all_reduce(flat)
            seconds["gradients"].append(collectives.take_seconds())
            collectives.total([0])
            collectives.total([0, 0, 0])
            collectives.all_gather([0.0] * sizes["report"])
            seconds["statistics"].append(collectives.take_seconds())
            collectives.gather_bytes(state)
            seconds["checkpoint"].append(collectives.take_seconds())
    return {"join": join} | {k: 1e3 * median(v[request["warmup"] :]) for k, v in seconds.items()}


def main(request: dict[str, Any]) -> None:
    """Fork the ranks, and print what rank 0 measured as a line of JSON."""
    # Imported before the fork, for all ranks.
    import mjfleet.rl.runner
    import mjfleet.worker.torch_process_group  # noqa: F401

    count = request["ranks"]
    worker = WorkerArgs(**request["worker"] | {"devices": ["cpu"] * count})
    os.environ[PARENT_VARIABLE] = str(os.getpid())
    fork = multiprocessing.get_context("fork")
    # Training starts threads, and a process with threads must not fork.
    with ProcessPoolExecutor(1, fork, die_with_parent) as pool:
        sizes = pool.submit(_find_sizes, request["worker"]).result()
    # Each process gets one rank: none is done before all take part.
    with (
        tempfile.TemporaryDirectory() as scratch,
        ProcessPoolExecutor(count, fork, die_with_parent) as pool,
    ):
        run_rank = partial(_run_rank, request, replace(worker, scratch=scratch), sizes)
        measured = list(pool.map(run_rank, range(count)))
    print(json.dumps({**measured[0], "sizes": sizes}))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
