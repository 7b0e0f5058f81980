"""How many worlds? Measured for one worker, in a child of the launching process.

`python -m mjfleet.autotune.num_envs_trial REQUEST` trains with as many worlds as each line of its
input says and answers by a line of JSON. Importing this imports nothing heavy.
"""

import gc
import json
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from mjfleet.config import from_dict
from mjfleet.errors import UserError
from mjfleet.registry import FoundTask, find_task
from mjfleet.utils.parent_death import die_with_parent
from mjfleet.worker.rank_environment import Rank
from mjfleet.worker.thread_limits import prepare
from mjfleet.worker.worker_args import WorkerArgs

GAIN = 1.05
"""Twice the worlds are worth it where throughput grows by this factor at least."""
FULL = 0.85
"""Share of the memory in use at which more worlds would leave too little for all else."""
STRETCH_SECONDS = 0.5
"""An iteration to warm up is followed by two stretches, each of at least that and an iteration."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What training with that many worlds was like."""

    worlds: int
    steps_per_second: float
    """Environment steps of this worker, learning included."""
    memory: float
    """Share of its device's memory that was in use, by whomever: 0 to 1."""


def choose(curve: Sequence[Measured]) -> int:
    """The worlds up to which every doubling was worth it; a pure function.

    Args:
        curve: what was measured with some worlds, twice as many, and so on; not empty.

    Examples:
        >>> speeds = {256: 100.0, 512: 190.0, 1024: 195.0}
        >>> choose([Measured(worlds=n, steps_per_second=s, memory=0.1) for n, s in speeds.items()])
        512
    """
    chosen = curve[0]
    for before, now in pairwise(curve):
        if now.memory >= FULL or now.steps_per_second < GAIN * before.steps_per_second:
            break
        chosen = now
    return chosen.worlds


def is_done(curve: Sequence[Measured]) -> bool:
    """Whether twice the worlds need not be tried, or would fill the memory; a pure function."""
    expected = curve[-1].memory
    if len(curve) > 1:
        # Half of these worlds took what was added last; twice as many add twice that.
        expected += 2 * max(0.0, curve[-1].memory - curve[-2].memory)
    return choose(curve) != curve[-1].worlds or expected >= FULL


def main(request: dict[str, Any]) -> int:
    """Measure with each number of worlds that standard input asks for, until it ends.

    Prints a line when it is ready, and one for each number; a mistake of the user's is the last.
    It ends without a line for a number of worlds for which memory is missing, except the first.

    Args:
        request: `job`, what is to be trained, and `rank`, this worker's place.
    """
    die_with_parent()
    # These lines alone go to standard output: what libraries print goes where errors do.
    with os.fdopen(os.dup(1), "w") as output:
        os.dup2(2, 1)
        try:
            for line in _measure(WorkerArgs(**request["job"]), Rank(**request["rank"]), sys.stdin):
                print(json.dumps(line), file=output, flush=True)
        except UserError as error:
            print(json.dumps({"mistake": str(error)}), file=output, flush=True)
            return 2
    return 0


def _measure(job: WorkerArgs, rank: Rank, asked: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Nothing once it is ready, then what was measured with each number of worlds."""
    prepare()
    import torch

    from mjfleet.env.factory import on_device
    from mjfleet.rl.checkpoint_files import seed_everything

    found = find_task(job.task, Path(job.task_folder))
    device = job.devices[rank.local_rank]
    seed_everything(job.config["agent"]["seed"] + rank.rank)
    with on_device(job.engine, device):
        yield {}
        for count, worlds in enumerate(asked):
            try:
                measured = _train(found, job, rank, int(worlds))
            except (MemoryError, RuntimeError) as error:
                if count and _is_out_of_memory(error):
                    return
                raise
            yield asdict(measured)
            gc.collect()
            if device != "cpu":
                torch.cuda.empty_cache()


def _train(found: FoundTask, job: WorkerArgs, rank: Rank, worlds: int) -> Measured:
    """Train for about a second, or a few iterations; the worlds are gone afterwards."""
    from mjfleet.env.factory import build_env
    from mjfleet.rl.runner import Runner

    numbers = job.config["env"] | {"num_envs": worlds}
    config = from_dict(found.defaults(), {**job.config, "env": numbers})
    agent, device = replace(config.agent, max_iterations=sys.maxsize), job.devices[rank.local_rank]
    env = build_env(found, config, job.engine, device, job.threads, rank=rank.rank)
    runner = Runner(env, agent, device, job.threads, found.load)
    ends: list[float] = []

    def has_enough() -> int | None:
        ends.append(time.monotonic())
        return signal.SIGTERM if len(_rates(ends)) == 2 else None

    runner.train(lambda _: None, has_enough)
    # A machine that does something else for a moment makes a stretch slower, never faster.
    speed = max(_rates(ends)) * worlds * agent.num_steps_per_env
    return Measured(worlds=worlds, steps_per_second=speed, memory=_memory_in_use(device))


def _rates(ends: Sequence[float]) -> list[float]:
    """Iterations per second of each stretch, from when each iteration ended, in seconds."""
    rates, begun = [], 0
    for index, end in enumerate(ends):
        if index > begun and end - ends[begun] >= STRETCH_SECONDS:
            rates.append((index - begun) / (end - ends[begun]))
            begun = index
    return rates


def _memory_in_use(device: str) -> float:
    """Share of the device's memory, 0 to 1; of the CPU's by proc_meminfo(5)."""
    if device != "cpu":
        import torch

        free, total = torch.cuda.mem_get_info(device)
        return 1 - free / total
    lines = Path("/proc/meminfo").read_text().splitlines()
    kib = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    return 1 - kib["MemAvailable"] / kib["MemTotal"]


def _is_out_of_memory(error: Exception) -> bool:
    """Whether memory was missing: torch has a class for it on GPUs; warp and libraries only say."""
    said = str(error).lower()
    words = ("out of memory", "failed to allocate", "allocate memory", "alloc_failed")
    return isinstance(error, MemoryError) or any(word in said for word in words)


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
