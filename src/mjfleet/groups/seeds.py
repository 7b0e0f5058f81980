"""`train --seeds` and `train --resume GROUP`: one run for each seed. Runs in the launcher."""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from mjfleet.cli.flag_table import as_flag
from mjfleet.config import TrainConfig, from_dict
from mjfleet.config.rank_seed import seeds_apart, shared_seed
from mjfleet.config.train_config import continues_in_place
from mjfleet.config.validation import MOST
from mjfleet.errors import UserError
from mjfleet.groups.device_shares import Share, divide_devices
from mjfleet.groups.group_record import GroupRecord
from mjfleet.groups.run_queue import Ending, GroupView, Member, RunningMember, run_members
from mjfleet.launch.host_environment import take_variables
from mjfleet.launch.host_names import LOCALHOST, choose_hosts
from mjfleet.launch.launch_plan import describe, new_folder
from mjfleet.launch.launch_training import plan_here, refuse_existing, resume_command
from mjfleet.launch.planned_run import FAILED, draw_curves
from mjfleet.registry import FoundTask
from mjfleet.runs.beginning import begin_from
from mjfleet.runs.config_yaml import (
    CONFIG_FILE,
    differences,
    placement_flags,
    read_config,
)
from mjfleet.runs.metrics_csv import completed_iterations
from mjfleet.runs.run_json import GROUP_FILE, RECORD_FILE, read_record
from mjfleet.runs.run_lookup import record_of
from mjfleet.utils.console import print_line
from mjfleet.worker.rank_environment import Rank, torchrun_variables

KIND = "seeds"
ONE_EACH = "or train each seed by a command of its own, with --agent.seed and all its workers."
OF_EACH = {"gpu_ids", "cpu_workers", "cpu_threads", "agent.seed", "agent.wandb.group"}
"""In what a member may differ from its group."""


def train_seeds(found: FoundTask, config: TrainConfig, argv: Sequence[str]) -> int:
    """Train a new group, one run for each seed of --seeds; return the exit code.

    Raises:
        UserError: the configuration asks for what cannot be had, or the members found a mistake of
            the user's; nothing is left then.
    """
    config = on_this_host(config)
    if config.init_from:
        _, config = begin_from(config)  # `latest` means the same run for all.
    refuse_existing(config)
    shares = divide_devices(config, os.environ, count_seeds(config), config.per_run)
    names = {f"seed_{seed}": seed for seed in _seeds_of(config, shares[0].workers)}
    folder, (name, seed) = new_folder(config, datetime.now()), next(iter(names.items()))
    first = replace(
        config,
        agent=replace(config.agent, seed=seed),
        gpu_ids=list(shares[0].gpus) or None,
        cpu_threads=shares[0].threads,
        run_dir=str(folder / name),
    )
    plan = plan_here(found, first)
    if config.dry_run:
        _print_plan(folder, dict.fromkeys(names, "begins"), shares)
        print_line(f"\n{name}, like the others:\n\n{describe(plan)}")
        return 0
    members = {name: {"seed": seed} for name, seed in names.items()}
    with GroupRecord.create(KIND, found.name, config, members, ["train", *argv]) as group:
        return _train(found, group, config, shares, names)


def resume_seeds(
    found: FoundTask, folder: Path, recorded: TrainConfig, config: TrainConfig, argv: Sequence[str]
) -> int:
    """Go on with a group: train the members that have not finished; return the exit code.

    `recorded` is the group's configuration, `config` the same with the changes of the flags.

    Raises:
        UserError: it is another kind of group, or the flags change what is learned.
    """
    record = record_of(folder, GROUP_FILE)
    if record.get("kind") != KIND:
        raise UserError(
            f"--resume {folder} is no group of seeds: `mjfleet {record.get('kind')} --resume`."
        )
    if config.seeds or config.run_dir:
        flag = "--seeds" if config.seeds else "--run-dir"
        raise UserError(f"{flag} is for a new group; --resume {folder} goes on with its own runs.")
    if wrong := [n for n in differences(config, recorded) if not continues_in_place(n)]:
        raise UserError(
            f"--{wrong[0].replace('_', '-')} would make other runs of those in {folder}: train a "
            "new group, or begin a run of its own from one of them: --resume RUN --fork."
        )
    config = on_this_host(replace(config, log_root=recorded.log_root))
    seeds = {name: entries.get("seed") for name, entries in record.get("members", {}).items()}
    if not seeds or any(
        type(seed) is not int or not 0 <= seed <= MOST or name != f"seed_{seed}"
        for name, seed in seeds.items()
    ):
        raise UserError(f"--resume {folder}: its {GROUP_FILE} has no members, or is damaged.")
    waiting = {n: seeds[n] for n in seeds if not _has_finished(found, folder / n, config)}
    if not waiting:
        print_line(f"nothing is left to do: all {len(seeds)} runs of {folder} have finished")
        return 0
    shares = divide_devices(config, os.environ, len(waiting), config.per_run)
    if config.dry_run:
        whats = {name: "goes on" if (folder / name).exists() else "begins" for name in waiting}
        _print_plan(folder, dict.fromkeys(seeds, "has finished") | whats, shares)
        return 0
    with GroupRecord.reopen(folder, found.name, ["train", *argv]) as group:
        group.write_config(config)
        return _train(found, group, config, shares, waiting)


