"""A trained policy as the contents of a file. Importing this imports nothing heavy."""

import json
import re
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from mjfleet.config import from_dict
from mjfleet.registry import find_task
from mjfleet.worker.thread_limits import prepare
from mjfleet.worker.worker_args import WorkerArgs

if TYPE_CHECKING:
    from mjfleet.tools.export.policy_graph import Format

MARK = "mjfleet_version"
"""The entry of the metadata by which a file is known to be ours."""
COMPARED = 1000
"""Random observations for which the graph's actions are compared with the checkpoint's."""


@dataclass(frozen=True)
class Exported:
    """What is to be written, and how well it does what the checkpoint does."""

    graph: bytes
    """The contents of the file."""
    metadata: str
    """JSON, which is in the graph as well."""
    difference: float
    """The largest difference of an action, for random observations."""
    tolerated: float
    """The largest one that rounding explains."""


def export(job: WorkerArgs, checkpoint: Path, kind: "Format") -> Exported:
    """Make a graph of a checkpoint's actor, load it again, and compare it with the actor.

    Args:
        job: the task and its configuration, on the CPU.
        checkpoint: the file.
        kind: which format.

    Raises:
        UserError: the checkpoint is damaged or of other networks, or what the task says of
            deployment is wrong.
    """
    prepare()
    from mjfleet.env.factory import build_env
    from mjfleet.rl.runner import Runner
    from mjfleet.tools.export.policy_graph import compare, make_graph
    from mjfleet.tools.export.robot_metadata import describe

    found = find_task(job.task, Path(job.task_folder))
    config = from_dict(found.defaults(), job.config)
    env = build_env(found, config, job.engine, job.devices[0], job.threads)
    runner = Runner(env, config.agent, job.devices[0], job.threads, found.load)
    runner.load(checkpoint, {"actor": True, "iteration": True})
    policy = runner.get_inference_policy()
    entries = {
        "task": found.name,
        MARK: version("mjfleet"),
        "iteration": runner.current_learning_iteration,
        **describe(env, policy.obs_groups),
    }
    # A list of numbers or names takes one line.
    lines = json.dumps(entries, indent=2) + "\n"
    metadata = re.sub(r"\[[^][{}]*\]", lambda found: re.sub(r"\n *", " ", found[0]), lines)
    graph = make_graph(policy, kind, metadata)
    sizes = {name: group.shape[1] for name, group in env.get_observations().items()}
    return Exported(graph, metadata, *compare(policy, sizes, kind, graph, COMPARED))
