"""`mjfleet inspect FILE`: shows which number of which world went bad first, and the likely cause.

Runs in the process that the user started. Importing this file imports nothing heavy.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from mjfleet.cli.flags import parse_flags
from mjfleet.errors import UserError
from mjfleet.runs.run_lookup import failure_files, find_run
from mjfleet.utils.console import print_line
from mjfleet.utils.mujoco_import import import_mujoco


@dataclass(frozen=True, kw_only=True)
class InspectArguments:
    """Show which number went bad first, and in which world, from the dump of a diverged run."""

    file: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN|FILE")]
    """A run, whose newest dump is shown, or a dump: failures/nan_rank<r>.npz in its directory."""
    log_root: str = "logs"
    """Folder that holds the run directories."""
    trust: bool = False
    """Accept a dump of somebody else, whose model MuJoCo reads without checking it."""


def inspect(arguments: Sequence[str]) -> int:
    """Print what a dump shows about each of its worlds, the one that went bad first at the top."""
    parsed = parse_flags(InspectArguments, arguments, "mjfleet inspect")
    import_mujoco()
    from mjfleet.nan_dump.dump_file import first_bad_number, load
    from mjfleet.nan_dump.explanation import explain_world

    file = _find(parsed.file, Path(parsed.log_root))
    dump = load(file, parsed.trust)
    bad = {world: first_bad_number(dump.arrays, i) for i, world in enumerate(dump.worlds)}
    worlds = sorted(bad, key=bad.__getitem__)
    first = bad[worlds[0]]
    # A step starts from the result of the step before.
    is_start = first.name.startswith(("start/", "observation/"))
    task, iteration, count = (dump.arrays[n].item() for n in ("task", "iteration", "num_envs"))
    print_line(
        f"{task}, iteration {iteration}: {len(worlds)} of {count} worlds, {dump.num_steps} steps"
    )
    for world in worlds:
        print_line("\n" + explain_world(dump, world, bad[world]))
    print("\nIn Python, from where the physics of a step started:")
    print("  from mjfleet.nan_dump.dump_file import load")
    print(f"  dump = load({file!a}{', trust=True' if parsed.trust else ''})")
    print(f"  data = dump.replay(world={worlds[0]}, step={max(0, first.step - is_start)})")
    return 0


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
