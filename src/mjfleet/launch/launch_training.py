"""Trains from a configuration until the run has ended. Runs in the launcher."""

import os
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

from mjfleet.config import LaunchConfig
from mjfleet.errors import RepeatedError, UserError, WorkerError
from mjfleet.launch.devices import choose_devices
from mjfleet.launch.host_names import LOCALHOST, choose_hosts
from mjfleet.launch.hosts.host_environment import take_variables
from mjfleet.launch.hosts.host_starter import HostConnections
from mjfleet.launch.hosts.preflight import reach_hosts
from mjfleet.launch.launch_plan import LaunchPlan, describe, make_plan, name_files
from mjfleet.launch.planned_run import FAILED, run_plan
from mjfleet.launch.restart_policy import wait_for_restart
from mjfleet.registry import find_task
from mjfleet.runs.attempts import record_failed_start
from mjfleet.runs.read_facts import again_of, read_facts
from mjfleet.runs.run_directory import RunDirectory, finish_complete
from mjfleet.runs.run_json import record_file, record_of
from mjfleet.runs.run_lock import RunLock
from mjfleet.runs.start import Again, Chosen, decide
from mjfleet.runs.task_snapshot import code_of, snapshot_folder
from mjfleet.utils.console import print_error, print_line
from mjfleet.worker.rank_environment import Rank
from mjfleet.worker.stop_signals import StopRequest


def launch_training(
    choose: Callable[[list[RunLock]], Chosen],
    train_group: Callable[[Chosen], int],
    typed_run: LaunchConfig,
    argv: Sequence[str],
) -> int:
    """Train what is chosen until it has ended for good; return the exit code.

    With --dry-run the plan is printed and nothing is run. `choose` adds the lock of a run that
    continues to the list that it gets; `argv` is for the run's record.

    Raises:
        UserError: somebody has typed what cannot be trained.
        WorkerError: the same where the command was started again, and no run can record it; or
            workers that torchrun has started again do not find each other.
    """
    run_dir = Path(typed_run.run_dir) if typed_run.run_dir else None
    max_restarts, is_restart = typed_run.max_restarts, False
    while True:
        locks = list[RunLock]()
        again: Again | None = "restart" if is_restart else None
        try:
            chosen = _chosen(choose, locks)
            if is_restart and chosen.start.again == "same":
                chosen = replace(chosen, start=replace(chosen.start, again="restart"))
            run_dir, again = chosen.start.run_dir or run_dir, chosen.start.again
            max_restarts, per_run = chosen.config.max_restarts, chosen.config.per_run
            if chosen.start.is_group:
                return train_group(chosen)
            if per_run is not None:
                raise UserError(f"--per-run {per_run} is for several runs: add --seeds.")
            code, plan = _attempt(chosen)
            if plan is None:
                return code
            run_dir = plan.run_dir
            choose = partial(_restart, replace(chosen, config=plan.config), run_dir)
        except UserError as mistake:
            for lock in locks:
                lock.close()
            code, again = FAILED, again or again_of(run_dir, argv, os.environ)
            _record_mistake(mistake, run_dir, argv, "typed" if typed_run.dry_run else again)
        assert run_dir
        if code == FAILED and max_restarts:
            code = wait_for_restart(run_dir, max_restarts)
            if code is None:
                is_restart = True
                continue
        print_line(f"run directory: {run_dir}")
        if code and list((run_dir / "checkpoints").glob("model_*.pt")):
            with suppress(UserError):  # Its run.json may be gone, and with it the run.
                print_line(_how_to_continue(run_dir))
        return code


def _chosen(choose: Callable[[list[RunLock]], Chosen], locks: list[RunLock]) -> Chosen:
    """Return what `choose` returns; UserError, which a restart counts, if it cannot read a file."""
    try:
        return choose(locks)
    except OSError as error:
        if not isinstance(error.filename, str):
            raise
        raise UserError(f"{error.filename}: {error.strerror}.") from error


def _record_mistake(
    mistake: UserError, run_dir: Path | None, argv: Sequence[str], again: Again
) -> None:
    """Record what would be a mistake as a failed attempt of a run whose command starts again.

    UserError if somebody has typed it, WorkerError if there is no such run, or on another rank.
    """
    if again == "typed":
        raise mistake
    rank = Rank.from_environ(os.environ) or Rank()
    if rank.local_rank or isinstance(mistake, RepeatedError):
        repeated = RepeatedError(str(mistake))
        repeated.exit_code = FAILED
        raise repeated
    if rank.rank or not (run_dir and record_file(run_dir).exists()):
        raise WorkerError(f"error: {mistake}")
    print_error(f"error: {mistake}")
    record_failed_start(run_dir, argv, str(mistake), again != "same")


