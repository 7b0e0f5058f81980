"""`train --seeds`: one run for each seed, as a group. Runs in the launcher."""

import os
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from datetime import datetime
from itertools import pairwise
from pathlib import Path

from mjfleet.config import TrainConfig
from mjfleet.config.validation import MAX_COUNT
from mjfleet.errors import UserError
from mjfleet.groups.device_shares import divide_devices
from mjfleet.groups.group_folder import enter_group
from mjfleet.groups.run_queue import Member, run_members
from mjfleet.launch.devices import choose_devices
from mjfleet.launch.host_names import LOCALHOST, choose_hosts
from mjfleet.launch.hosts.host_environment import take_variables
from mjfleet.launch.launch_plan import describe, make_plan, name_files, new_folder
from mjfleet.launch.launch_training import resume_command
from mjfleet.launch.planned_run import FAILED, draw_curves
from mjfleet.runs.run_json import GROUP_FILE, record_of
from mjfleet.runs.start import NEW, Chosen
from mjfleet.utils.console import in_a_line, print_line
from mjfleet.worker.rank_environment import Rank, torchrun_variables
from mjfleet.worker.stop_signals import StopRequest

SEEDS_KIND = "seeds"  # The kind of group, in group.json.
ONE_EACH = "or train each seed by a command of its own, with --agent.seed and all its workers."


def train_seeds(chosen: Chosen) -> int:
    """Train a seed group; return the exit code.

    The configuration is what all runs have in common. UserError if a value does not fit this
    machine, or all runs were refused: of a new group, nothing is left then.
    """
    chosen = group_of(chosen, ONE_EACH)
    found, config, group = chosen.found, chosen.config, chosen.start.run_dir
    seeds = _recorded_seeds(config, group) if group else None
    number = len(seeds) if seeds else count_seeds(config)
    shares = divide_devices(config, os.environ, number, config.per_run)
    seeds = seeds or _seeds_of(config, shares[0].workers)
    members = [Member(f"seed_{seed}", ("--agent.seed", str(seed))) for seed in seeds]
    folder = group or new_folder(config, datetime.now())
    first = replace(
        config,
        agent=replace(config.agent, seed=seeds[0]),
        gpu_ids=list(shares[0].gpus) or None,
        cpu_threads=shares[0].threads,
        run_dir=str(folder / members[0].name),
    )
    with StopRequest().installed():  # Finds mistakes before there is a folder.
        plan = make_plan(found, first, [choose_devices(first, os.environ)], start=NEW)
    if not group:  # All have what their length decides now, also those that will be longer.
        agent = replace(config.agent, algorithm=plan.config.agent.algorithm)
        chosen = replace(chosen, config=replace(config, agent=agent))
    plan = name_files(plan, os.environ, datetime.now())
    if config.dry_run:
        print_line(f"seed group: {folder}, {len(shares)} runs at a time on {shares[0].size} each")
        for member in members:
            how = "continues" if (folder / member.name).exists() else "begins"
            print_line(f"{member.name + ':':<25}{how}")
        print_line(f"\nthe first one:\n\n{describe(plan)}")
        return 0
    recorded = {f"seed_{seed}": {"seed": seed} for seed in seeds}
    entries = {"kind": SEEDS_KIND, "members": recorded}
    folder, attempt = enter_group(chosen, entries)
    with closing(attempt):
        waiting = list(members)
        print_line(f"seed group: {folder}")

        def next_member() -> Member | None:
            return waiting.pop(0) if waiting and not _common_mistake(members) else None

        def ended(member: Member) -> None:
            if not _common_mistake(members):
                print_line(f"{member.name} {member.status}{member.cause and f': {member.cause}'}")

        try:
            number = run_members(found, config, folder, shares, next_member, ended)
        except BaseException as error:  # Such as a log file that cannot be written.
            attempt.end("failed", cause=in_a_line(error))
            raise
        finished = [member.status for member in members].count("finished")
        is_all = finished == len(seeds)
        mistake = "" if number else _common_mistake(members)
        if mistake and chosen.start.again == "typed":
            for member in [] if group else members:
                (folder / f"{member.name}.log").unlink(missing_ok=True)
            attempt.leave()
            raise UserError(mistake)
        cause = {"cause": mistake, "kind": "UserError", "iteration": 0} if mistake else {}
        attempt.end("finished" if is_all else "stopped" if number else "failed", **cause)
    if number is None:
        draw_curves(folder)
    print_line(f"{finished} of {len(seeds)} runs have finished: {folder}")
    if not is_all:
        print_line(f"resume with: {resume_command(found.name, folder)}")
    return 0 if is_all else 128 + number if number else FAILED


def _common_mistake(members: Sequence[Member]) -> str:
    """Return the mistake of the user's for which all runs so far were refused, or empty text."""
    begun = [member for member in members if member.status not in ("waiting", "running")]
    return begun[0].cause if {member.status for member in begun} == {"refused"} else ""


def group_of(chosen: Chosen, otherwise: str) -> Chosen:
    """Return what is chosen for a group, with the variables of --env-var set here.

    UserError, which ends with what to do `otherwise`, if workers are on other hosts or something
    else has started this process.
    """
    config = chosen.config
    is_worker = Rank.from_environ(os.environ | torchrun_variables(os.environ))
    if is_worker or choose_hosts(config, os.environ) != [LOCALHOST]:
        raise UserError(
            "the runs of a group share one machine, and are started by this command: leave out "
            f"--hosts, torchrun and srun, {otherwise}"
        )
    config = replace(config, env_var=take_variables(config.env_var, os.environ))
    return replace(chosen, config=config)


def count_seeds(config: TrainConfig) -> int:
    """Return how many seeds --seeds means."""
    return config.seeds[0] if len(config.seeds) == 1 else len(config.seeds)


def _seeds_of(config: TrainConfig, workers: int) -> Sequence[int]:
    """Return the seeds that --seeds means, for runs of that many workers, which share no seed.

    A line warns of seeds that are typed and too near each other for that. UserError if the seed of
    the last run would be too large.
    """
    if len(config.seeds) == 1:
        seeds = range(config.agent.seed, config.agent.seed + config.seeds[0] * workers, workers)
        if seeds[-1] > MAX_COUNT:
            raise UserError(
                f"--seeds {config.seeds[0]}: the last one would be {seeds[-1]}; it must be at most "
                f"{MAX_COUNT}: begin with another --agent.seed."
            )
        return seeds
    if any(other - one < workers for one, other in pairwise(sorted(config.seeds))):
        print_line(
            f"warning: a run has {workers} workers, so seeds less than {workers} apart share "
            "random numbers, and their results are not independent"
        )
    return config.seeds


def _recorded_seeds(config: TrainConfig, group: Path) -> list[int]:
    """Return the seeds of a group; UserError if it is another kind, or has other seeds."""
    record = record_of(group)
    if (kind := record.get("kind")) != SEEDS_KIND:
        raise UserError(f"{group} is no seed group: continue it by `mjfleet {kind} --resume`.")
    seeds = [one.get("seed") for one in record.get("members", {}).values()]
    if not seeds or not all(type(seed) is int for seed in seeds):
        raise UserError(f"{group}: its {GROUP_FILE} names no seeds.")
    typed = config.seeds
    if typed and (typed[0] != len(seeds) if len(typed) == 1 else {*typed} != {*seeds}):
        raise UserError(f"--seeds: {group} has the seeds {seeds}; leave it out.")
    return seeds
