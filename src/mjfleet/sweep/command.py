"""`mjfleet sweep <task>`: begins a sweep or continues one. Runs in the launcher."""

import os
import secrets
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from mjfleet.cli.train import configure, train
from mjfleet.config import from_dict
from mjfleet.config.flags import HELP, LIST_FLAGS, parse_flags, parse_known
from mjfleet.errors import UserError
from mjfleet.groups.device_shares import divide_devices
from mjfleet.groups.group_folder import enter_group
from mjfleet.groups.seeds import group_of
from mjfleet.launch.hosts.host_environment import without_values
from mjfleet.runs.own_runs import note_of
from mjfleet.runs.run_json import record_of
from mjfleet.runs.start import Chosen
from mjfleet.sweep.arguments import SweepArguments
from mjfleet.utils.console import print_line
from mjfleet.utils.packages import need_extra

if TYPE_CHECKING:
    from mjfleet.sweep.study import Study

PROG = "mjfleet sweep"
SWEEP_KIND = "sweep"  # The kind of group, in group.json.
ABOUT = """Find good settings of a task by many short runs.

The flags of `train` are for all trials; `train <task> --help` shows them."""


def sweep(argv: Sequence[str]) -> int:
    """Parse the arguments and run the sweep; return the exit code."""
    if asked := {*HELP, LIST_FLAGS} & {*argv}:
        with suppress(SystemExit):
            parse_flags(SweepArguments, [*asked], f"{PROG} <task>", None, ABOUT)
        return train(argv) if LIST_FLAGS in asked else 0
    wanted, flags = parse_known(SweepArguments, argv, PROG)
    folder_id = secrets.token_hex(8)
    if wanted.resume is not None:
        flags = [*flags, "--resume", wanted.resume]
    chosen = configure(flags)
    if existing := chosen.start.run_dir:
        wanted, folder_id = _recorded(existing, argv), str(record_of(existing).get("folder_id"))
    chosen = group_of(chosen, "or start a sweep on each machine, with the same --storage.")
    found, config = chosen.found, chosen.config
    workers = divide_devices(config, os.environ, 1, config.per_run)[0].workers
    study = define_sweep(wanted, chosen, workers)
    from mjfleet.sweep.study import check_storage, place_in
    from mjfleet.sweep.trials import run_trials

    storage, is_new = wanted.storage, existing is None
    if storage:  # Before anything is created.
        storage = storage if "://" in storage else os.path.abspath(storage)
        check_storage(storage)
        if not config.dry_run:
            study.open(storage, folder_id, is_new)
    shares = divide_devices(config, os.environ, study.most, config.per_run)
    how = f"{wanted.metric}, {len(shares)} at once with {shares[0].size} each"
    print_line(f"{study.most} trials of {found.name} for {how}: {' '.join(wanted.try_)}")
    if config.dry_run:
        return 0
    arguments = asdict(replace(wanted, storage=None, resume=None))
    entries = {"kind": SWEEP_KIND, "arguments": arguments, "folder_id": folder_id}
    chosen = replace(chosen, config=study.config, argv=[SWEEP_KIND, *without_values(argv)])
    folder, attempt = enter_group(chosen, entries, {"storage": storage})
    with closing(attempt):
        if not storage:
            try:
                study.open(place_in(folder), folder_id, is_new)
            except UserError:
                attempt.leave()
                raise
        return run_trials(found, folder, attempt, study, shares)


def define_sweep(wanted: SweepArguments, chosen: Chosen, workers: int = 1) -> "Study":
    """Return the study that the flags describe; UserError for a bad value. Creates nothing."""
    need_extra("sweep", PROG, ["optuna", "cmaes"])
    if chosen.config.seeds:
        raise UserError("--seeds: leave it out, or vary the seed: --try agent.seed=1,2,3.")
    if (parent := chosen.start.parent) and not parent.networks_only:
        raise UserError(
            f"--resume {parent.typed}: no trial can continue it. --init-from {parent.typed} begins "
            "each trial with its networks."
        )
    from mjfleet.sweep.study import Study  # Optuna takes a third of a second.

    return Study(wanted, chosen.found, chosen.config, workers)


def _recorded(existing: Path, argv: Sequence[str]) -> SweepArguments:
    """Return the flags of a sweep that continues, with those on top that are typed now.

    Only this installation's note decides the storage.
    """
    record, note = record_of(existing), note_of(existing)
    if record.get("kind") != SWEEP_KIND:
        raise UserError(f"{existing} holds no sweep.")
    arguments = dict(record.get("arguments", {}))
    arguments.pop("space", None)  # Earlier versions read values from a file, too.
    arguments["storage"] = note and note.placements[-1].get("storage")
    return parse_known(SweepArguments, argv, PROG, from_dict(SweepArguments(), arguments))[0]
