"""Trains by a launch plan; records and reports how that ended. Runs in the launcher."""

import logging
import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from mjfleet.errors import Stopped, UserError
from mjfleet.launch.hosts.host_starter import HostConnections
from mjfleet.launch.launch_plan import LaunchPlan
from mjfleet.launch.run_supervisor import supervise
from mjfleet.runs.checkpoints import INIT
from mjfleet.runs.find_run import iterations_in
from mjfleet.runs.run_directory import RunDirectory
from mjfleet.utils.child_process import ChildProcess, python_module
from mjfleet.utils.console import in_a_line, print_if_read, print_line, printable
from mjfleet.utils.parent_death import PARENT_VARIABLE
from mjfleet.worker.failure_record import ALONE_SECONDS, Failure
from mjfleet.worker.in_process_worker import train_in_process
from mjfleet.worker.stop_signals import StopRequest
from mjfleet.worker.under_torchrun import leave_after_rank_0
from mjfleet.worker.worker_args import Outcome

FAILED = 1  # The exit code of a run that has failed.
LONGEST_CAUSE = 10_000  # Characters of a cause in run.json; its record has all.
FEW_ITERATIONS = 10  # Curves of a shorter run are not drawn.
DRAW_SECONDS = 60.0  # matplotlib's first start on a slow machine with many fonts.

logger = logging.getLogger(__name__)


def run_plan(
    plan: LaunchPlan, run_dir: RunDirectory | None, connections: HostConnections | None
) -> int:
    """Train by the plan, record how that ends, and return the exit code.

    `run_dir` is None on other ranks than 0. `connections` lead to the host agents; None: this
    process is the worker.

    Raises:
        UserError: a worker found a mistake of the user's; the run directory is as it was before.
    """
    stop = StopRequest(say=print_if_read if run_dir else lambda text: None)
    finish = partial(_finish, plan, run_dir, stop)
    end: Outcome | Failure
    patience = 0.0  # Whom a second signal ends waits for nobody.
    try:
        with stop.installed():
            lines = [*_announced(plan)] if run_dir else []
            if connections:
                end = supervise(plan, connections, stop, lines)
            else:
                for line in lines:
                    print_line(line)
                end = train_in_process(plan.worker_args(), plan.rank, stop, finish)
                is_failure = isinstance(end, Failure)
                patience = ALONE_SECONDS if is_failure else plan.config.collective_timeout
    except Stopped as stopped:
        end = Outcome(stopped.signal_number)
    except BaseException:
        if run_dir:
            run_dir.end("failed")
        raise
    code = finish(end)
    if run_dir:
        run_dir.close()
    if code and plan.launcher == "outer":
        leave_after_rank_0(plan.rank, patience)
        if plan.backend == "nccl":
            # NCCL's group was left as it is and could keep Python from ending.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    return code


def _announced(plan: LaunchPlan) -> Iterator[str]:
    """Yield lines that say where the run is, and from what it begins or continues."""
    yield f"run directory: {plan.run_dir}"
    yield from plan.notes
    if plan.checkpoint:
        is_init = plan.checkpoint.name == INIT
        how = "beginning with networks of" if is_init else "continuing from"
        yield f"{how} {(is_init and plan.config.init_from) or plan.checkpoint}"


def _finish(
    plan: LaunchPlan, run_dir: RunDirectory | None, stop: StopRequest, end: Outcome | Failure
) -> int:
    """Record on rank 0, and print, how the attempt ended; return the exit code."""
    if isinstance(end, Failure):
        if end.mistake and plan.start.again == "typed":
            if run_dir is None:
                print(f"rank {plan.rank.rank}: error: {end.message}", file=sys.stderr)
                return 2
            run_dir.leave()
            what = "is unchanged" if plan.continues else "was removed"
            print_line(f"no iteration was run; {plan.run_dir} {what}")
            # A copy has been removed with the directory: the message names what the user named.
            read = run_dir.checkpoint
            raise UserError(end.message.replace(str(read), str(run_dir.copied or read)))
        if stop.received is None or not end.is_secondary or not plan.has_host_agents:
            return _fail(plan, run_dir, stop, end)
        end = Outcome(stop.received)  # The signal explains the failure.
    if run_dir:
        run_dir.end("stopped" if end.stopped_by else "finished")
    if end.stopped_by:
        return 128 + end.stopped_by
    if run_dir and PARENT_VARIABLE not in os.environ:  # A benchmark looks at no curves.
        draw_curves(plan.run_dir)
    return 0


def _fail(
    plan: LaunchPlan, run_dir: RunDirectory | None, stop: StopRequest, failure: Failure
) -> int:
    """Record and print a failure; return the exit code."""
    if run_dir:
        run_dir.end(
            "failed",
            cause=failure.summary[:LONGEST_CAUSE],
            kind=failure.kind,
            flags=failure.flags,
            iteration=failure.iteration,
            is_asked_to_stop=stop.received is not None,
        )
    # Each worker that something else has started prints a report of its own failure alone.
    is_own = failure.rank == plan.rank.rank and not failure.is_secondary
    report = failure.report if is_own or plan.launcher != "outer" else failure.summary
    print(printable(report), file=sys.stderr)
    if run_dir and (path := failure.path(plan.run_dir)).exists():
        print(f"Recorded in {path}", file=sys.stderr)
    return FAILED


def draw_curves(run_dir: Path) -> None:
    """Draw what `mjfleet plot` draws of a run or a group, in a child; a failure is a warning."""
    try:
        if iterations_in(run_dir) < FEW_ITERATIONS:
            return
        with ChildProcess(python_module("mjfleet.cli.dispatcher", "plot", str(run_dir))) as child:
            code = child.wait(DRAW_SECONDS)
            if code == 0:
                print_line(child.output().decode(errors="replace").strip())
                return
            why = (child.errors().strip() or child.how_it_ended()).splitlines()[-1]
            if code is None:
                why = f"it takes longer than {DRAW_SECONDS:g} s"
    except OSError as error:  # The run has ended well, whatever lacks here.
        why = in_a_line(error)
    logger.warning("the run's curves were not drawn (`mjfleet plot` tries again): %s", why)
