"""`mjfleet sweep <task>`: begins a sweep or goes on with one. Runs in the launcher."""

import difflib
import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from mjfleet.cli.flags import HELP, LIST_FLAGS, parse_flags, peek
from mjfleet.cli.train import configure, train, with_task
from mjfleet.config import TrainConfig
from mjfleet.errors import UserError, WorkerError
from mjfleet.groups.device_shares import divide_devices
from mjfleet.groups.group_record import GroupRecord
from mjfleet.groups.run_queue import MISTAKE
from mjfleet.groups.seeds import on_this_host
from mjfleet.launch.launch_training import refuse_existing
from mjfleet.registry import FoundTask
from mjfleet.runs.beginning import begin_from
from mjfleet.runs.config_yaml import CONFIG_FILE, placement_flags, write_config
from mjfleet.runs.metrics_csv import METRICS_FILE, read_rows
from mjfleet.runs.run_json import GROUP_FILE, write_record
from mjfleet.runs.run_lookup import find_run, record_of
from mjfleet.sweep.arguments import SweepArguments, split_flags
from mjfleet.utils.child_process import ChildProcess, python_module
from mjfleet.utils.console import print_line
from mjfleet.utils.packages import need_extra
from mjfleet.worker.stop_signals import StopRequest

if TYPE_CHECKING:
    from mjfleet.sweep.definition import Definition

PROG = "mjfleet sweep"
KIND = "sweep"  # Of the group, and the entry of group.json with `id` and `arguments`.
ALWAYS = ("mean_return", "eval/return", "eval/length")
"""Columns of metrics.csv that every run logs, if it is evaluated."""


def sweep(arguments: Sequence[str]) -> int:
    """Parse the arguments and run the sweep; return the exit code."""
    own, others = split_flags(arguments)
    if asked := next((word for word in arguments if word in (*HELP, LIST_FLAGS)), None):
        with suppress(SystemExit):
            parse_flags(SweepArguments, [asked], f"{PROG} <task>")
        if asked == LIST_FLAGS:
            return train(others)
        print("The flags of `train` are for all trials; `train <task> --help` shows them.")
        return 0
    given = parse_flags(SweepArguments, own, PROG)
    if given.resume is None:
        return _run(given, with_task(others), arguments)
    root = Path(peek(others, "--log-root") or TrainConfig().log_root)
    folder = find_run(given.resume, f"--resume {given.resume}", root, may_be_group=True)
    try:
        known = record_of(folder, GROUP_FILE)[KIND]
        default = SweepArguments(**known["arguments"] | {"try_": (*known["arguments"]["try_"],)})
        wanted = parse_flags(SweepArguments, own, PROG, default)
    except (KeyError, TypeError):
        raise UserError(f"--resume {folder}: its {GROUP_FILE} is no sweep's.") from None
    words = with_task(["--config", str(folder / CONFIG_FILE), *others])
    return _run(wanted, words, arguments, folder, str(known["id"]))


def define_sweep(
    wanted: SweepArguments, found: FoundTask, config: TrainConfig, words: Sequence[str]
) -> "tuple[TrainConfig, Definition]":
    """Return what all trials share, and what the sweep is; `words` are the flags of `train`.

    Raises:
        UserError: a value is not allowed.
    """
    need_extra("sweep", PROG, ["optuna", "cmaes"])
    if config.seeds:
        raise UserError("--seeds: leave it out, or vary the seed: --try agent.seed=1,2,3.")
    # Optuna takes a third of a second: mistakes so far are answered without it.
    from mjfleet.sweep.definition import define, with_looks

    config = with_looks(config, words, wanted.metric)
    return config, define(wanted, found, config)


def _run(
    wanted: SweepArguments,
    words: Sequence[str],
    argv: Sequence[str],
    folder: Path | None = None,
    folder_id: str | None = None,
) -> int:
    """Run a new sweep, or go on with that of a folder."""
    if not words or words[0].startswith("-"):
        raise UserError(f"the task comes first: `{PROG} <task> --try NAME=VALUES`.")
    found, config, *_ = configure(words)
    config = on_this_host(config, "or start a sweep on each machine, with the same --storage.")
    if config.init_from and folder is None:
        _, config = begin_from(config)  # `latest` means the same run for all.
    config, definition = define_sweep(wanted, found, config, words)
    from mjfleet.sweep.space import defaults_in, with_seeds_apart
    from mjfleet.sweep.study import Study, without_password
    from mjfleet.sweep.trials import run_trials

    shown = wanted.storage and without_password(wanted.storage)
    argv = [KIND, *(word.replace(wanted.storage or word, shown or word) for word in argv)]
    shares = divide_devices(config, os.environ, definition.most, config.per_run)
    space, warning = with_seeds_apart(definition.space, shares[0].workers)
    definition = replace(definition, space=space, defaults=defaults_in(space, config))
    if folder is None:
        refuse_existing(config)
        _check_metric(found.name, config, definition.metric)
    how = f"{wanted.sampler}, {wanted.pruner}; {len(shares)} at once with {shares[0]} each"
    print_line(f"{definition.most} trials of {found.name} for {wanted.metric}: {how}")
    for name, typed in definition.typed.items():
        print_line(f"  {name}: {typed}")
    if warning:
        print_line(warning)
    if config.dry_run:
        return 0
    name = "/".join(filter(None, (config.agent.experiment_name, config.agent.run_name)))
    if wanted.storage and "://" not in wanted.storage:
        shown = os.path.abspath(wanted.storage)
        wanted = replace(wanted, storage=shown)
    # What --space says is kept, not the file's name, and no password.
    tried = tuple(f"{name}={typed}" for name, typed in definition.typed.items())
    kept = replace(wanted, try_=tried, space=None, resume=None, storage=shown)
    if folder is None:
        group = GroupRecord.create(KIND, found.name, config, {}, argv)
    else:
        group = GroupRecord.reopen(folder, found.name, argv)
    folder_id = folder_id or secrets.token_hex(8)
    with group:
        try:
            study = Study(wanted.storage, group, folder_id, definition, name)
        except UserError:
            group.discard()
            raise
        entry = {"id": folder_id, "arguments": asdict(kept)}
        write_record(group.folder, GROUP_FILE, **{KIND: entry})
        group.write_config(config)
        return run_trials(group, study, config, shares)


def _check_metric(task: str, config: TrainConfig, metric: str) -> None:
    """Raise an error if no run logs the metric; to see that, train an iteration if needed."""
    if metric in ALWAYS:
        return
    print_line(f"training one iteration to see whether runs log {metric}")
    agent = replace(config.agent, max_iterations=1, logger=("none",))
    config = replace(
        config,
        agent=agent,
        total_steps=None,
        video_interval=None,
        eval_interval=config.eval_interval and 1,
    )
    with TemporaryDirectory() as folder, StopRequest().installed():
        file, run_dir = Path(folder, "config.yaml"), Path(folder, "run")
        config = replace(config, log_root=folder)
        write_config(file, task, config)
        words = (task, "--config", str(file), "--run-dir", str(run_dir), "--quiet")
        words = (*words, *placement_flags(config))
        with ChildProcess(python_module("mjfleet.cli.train", *words), is_foreign=True) as child:
            if code := child.wait():
                why = child.mistake() or child.errors().strip()
                raise UserError(why) if code == MISTAKE else WorkerError(why)
        columns, _ = read_rows(run_dir / METRICS_FILE)
    if metric not in columns:
        near = difflib.get_close_matches(metric, columns, n=3, cutoff=0.5) or columns
        raise UserError(
            f"--metric {metric}: runs of {task} never log it. They log {', '.join(near)}."
        )
