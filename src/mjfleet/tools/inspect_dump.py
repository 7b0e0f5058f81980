"""`mjfleet inspect FILE`: shows which number of which world went bad first, and the likely cause.

Runs in the process that the user started. Importing this file imports nothing heavy.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from mjfleet.config.flags import parse_flags
from mjfleet.errors import UserError
from mjfleet.registry import discover
from mjfleet.runs.config_yaml import CONFIG_FILE, read_config
from mjfleet.runs.own_runs import tasks_dir_of
from mjfleet.runs.run_json import RECORD_FILE
from mjfleet.runs.run_lookup import failure_files, find_run, record_of
from mjfleet.tools.trained_task import trained_task
from mjfleet.utils.console import print_line
from mjfleet.utils.mujoco_import import import_mujoco

if TYPE_CHECKING:
    from mjfleet.nan_dump.dump_file import NanDump


@dataclass(frozen=True, kw_only=True)
class InspectArguments:
    """Show which number went bad first, and in which world, from the dump of a diverged run."""

    file: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN|FILE")]
    """A run, whose newest dump is shown, or a dump: failures/nan_rank<r>.npz in its directory."""
    log_root: str = "logs"
    """Folder that holds the run directories."""
    as_trained: bool = False
    """Build the model by the run's own copy of the task's code, which may be somebody else's."""


def inspect(arguments: Sequence[str]) -> int:
    """Print what a dump shows about each of its worlds, the one that went bad first at the top."""
    parsed = parse_flags(InspectArguments, arguments, "mjfleet inspect")
    file = _find(parsed.file, Path(parsed.log_root))
    dump = load(file, parsed.as_trained)
    from mjfleet.nan_dump.dump_file import first_bad_number
    from mjfleet.nan_dump.explanation import explain_world

    bad = {world: first_bad_number(dump.arrays, i) for i, world in enumerate(dump.worlds)}
    worlds = sorted(bad, key=bad.__getitem__)
    first = bad[worlds[0]]
    # A step starts from the result of the step before.
    is_start = first.name.startswith(("start/", "observation/"))
    iteration, count = (dump.arrays[name].item() for name in ("iteration", "num_envs"))
    print_line(
        f"{dump.task}, iteration {iteration}: {len(worlds)} of {count} worlds, "
        f"{dump.num_steps} steps"
    )
    for world in worlds:
        print_line("\n" + explain_world(dump, world, bad[world]))
    print("\nIn Python, from where the physics of a step started:")
    print("  from mjfleet.tools.inspect_dump import load")
    print(f"  dump = load({file!a}{', as_trained=True' if parsed.as_trained else ''})")
    print(f"  data = dump.replay(world={worlds[0]}, step={max(0, first.step - is_start)})")
    return 0


def load(file: str | Path, as_trained: bool = False) -> "NanDump":
    """Read a dump of a run directory, and build the model by the run's task and configuration.

    Args:
        file: its path.
        as_trained: whether to run the run's own copy of the task's code.

    Raises:
        UserError: the file is no dump, lies in no run directory, or does not fit the model; or the
            task is not found.
    """
    import_mujoco()
    from mjfleet.nan_dump.dump_file import NanDump, read

    arrays = read(Path(file))
    folders = Path(file).absolute().parents
    run_dir = next((one for one in folders if (one / RECORD_FILE).exists()), None)
    if run_dir is None:
        raise UserError(f"{file} lies in no run directory, which has the task's configuration.")
    task = str(record_of(run_dir)["task"])
    now = None if as_trained else discover(os.environ, tasks_dir_of(run_dir)).tasks.get(task)
    path = str(run_dir / CONFIG_FILE)
    found, config = trained_task(run_dir, task, now, read_config(path, path), as_trained)
    found.check_packages()
    model = found.load(found.task.env_class).make_model(config.env)
    dump = NanDump(arrays, model, task)
    if misfit := dump.misfit():
        raise UserError(
            f"{file}: its {misfit} is not of the model of task {task}, which may have changed "
            "since: --as-trained builds it as it was."
        )
    return dump


def _find(wanted: str, log_root: Path) -> str:
    """Return the path of a dump, or of the newest one of the run that a word means."""
    if Path(wanted).is_file():
        return wanted
    run = find_run(wanted, wanted, log_root)
    found = failure_files(run, "nan_rank*.npz")
    dumps = sorted(found, key=lambda path: path.lstat().st_mtime)
    if not dumps:
        raise UserError(f"{run} has no dump of numbers that are not finite.")
    print_line(f"{dumps[-1]}: the newest of {len(dumps)}" if len(dumps) > 1 else str(dumps[-1]))
    return str(dumps[-1])
