"""Trains by a launch plan; records and reports how that ended. Runs in the launcher."""

import logging
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

from mjfleet.errors import Stopped, UserError
from mjfleet.launch.host_starter import HostConnections
from mjfleet.launch.launch_plan import LaunchPlan
from mjfleet.launch.run_supervisor import supervise
from mjfleet.runs.metrics_csv import completed_iterations
from mjfleet.runs.run_directory import RunDirectory
from mjfleet.runs.run_lookup import members_of
from mjfleet.utils.child_process import ChildProcess, python_module
from mjfleet.utils.console import in_a_line, print_line, printable
from mjfleet.utils.parent_death import PARENT_VARIABLE
from mjfleet.worker.failure_record import Failure
from mjfleet.worker.in_process_worker import train_in_process
from mjfleet.worker.stop_signals import StopRequest

FAILED = 1  # The exit code of a run that has failed.
LONGEST_CAUSE = 10_000  # Characters of a cause in run.json; its record has all.
FEW_ITERATIONS = 10  # Curves of a shorter run are not drawn.
DRAW_SECONDS = 60.0  # matplotlib's first start on a slow machine with many fonts.

logger = logging.getLogger(__name__)


def run_plan(
    plan: LaunchPlan, run_dir: RunDirectory | None, connections: HostConnections | None
) -> int:
    """Train by the plan, record how that ends, and return the exit code.

    There is no run directory on ranks other than 0 that something else has started. The connections
    lead to the host agents; None: this process is the worker.

    Raises:
        UserError: a worker found a mistake of the user's; the run directory is as it was before.
    """
    record, fail = partial(_record, run_dir), partial(_fail, plan, run_dir)
    stop = StopRequest(say=print_line if run_dir else lambda text: None)
    try:
        with stop.installed():
            if connections:
                end = supervise(plan, connections, stop)
            else:
                end = train_in_process(plan.worker_args(), plan.rank, stop, fail)
    except Stopped as stopped:
        record("stopped")
        code = 128 + stopped.signal_number
    except BaseException:
        record("failed")
        raise
    else:
        if isinstance(end, Failure):
            code = fail(end, stop.received)
        elif end.stopped_by:
            record("stopped")
            # Workers that a host agent has started know other signals than those received here.
            code = 128 + (stop.received or end.stopped_by)
        else:
            record("finished")
            code = 0
            if run_dir and PARENT_VARIABLE not in os.environ:  # A benchmark looks at no curves.
                draw_curves(plan.run_dir)
    if run_dir:
        run_dir.close()
    if code and plan.launcher == "outer" and plan.backend == "nccl":
        # NCCL's group was left as it is and could keep Python from ending.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _record(run_dir: RunDirectory | None, status: str, **details: Any) -> None:
    """Record on rank 0 how the attempt ended."""
    if run_dir:
        run_dir.end(status, **details)


def _fail(
    plan: LaunchPlan, run_dir: RunDirectory | None, failure: Failure, signal: int | None = None
) -> int:
    """Record and print a failure; return the exit code.

    After a mistake of the user's the run directory is left as it was before. `signal` is the one
    that asked the run to stop before, if one did.
    """
    if failure.mistake:
        if run_dir is None:
            print(f"rank {plan.rank.rank}: error: {failure.message}", file=sys.stderr)
            return 2
        run_dir.discard()
        what = "is unchanged" if plan.continues else "was removed"
        print_line(f"no iteration was run; {plan.run_dir} {what}")
        raise UserError(failure.message)
    if signal is not None and failure.is_secondary and plan.has_host_agents:
        _record(run_dir, "stopped")  # The signal explains the failure.
        return 128 + signal
    _record(
        run_dir,
        "failed",
        cause=failure.summary[:LONGEST_CAUSE],
        kind=failure.kind,
        flags=failure.flags,
        iteration=failure.iteration,
        is_asked_to_stop=signal is not None,
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
    if max(map(completed_iterations, members_of(run_dir) or [run_dir])) < FEW_ITERATIONS:
        return
    try:
        with ChildProcess(python_module("mjfleet.cli.dispatcher", "plot", str(run_dir))) as child:
            code = child.wait(DRAW_SECONDS)
            if code == 0:
                print_line(child.output().decode(errors="replace").strip())
                return
            why = (child.errors().strip() or child.how_it_ended()).splitlines()[-1]
            if code is None:
                why = f"it takes longer than {DRAW_SECONDS:g} s"
    except OSError as error:
        why = in_a_line(error)
    logger.warning("the run's curves were not drawn (`mjfleet plot` tries again): %s", why)
