"""The child process of `mjfleet bench exchange`: it forks ranks, which have imported all by then.

python -m mjfleet.bench.ranks <request as JSON>
"""

import json
import multiprocessing
import os
import socket
import sys
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

from mjfleet.utils.parent_death import PARENT_VARIABLE, die_with_parent
from mjfleet.worker.thread_limits import prepare

TIMEOUT = 600.0
"""Seconds after which a collective gives up."""


def find_sizes(job: Mapping[str, Any]) -> dict[str, int]:
    """What a rank of a task sends, found by training it for an iteration and a checkpoint."""
    die_with_parent()
    from mjfleet.config import from_dict
    from mjfleet.env.factory import build_env
    from mjfleet.registry import find_task
    from mjfleet.rl.checkpoint_contents import Checkpointer
    from mjfleet.rl.collectives import Collectives
    from mjfleet.rl.runner import Runner
    from mjfleet.worker.worker_args import WorkerArgs

    sizes: dict[str, int] = {}

    class Scales(Collectives):
        """Weighs what a rank would send to others."""

        def all_gather(self, values: Any) -> list[list[float]]:
            sizes["report"] = len(values)
            return super().all_gather(values)

        def gather_bytes(self, data: bytes) -> list[bytes] | None:
            sizes["state"] = len(data)
            return super().gather_bytes(data)

    one = WorkerArgs(**job)
    found = find_task(one.task, Path(one.task_folder))
    config = from_dict(found.defaults(), one.config)
    env = build_env(found, config, one.engine, "cpu", one.threads)
    runner = Runner(env, config.agent, "cpu", 1, found.load, Scales())
    checkpointer = Checkpointer(runner, found.name, Path(one.run_dir), keep=None)
    runner.train(lambda metrics: None, lambda: None, checkpointer.save)
    groups = runner.alg.optimizer.param_groups
    # The KL divergence travels with the gradients.
    sizes["gradients"] = 1 + sum(p.numel() for group in groups for p in group["params"])
    algorithm = config.agent.algorithm
    sizes["minibatches"] = algorithm.num_learning_epochs * algorithm.num_mini_batches
    return sizes


def exchange(
    request: Mapping[str, Any], sizes: Mapping[str, int], rank: int, results: Connection
) -> None:
    """Be one of the ranks; rank 0 sends what it measured."""
    die_with_parent()
    import torch

    from mjfleet.rl import collectives
    from mjfleet.worker.torch_process_group import process_group
    from mjfleet.worker.worker_args import WorkerArgs

    # Ranks that share a core keep each other from ending what they are looking at.
    collectives.LOOKING_SECONDS = 0.0
    ranks, medians = request["ranks"], {}
    job = WorkerArgs(**request["job"] | {"devices": ("cpu",) * ranks})
    start = time.perf_counter()
    with process_group(job, job.rank_of(rank), TIMEOUT) as group:
        talk = group.collectives
        talk.total([0])
        join = time.perf_counter() - start
        flat, state = torch.zeros(sizes["gradients"]), bytes(sizes["state"])
        seconds: dict[str, list[float]] = {"gradients": [], "statistics": [], "checkpoint": []}
        for _ in range(request["warmup"] + request["iterations"]):
            talk.take_seconds()
            for _ in range(sizes["minibatches"]):
                talk.all_reduce(flat)
            seconds["gradients"].append(talk.take_seconds())
            talk.total([0])
            talk.total([0, 0, 0])
            talk.all_gather([0.0] * sizes["report"])
            seconds["statistics"].append(talk.take_seconds())
            talk.gather_bytes(state)
            seconds["checkpoint"].append(talk.take_seconds())
        medians = {k: 1e3 * median(v[request["warmup"] :]) for k, v in seconds.items()}
    if rank == 0:
        results.send({"join": join, **medians})


def main() -> None:
    """Fork the ranks, wait for them, and print what rank 0 measured as a line of JSON."""
    prepare()
    import mjfleet.rl.runner
    import mjfleet.worker.torch_process_group  # noqa: F401  All ranks have imported it then.

    request = json.loads(sys.argv[1])
    os.environ[PARENT_VARIABLE] = str(os.getpid())
    fork = multiprocessing.get_context("fork")
    with fork.Pool(1) as apart:  # What trains has threads, and must not fork.
        sizes = apart.apply(find_sizes, (request["job"],))
    with socket.create_server(("127.0.0.1", 0)) as free:
        os.environ["MASTER_PORT"] = str(free.getsockname()[1])
    ours, theirs = fork.Pipe(duplex=False)
    ranks = [
        fork.Process(target=exchange, args=(request, sizes, rank, theirs), daemon=True)
        for rank in range(request["ranks"])
    ]
    for process in ranks:
        process.start()
    theirs.close()
    measured = ours.recv()
    for process in ranks:
        process.join()
    print(json.dumps({**measured, "sizes": sizes}))


if __name__ == "__main__":
    main()
