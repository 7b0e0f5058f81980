"""`mjfleet sweep <task>`: begins a sweep or continues one. Runs in the launcher."""

import os
import secrets
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from mjfleet.cli.train import configure, train, with_task
from mjfleet.config import TrainConfig, from_dict
from mjfleet.config.flags import HELP, LIST_FLAGS, is_given, parse_flags, peek, split_words
from mjfleet.errors import UserError
from mjfleet.groups.device_shares import divide_devices
from mjfleet.groups.group_folder import GroupFolder
from mjfleet.groups.seeds import on_this_host
from mjfleet.registry import FoundTask
from mjfleet.runs.beginning import begin_from
from mjfleet.runs.config_yaml import CONFIG_FILE
from mjfleet.runs.own_runs import note_of
from mjfleet.runs.run_json import GROUP_FILE
from mjfleet.runs.run_lookup import find_run, is_group, record_of
from mjfleet.sweep.arguments import SweepArguments, split_flags
from mjfleet.utils.console import print_line
from mjfleet.utils.packages import need_extra

if TYPE_CHECKING:
    from mjfleet.sweep.study import Study

PROG = "mjfleet sweep"
KIND = "sweep"  # Of the group, in group.json.


def sweep(argv: Sequence[str]) -> int:
    """Parse the arguments and run the sweep; return the exit code."""
    own, words = split_flags(argv)
    if asked := next((word for word in argv if word in (*HELP, LIST_FLAGS)), None):
        with suppress(SystemExit):
            parse_flags(SweepArguments, [asked], f"{PROG} <task>")
        if asked == LIST_FLAGS:
            return train(words)
        print("The flags of `train` are for all trials; `train <task> --help` shows them.")
        return 0
    wanted = parse_flags(SweepArguments, own, PROG)
    folder, folder_id = _existing(wanted, words), secrets.token_hex(8)
    if folder:
        record, note = record_of(folder, GROUP_FILE), note_of(folder)
        if record.get("kind") != KIND:
            raise UserError(f"{folder} is no sweep.")
        recorded = from_dict(SweepArguments(), record.get("arguments", {}))
        folder_id = str(record.get("folder_id"))
        wanted = parse_flags(SweepArguments, own, PROG, recorded)
        if (storage := wanted.storage) and not (
            is_given(own, "--storage") or (note and note.has("storage", storage))
        ):
            raise UserError(
                f"{folder}: its {GROUP_FILE} does not decide --storage {storage}: give it."
            )
        words = [*split_words(words, {"run-dir"})[1], "--config", str(folder / CONFIG_FILE)]
    words = with_task(words)
    if not words or words[0].startswith("-"):
        raise UserError(f"the task comes first: `{PROG} <task> --try NAME=VALUES`.")
    found, config, run = configure(words)
    if run and run.run_dir:
        raise UserError(f"--run-dir {run.run_dir}: a run is in it, not a sweep.")
    config = on_this_host(config, "or start a sweep on each machine, with the same --storage.")
    if config.init_from and folder is None:
        _, config = begin_from(config)  # `latest` means the same run for all.
    study = define_sweep(wanted, found, config)
    from mjfleet.sweep.trials import run_trials

    shares = divide_devices(config, os.environ, study.most, config.per_run)
    how = f"{wanted.sampler}, {wanted.pruner}; {len(shares)} at once with {shares[0]} each"
    print_line(f"{study.most} trials of {found.name} for {wanted.metric}: {how}")
    for name, typed in study.typed.items():
        print_line(f"  {name}: {typed}")
    if config.dry_run:
        return 0
    if wanted.storage and "://" not in wanted.storage:
        wanted = replace(wanted, storage=os.path.abspath(wanted.storage))
    with closing(GroupFolder(found.name, config, folder)) as group:
        try:
            study.open(wanted.storage, group.path, folder_id, is_new=folder is None)
        except UserError:
            group.discard()
            raise
        # What --space says is recorded, not the file's name.
        tried = tuple(f"{name}={typed}" for name, typed in study.typed.items())
        arguments = asdict(replace(wanted, try_=tried, space=None, resume=None))
        entries = {"kind": KIND, "arguments": arguments, "folder_id": folder_id}
        group.begin(study.config, [KIND, *argv], {"storage": wanted.storage}, **entries)
        with study.explained():
            return run_trials(group, study, shares)


def define_sweep(wanted: SweepArguments, found: FoundTask, config: TrainConfig) -> "Study":
    """Return the study that the flags describe; nothing is created.

    Raises:
        UserError: a value is not allowed.
    """
    need_extra("sweep", PROG, ["optuna", "cmaes"])
    if config.seeds:
        raise UserError("--seeds: leave it out, or vary the seed: --try agent.seed=1,2,3.")
    from mjfleet.sweep.study import Study  # Optuna takes a third of a second.

    return Study(wanted, found, config)


def _existing(wanted: SweepArguments, words: Sequence[str]) -> Path | None:
    """Return the folder of the sweep that --resume names, or that is in --run-dir."""
    if wanted.resume is not None:
        root = Path(peek(words, "--log-root") or TrainConfig().log_root)
        return find_run(wanted.resume, f"--resume {wanted.resume}", root, may_be_group=True)
    run_dir = peek(words, "--run-dir")
    return Path(run_dir) if run_dir and is_group(Path(run_dir)) else None