class _Seeds:
    """The members of a group of seeds that are still to be trained."""

    def __init__(self, group: GroupRecord, waiting: Sequence[Member], view: GroupView) -> None:
        self._group, self._waiting, self._view = group, list(waiting), view
        self._begun: set[str] = set()
        self._mistake = ""
        self._has_trained = False  # Whether a member has completed an iteration, or finished.

    @property
    def mistake(self) -> str:
        """The mistake of the user's that all members have found so far."""
        return "" if self._has_trained else self._mistake

    def next_member(self) -> Member | None:
        """Return the next one, unless it would find the same mistake as those before."""
        return self._waiting.pop(0) if self._waiting and not self.mistake else None

    def look(self, running: Sequence[RunningMember]) -> None:
        """Announce those that are new, and show how far all are."""
        for one in running:
            if one.member.name not in self._begun:
                self._begun.add(one.member.name)
                self._group.note(one.member.name, status="running")
                self._view.say(f"{one.member.name} on {one.share}: {one.log_file}")
            self._has_trained = self._has_trained or completed_iterations(one.run_dir) > 0
        self._view.show(running, f"{len(self._waiting)} more are waiting" if self._waiting else "")

    def ended(self, member: Member, ending: Ending) -> None:
        """Record how it ended, and say so."""
        self._group.note(member.name, status=ending.status)
        if ending.is_mistake:
            self._mistake = ending.message
        else:
            self._has_trained = True
        if not self.mistake:
            why = f": {ending.message}" if ending.message else ""
            self._view.say(f"{member.name} {ending.status}{why}")


def _train(
    found: FoundTask,
    group: GroupRecord,
    config: TrainConfig,
    shares: Sequence[Share],
    seeds: Mapping[str, int],
) -> int:
    """Train members of a group, record how that ends, and return the exit code."""
    waiting = []
    for name, seed in seeds.items():
        changes = _changes(found, group.folder / name, config)
        flags = tuple(as_flag(n, v) for n, v in changes.items())
        waiting.append(Member(name, ("--agent.seed", str(seed)), flags))
    experiment = config.agent.experiment_name
    begin = ["--config", str(group.config_file), "--agent.experiment-name", experiment]
    begin += placement_flags(config)
    print_line(f"group: {group.folder}")
    with GroupView(config) as view:
        members = _Seeds(group, waiting, view)
        number = run_members(group.folder, found.name, shares, members, begin)
    statuses = [entries["status"] for entries in group.members.values()]
    is_all = set(statuses) == {"finished"}
    group.end("finished" if is_all else "stopped" if number else "failed")
    if members.mistake and not number:
        group.discard()
        raise UserError(members.mistake)
    draw_curves(group.folder)
    print_line(
        f"{statuses.count('finished')} of {len(statuses)} runs have finished: {group.folder}"
    )
    if not is_all:
        print_line(f"resume with: {resume_command(found.name, group.folder)}")
    return 0 if is_all else 128 + number if number else FAILED


def _changes(found: FoundTask, run_dir: Path, config: TrainConfig) -> dict[str, Any]:
    """Return what a member's configuration has to be changed to, by dotted name.

    It is {} for a member that has not begun, or whose configuration cannot be read.
    """
    if not os.path.lexists(run_dir / RECORD_FILE):
        return {}
    file = str(run_dir / CONFIG_FILE)
    try:
        theirs = from_dict(found.defaults(), read_config(file, file))
    except UserError:
        return {}  # Its own process says what is wrong.
    different = differences(config, theirs)
    return {
        name: ours
        for name, (ours, _) in different.items()
        if name not in OF_EACH and continues_in_place(name)
    }


def _has_finished(found: FoundTask, run_dir: Path, config: TrainConfig) -> bool:
    """Return whether a member has finished, and its length is that of the group's configuration."""
    with suppress(OSError, ValueError):
        if read_record(run_dir).get("status") == "finished":
            return not {"agent.max_iterations", "total_steps"} & {*_changes(found, run_dir, config)}
    return False


def on_this_host(config: TrainConfig, otherwise: str = ONE_EACH) -> TrainConfig:
    """Return the configuration, with the variables of --env-var set here.

    Raises:
        UserError: workers are on other hosts, or something else has started this process. The
            message ends with what to do `otherwise`.
    """
    if Rank.from_environ(os.environ | torchrun_variables(os.environ)):
        raise UserError(
            "a group of runs starts its processes itself, and torchrun or a scheduler has started "
            f"this one as a worker: start it once, without torchrun or srun, {otherwise}"
        )
    if choose_hosts(config, os.environ) != [LOCALHOST]:
        raise UserError(f"the runs of a group share one machine: leave out --hosts, {otherwise}")
    return replace(config, env_var=take_variables(config.env_var, os.environ))


def count_seeds(config: TrainConfig) -> int:
    """Return how many seeds --seeds means."""
    return config.seeds[0] if len(config.seeds) == 1 else len(config.seeds)


def _seeds_of(config: TrainConfig, workers: int) -> Sequence[int]:
    """Return the seeds that --seeds means, for runs of that many workers."""
    if len(config.seeds) > 1:
        if warning := shared_seed(config.seeds, workers):
            print_line(warning)
        return config.seeds
    first, number = config.agent.seed, count_seeds(config)
    seeds = seeds_apart(first, number, workers)
    if seeds[-1] > MOST:
        raise UserError(
            f"--seeds {number} from --agent.seed {first} on: the greatest seed is {MOST}."
        )
    return seeds


def _print_plan(folder: Path, members: Mapping[str, str], shares: Sequence[Share]) -> None:
    """Print which members a group has, and what each has of the machine."""
    each = dict.fromkeys(map(str, shares))
    print_line(f"group:                   {folder}")
    print_line(f"runs at a time:          {len(shares)}, each on {' or '.join(each)}")
    for name, what in members.items():
        print_line(f"{name + ':':<25}{what}")
