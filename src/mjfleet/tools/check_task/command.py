"""`mjfleet check-task <task>`: finds common mistakes in a task before it is trained.

Runs the task in the process that the user started, on both engines. Importing this file imports
nothing heavy.
"""

import os
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from mjfleet.cli.flags import parse_flags
from mjfleet.config import LaunchConfig, from_dict
from mjfleet.config.validation import Checked, OptionalFolder
from mjfleet.errors import UserError
from mjfleet.launch.devices import choose_devices
from mjfleet.registry import FoundTask, discover
from mjfleet.utils.console import in_a_line, print_line
from mjfleet.worker.thread_limits import prepare

WORLDS = 32


@dataclass(frozen=True, kw_only=True)
class CheckTaskArguments(Checked):
    """Run a task with random actions for some steps on each engine, and look for mistakes."""

    name: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="TASK")]
    """The task."""
    tasks_dir: OptionalFolder = None
    """Folder of task folders that is searched first."""


def check_task(arguments: Sequence[str]) -> int:
    """Print each mistake; return 1 if there are any."""
    parsed = parse_flags(CheckTaskArguments, arguments, "mjfleet check-task")
    found = discover(os.environ, parsed.tasks_dir).find(parsed.name)
    config = from_dict(found.defaults(), {"env": {"num_envs": WORLDS}})
    (device,) = choose_devices(LaunchConfig(), os.environ).names
    places: list[tuple[Literal["native", "warp"], str]] = [("native", "cpu"), ("warp", device)]
    prepare()
    from mjfleet.env.factory import build_env, on_device
    from mjfleet.env.random_numbers import seed_everything
    from mjfleet.tools.check_task.task_checks import STEPS, check, disagreements

    seen = []
    mistakes: dict[str, list[str]] = {}  # The engines that show each; none: they disagree.
    for engine, device in places:
        where = f"{engine} on {device}"
        compiles = "; compiling a new model's kernels takes about a minute" * (engine == "warp")
        print_line(f"{where}: {STEPS} steps of {WORLDS} worlds with random actions{compiles}")
        seed_everything(config.agent.seed)
        try:
            with on_device(engine, device):
                env = build_env(found, config, engine, device, num_threads=1)
                signals, its_mistakes = check(env, config.agent)
        except Exception as error:
            mistakes.setdefault(_describe(error, found), []).append(where)
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


def _describe(error: Exception, found: FoundTask) -> str:
    """Return an exception's message with the last line of the task's code that led to it.

    An exception that the task's code did not lead to is raised.
    """
    if isinstance(error, UserError):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).is_relative_to(found.folder)]
    if not own:
        raise error
    place = f"{os.path.relpath(own[-1].filename)}:{own[-1].lineno}, in {own[-1].name}()"
    return f"{place}: `{own[-1].line}`: {type(error).__name__}: {in_a_line(error)}"
