"""`mjfleet check-task <task>`: common mistakes in a task, found before training suffers from them.

It runs the task in this process, on both engines.
"""

import os
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro

from mjfleet.cli.flags import parse_flags
from mjfleet.config import TrainConfig, from_dict
from mjfleet.errors import UserError
from mjfleet.launch.devices import select_devices
from mjfleet.registry import FoundTask, discover
from mjfleet.utils.console import in_a_line, print_line
from mjfleet.utils.hardware_names import count_gpus
from mjfleet.worker.thread_limits import prepare

WORLDS = 32


@dataclass(frozen=True, kw_only=True)
class CheckTaskArguments:
    """Run a task for some steps on each engine, with random actions, and look for mistakes."""

    name: tyro.conf.Positional[str]
    """The task."""
    tasks_dir: str | None = None
    """Folder of task folders that is searched first."""


def check_task(arguments: Sequence[str]) -> int:
    """Print each mistake; 1 if there are any."""
    parsed = parse_flags(CheckTaskArguments, arguments, "mjfleet check-task")
    found = discover(os.environ, parsed.tasks_dir).find(parsed.name)
    config = from_dict(found.defaults(), {"env": {"num_envs": WORLDS}})
    (device,) = select_devices("auto", os.environ, count_gpus()).names
    places: list[tuple[Literal["native", "warp"], str]] = [("native", "cpu"), ("warp", device)]
    prepare()
    from mjfleet.tools.check_task.task_checks import STEPS, disagreements

    seen = []
    mistakes: dict[str, list[str]] = {}
    """And the places that have it; none named where it is of no single place."""
    for engine, device in places:
        where = f"{engine} on {device}"
        compiles = "; compiling a new model's kernels takes about a minute" * (engine == "warp")
        print_line(f"{where}: {STEPS} steps of {WORLDS} worlds with random actions{compiles}")
        try:
            signals, its_mistakes = _run(found, config, engine, device)
        except Exception as error:
            mistakes.setdefault(_place_of(error, found), []).append(where)
            break
        seen.append(signals)
        for mistake in its_mistakes:
            mistakes.setdefault(mistake, []).append(where)
    if len(seen) > 1:
        mistakes |= {mistake: [] for mistake in disagreements(*seen)}
    for mistake, there in mistakes.items():
        only = f" ({', '.join(there)} only)" if 0 < len(there) < len(seen) else ""
        print_line(f"mistake: {mistake}{only}")
    if not mistakes:
        print_line("nothing found")
    return 1 if mistakes else 0


def _run(
    found: FoundTask, config: TrainConfig, engine: Literal["native", "warp"], device: str
) -> tuple[Any, list[str]]:
    """What is seen on one engine, and the mistakes found."""
    from mjfleet.env.factory import build_env, on_device
    from mjfleet.rl.checkpoint_files import seed_everything
    from mjfleet.tools.check_task.task_checks import check

    seed_everything(config.agent.seed)
    with on_device(engine, device):
        return check(build_env(found, config, engine, device, num_threads=1), config.agent)


def _place_of(error: Exception, found: FoundTask) -> str:
    """The task's own exception, with its newest line in the task's folder; another's is raised."""
    if isinstance(error, UserError):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).is_relative_to(found.folder)]
    if not own:
        raise error
    place = f"{os.path.relpath(own[-1].filename)}:{own[-1].lineno}, in {own[-1].name}()"
    return f"{place}: `{own[-1].line}`: {type(error).__name__}: {in_a_line(error)}"
