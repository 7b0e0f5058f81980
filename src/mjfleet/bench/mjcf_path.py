"""Prints the path of a task's MJCF. Runs in a child process, since it imports the environment.

python -m mjfleet.bench.mjcf_path <request as JSON>
"""

import json
import sys
from pathlib import Path
from typing import Any

from mjfleet.env import Env
from mjfleet.legged.velocity_env import VelocityEnv
from mjfleet.registry import find_task


def main(request: dict[str, Any]) -> None:
    """Print the path as JSON; null where the task has no file, but makes its model in code.

    To the file of a legged robot, VelocityEnv adds no more than a plane and sensors.
    """
    found = find_task(request["task"], Path(request["task_folder"]))
    task: Any = found.load(found.task.env_class, Env)
    has_file = task.make_model.__func__ in (
        Env.make_model.__func__,
        VelocityEnv.make_model.__func__,
    )
    print(json.dumps(str(task.model_path()) if has_file else None))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
