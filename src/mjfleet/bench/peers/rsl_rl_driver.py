"""Trains our environment by rsl_rl's stock runner and PPO. Runs in a child process.

    python -m mjfleet.bench.peers.rsl_rl_driver <request as JSON>

It prints a line of JSON for each iteration.
"""

import json
import sys
from pathlib import Path
from typing import Any

from rsl_rl.runners import OnPolicyRunner
from rsl_rl.utils.logger import Logger

from mjfleet.bench.peers.iteration_lines import IterationLines
from mjfleet.config import from_dict
from mjfleet.env.factory import build_env, on_device
from mjfleet.registry import find_task
from mjfleet.rl.adapters.rsl_rl_adapter import rsl_rl_config
from mjfleet.rl.checkpoint_files import seed_everything
from mjfleet.worker.worker_args import WorkerArgs


def main(argument: str) -> None:
    """Train; the request holds the job and whether lines tell the mean reward."""
    lines = IterationLines()
    request: dict[str, Any] = json.loads(argument)
    lines.follow(Logger, request["counts_rewards"])
    job = WorkerArgs(**request["job"])
    found = find_task(job.task, Path(job.task_folder))
    config = from_dict(found.defaults(), job.config)
    device = job.devices[0]
    seed_everything(config.agent.seed)
    with on_device(job.engine, device):
        env = build_env(found, config, job.engine, device, job.threads)
        settings = rsl_rl_config(config.agent, found.load)
        settings["logger"] = "tensorboard"
        runner = OnPolicyRunner(env, settings, log_dir=job.run_dir, device=device)
        runner.learn(config.agent.max_iterations, config.agent.init_at_random_ep_len)


if __name__ == "__main__":
    main(sys.argv[1])
