"""Loads the classes that a configuration names, before workers are started.

The launcher does so in a child process, because they import torch.
"""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from mjfleet.config import TrainConfig, from_dict, to_dict
from mjfleet.errors import UserError, WorkerError, run_command
from mjfleet.registry import FoundTask, find_task
from mjfleet.utils.child_process import ChildProcess, python_module
from mjfleet.utils.parent_death import die_with_parent
from mjfleet.worker.stop_signals import StopRequest


def check_classes(found: FoundTask, config: TrainConfig) -> None:
    """Load each `module:Class` of the configuration, if there is any, in a child process.

    Raises:
        UserError: one cannot be loaded, or is not what is needed.
        Stopped: a signal arrived.
    """
    if not config.agent.class_paths or "RANK" in os.environ:  # Or workers run already.
        return
    words = found.name, str(found.folder), json.dumps(to_dict(config))
    with StopRequest().installed(), ChildProcess(python_module(__name__, *words)) as child:
        code = child.wait()
        if code == 2:
            raise UserError(child.mistake() or child.errors().strip())
        if code:
            raise WorkerError(f"{child.errors()}\nloading classes {child.how_it_ended()}")


def main(arguments: Sequence[str]) -> int:
    """Load the classes of a task, its folder and its configuration as JSON."""
    die_with_parent()
    from mjfleet.rl.adapters.rsl_rl_adapter import rsl_rl_config
    from mjfleet.rl.algorithm_choice import choose_algorithm
    from mjfleet.rl.runner_hook import RunnerHook

    name, folder, text = arguments
    found = find_task(name, Path(folder))
    agent = from_dict(found.defaults(), json.loads(text)).agent
    rsl_rl_config(agent, found.load)
    choose_algorithm(agent, found.load)
    if agent.runner_hook:
        found.load(agent.runner_hook, RunnerHook)
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
