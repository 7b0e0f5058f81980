"""Has rank 0 alone decide what workers train that torchrun, srun or mpirun has started."""

import json
import os
from collections.abc import Callable
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

from mjfleet.config import LaunchConfig, TrainConfig, from_dict, to_dict
from mjfleet.registry import FoundTask, discover, find_task
from mjfleet.runs.resume_choice import Parent, Resume
from mjfleet.runs.task_snapshot import is_snapshot
from mjfleet.worker.rank_environment import Rank

Chosen = tuple[FoundTask, TrainConfig, Resume | None]
"""A task, what is to be trained, and where it starts."""


def choose_on_rank_0(rank: Rank, start: LaunchConfig, choose: Callable[[], Chosen]) -> Chosen:
    """Return what rank 0 chooses. The others use the task in their own folders, if it is there.

    Raises:
        UserError: rank 0 has found a mistake of the user's.
        WorkerError: rank 0 has failed, or a worker has not come.
    """
    if rank.world_size == 1:
        return choose()
    from mjfleet.worker.under_torchrun import decided_by_rank_0, meeting_store

    chosen = list[Chosen]()

    def decide() -> str:
        found, config, resume = choose()
        chosen.append((found, config, resume))
        decision: dict[str, Any] = {
            "task": found.name, "folder": found.folder, "config": to_dict(config),
            "run_dir": resume and resume.run_dir, "checkpoint": resume and resume.checkpoint,
            "parent": asdict(resume.parent) if resume and resume.parent else None,
        }  # fmt: skip
        return json.dumps(decision, default=str)

    timeout = timedelta(seconds=start.collective_timeout)
    decision = json.loads(decided_by_rank_0(meeting_store(rank), rank, decide, timeout))
    if chosen:
        return chosen[0]
    task, folder = decision["task"], Path(decision["folder"])
    own = None if is_snapshot(folder) else discover(os.environ, start.tasks_dir).tasks.get(task)
    found = own or find_task(task, folder)
    config = from_dict(found.defaults(), decision["config"])
    names = decision["run_dir"], decision["checkpoint"]
    run_dir, checkpoint = (name and Path(name) for name in names)
    if (path := run_dir or checkpoint) is None:
        return found, config, None
    parent = decision["parent"] and Parent(**decision["parent"])
    resume = Resume(path=path, task=task, run_dir=run_dir, checkpoint=checkpoint, parent=parent)
    return found, config, resume
