"""Trains for about a second with each number of environments that it is asked for.

Runs in a child process of the launcher, one for each worker: it reads a number from each line of
standard input and prints a TrialResult as a line of JSON. Importing this imports nothing heavy.
"""

import gc
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from mjfleet.config import from_dict
from mjfleet.config.rank_seed import rank_seed
from mjfleet.config.validation import MOST
from mjfleet.errors import UserError
from mjfleet.registry import FoundTask, find_task
from mjfleet.utils.memory import is_out_of_memory
from mjfleet.utils.parent_death import die_with_parent
from mjfleet.worker.rank_environment import Rank
from mjfleet.worker.thread_limits import prepare
from mjfleet.worker.worker_args import WorkerArgs

PERIOD_SECONDS = 0.5
"""After a first iteration, two periods are timed: each lasts this long, or one iteration."""


@dataclass(frozen=True, kw_only=True)
class TrialResult:
    """What training with a number of environments is like."""

    num_envs: int
    steps_per_second: float  # Environment steps of this worker, learning included.
    memory: float  # Share of its device's memory that is in use, by any process: 0 to 1.


def main(args: dict[str, Any], rank: dict[str, Any]) -> int:
    """Print a line when ready and one for each number; the last one may be a user's mistake.

    The process ends without a line when memory is missing, except for the first number.
    """
    die_with_parent()
    with os.fdopen(os.dup(1), "w") as output:
        os.dup2(2, 1)  # Keeps what libraries print out of the JSON.
        try:
            for line in _trials(WorkerArgs(**args), Rank(**rank)):
                print(json.dumps(line), file=output, flush=True)
        except UserError as error:
            print(json.dumps({"mistake": str(error)}), file=output)
            return 2
    return 0


def _trials(args: WorkerArgs, rank: Rank) -> Iterator[dict[str, Any]]:
    """Yield {} when everything is imported, then the result for each number."""
    prepare()
    import torch

    from mjfleet.env.factory import on_device
    from mjfleet.env.random_numbers import seed_everything

    found = find_task(args.task, Path(args.task_folder))
    device = args.devices[rank.local_rank]
    seed_everything(rank_seed(args.config["agent"]["seed"], rank.rank))
    with on_device(args.engine, device):
        yield {}
        for count, line in enumerate(sys.stdin):
            try:
                result = _train(found, args, rank, int(line))
            except (MemoryError, RuntimeError) as error:
                if count and is_out_of_memory(error):
                    return
                raise
            yield asdict(result)
            gc.collect()
            if device != "cpu":
                torch.cuda.empty_cache()


def _train(found: FoundTask, args: WorkerArgs, rank: Rank, num_envs: int) -> TrialResult:
    """Train for two periods; the environments are gone afterwards."""
    import torch

    from mjfleet.env.factory import build_env
    from mjfleet.rl.runner import Runner

    env_config = args.config["env"] | {"num_envs": num_envs}
    config = from_dict(found.defaults(), {**args.config, "env": env_config})
    agent, device = replace(config.agent, max_iterations=MOST), args.devices[rank.local_rank]
    size, place = agent.algorithm.envs_per_group, (device, args.threads)
    env = build_env(found, config, args.engine, *place, rank=rank.rank, group_size=size)
    runner = Runner(env, agent, device, args.threads, found.load)
    ends: list[float] = []  # When iterations ended: that before this period, and those in it.
    rates: list[float] = []  # Iterations per second of each period.

    def stop_signal() -> int | None:
        ends.append(time.monotonic())
        if (seconds := ends[-1] - ends[0]) >= PERIOD_SECONDS:
            rates.append((len(ends) - 1) / seconds)
            del ends[:-1]
        return signal.SIGTERM if len(rates) == 2 else None

    runner.train(lambda _: None, stop_signal)
    # Other work of the machine makes a period slower, never faster.
    speed = max(rates) * num_envs * agent.num_steps_per_env
    if device == "cpu":
        memory = psutil.virtual_memory().percent / 100
    else:
        free, total = torch.cuda.mem_get_info(device)
        memory = 1 - free / total
    return TrialResult(num_envs=num_envs, steps_per_second=speed, memory=memory)


if __name__ == "__main__":
    sys.exit(main(*json.loads(sys.argv[1])))