def _restart(chosen: Chosen, run_dir: Path, locks: list[RunLock]) -> Chosen:
    """Lock a run; return what was `chosen` for the last attempt, and where that continues."""
    typed_run, found, config = LaunchConfig(resume=str(run_dir)), chosen.found, chosen.config
    _, facts = read_facts(typed_run, found.name, [], os.environ, locks, found)
    # This process has trained with the copy, even if it could not note that.
    start = decide(replace(typed_run, as_trained=facts.code.copy.folder is not None), facts)
    if start.code and start.code != snapshot_folder(run_dir, code_of(found, config).hash):
        found = find_task(found.name, start.code)
    return replace(chosen, found=found, start=start, lock=next(iter(locks), None))


def _attempt(chosen: Chosen) -> tuple[int, LaunchPlan | None]:
    """Train once; return the exit code, and the plan if this process opened the run directory."""
    found, config, start = chosen.found, chosen.config, chosen.start
    config = replace(config, env_var=take_variables(config.env_var, os.environ))
    with ExitStack() as stack:
        with StopRequest().installed():
            connections, outer = None, Rank.from_environ(os.environ)
            names = choose_hosts(config, os.environ)
            if names == [LOCALHOST]:
                started = outer.local_world_size if outer else None
                hosts = [choose_devices(config, os.environ, started=started)]
            else:
                reached = reach_hosts(names, found, config, start.is_restart)
                connections, hosts = stack.enter_context(reached)
            plan = make_plan(found, config, hosts, outer, start)
            is_first, total = plan.rank.rank == 0, plan.config.agent.max_iterations
            if start.checkpoint and (start.iteration or 0) >= total and not config.dry_run:
                if is_first:
                    if start.run_dir and start.kind == "continue":
                        finish_complete(start.run_dir)
                    print_line(_why_done(plan))
                return 0, None
            plan = name_files(plan, os.environ, datetime.now())
            if config.dry_run:
                if is_first:
                    print_line(describe(plan))
                return 0, None
            if plan.has_host_agents and connections is None:  # It starts while folders are made.
                connections = stack.enter_context(HostConnections(names, config))
            run_dir = None
            if is_first:
                plan, run_dir = _create_run_dir(plan, chosen)
        code = run_plan(plan, run_dir, connections)
        return code, plan if run_dir else None


def _why_done(plan: LaunchPlan) -> str:
    """Return the message for a run that already has all its iterations, or more."""
    config, done, total = plan.config, plan.start.iteration, plan.config.agent.max_iterations
    length = f"--agent.max-iterations {total}"
    if config.total_steps is not None:
        length = f"--total-steps {config.total_steps}"
    return (
        f"nothing is left to do: {plan.checkpoint} has {'all ' * (done == total)}{done} "
        f"iterations; {length} is the total, not how many more: raise it to train further"
    )


def _create_run_dir(plan: LaunchPlan, chosen: Chosen) -> tuple[LaunchPlan, RunDirectory]:
    """Enter the attempt; a name that is taken becomes that of a later second."""
    when, chosen = datetime.now(), replace(chosen, config=plan.config)
    while True:
        try:
            run_dir = RunDirectory(plan.run_dir, chosen, {"plan": plan.record()}, plan.logs)
            start = replace(plan.start, checkpoint=run_dir.checkpoint)
            of_run = {"task_hash": run_dir.task_hash, "attempt": run_dir.token}
            return replace(plan, start=start, **of_run), run_dir
        except FileExistsError:
            when += timedelta(seconds=1)
            plan = name_files(plan, os.environ, when)


def _how_to_continue(run_dir: Path) -> str:
    """Return the command that continues a run, with a change if it would fail again as it was."""
    record = record_of(run_dir)
    *_, last = record.get("attempts") or [{}]
    again = "it would fail again as it was; " if last.get("kind") == "DivergedError" else ""
    command = resume_command(record["task"], run_dir)
    return f"{again}resume with: {command} {last.get('flags', '')}".rstrip()


def resume_command(task: str, folder: Path) -> str:
    """Return the command that continues a run or a group, for the current folder."""
    train = "train" if shutil.which("train") else f"{sys.executable} -m mjfleet.cli.train"
    if "UV_RUN_RECURSION_DEPTH" in os.environ:
        train = "uv run train"
    return f"{train} {task} --resume {shlex.quote(str(folder))}"
