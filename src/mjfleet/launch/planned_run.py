"""Trains by a launch plan; records and reports how that ended. Runs in the launcher."""

import logging
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mjfleet.config import TrainConfig
from mjfleet.errors import Stopped, UserError
from mjfleet.launch.host_starter import HostConnections
from mjfleet.launch.launch_plan import LaunchPlan
from mjfleet.launch.placement import make_worker_args
from mjfleet.launch.run_supervisor import supervise
from mjfleet.runs.metrics_csv import completed_iterations
from mjfleet.runs.run_directory import RunDirectory
from mjfleet.utils.child_process import ChildProcess, python_module
from mjfleet.utils.console import in_a_line, print_line
from mjfleet.utils.parent_death import PARENT_VARIABLE
from mjfleet.worker.failure_record import FailedError
from mjfleet.worker.in_process_worker import train_in_process
from mjfleet.worker.stop_signals import StopRequest
from mjfleet.worker.under_torchrun import note_run

FAILED = 1
"""The exit code of a run that has failed."""
FEW_ITERATIONS = 10
"""Curves of a shorter run are not drawn."""
DRAW_SECONDS = 15.0
"""matplotlib's first start on a machine with many fonts takes several."""

logger = logging.getLogger(__name__)


def run_plan(
    plan: LaunchPlan,
    config: TrainConfig,
    run_dir: RunDirectory | None,
    connections: HostConnections | None,
) -> int:
    """Train by the plan, record how that ends, and return the exit code.

    Args:
        plan: who runs where.
        config: the configuration.
        run_dir: the run's directory; None on ranks other than 0 that something else has started.
        connections: lead to the host agents; None: this process is the worker.

    Raises:
        UserError: a worker found a mistake of the user's; the run directory is as it was before.
    """
    is_for_a_person = PARENT_VARIABLE not in os.environ  # Not for a benchmark, for instance.
    ending = _Ending(plan, run_dir)
    say = print_line if run_dir else lambda text: None
    stop = StopRequest(say=say, force=lambda number: ending.record("stopped"))
    args = make_worker_args(plan, config, str(plan.run_dir), plan.checkpoint)
    try:
        with stop.installed():
            if connections:
                outcome = supervise(plan, args, connections, stop)
            else:
                outcome = train_in_process(args, plan.rank, stop, ending.fail)
    except Stopped as stopped:
        ending.record("stopped")
        code = 128 + stopped.signal_number
    except UserError as error:
        code = ending.give_back(str(error))
    except FailedError as failed:
        is_from_signal = failed.failure.is_secondary and connections is not None
        code = ending.fail(failed, stop.received, is_from_signal)
    except BaseException:
        ending.record("failed")
        raise
    else:
        ending.record("finished" if outcome.stopped_by is None else "stopped")
        if run_dir and is_for_a_person:
            draw_curves(plan.run_dir)
        # Workers that a host agent has started know SIGINT alone, whatever was received here.
        code = 128 + (stop.received or outcome.stopped_by) if outcome.stopped_by else 0
    if run_dir:
        run_dir.close()
    if code and plan.launcher == "outer" and plan.backend == "nccl":
        # NCCL's group was left as it is and could keep Python from ending.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


@dataclass(frozen=True)
class _Ending:
    """Records how an attempt ended, and tells the person who runs it."""

    plan: LaunchPlan
    run_dir: RunDirectory | None

    def record(self, status: str, **details: Any) -> None:
        """Record it in the run directory, on rank 0."""
        if self.run_dir:
            self.run_dir.end(status, **details)

    def fail(
        self, failed: FailedError, signal: int | None = None, is_from_signal: bool = False
    ) -> int:
        """Record and print a failure; return the exit code.

        Args:
            failed: the failure. A mistake of the user's gives the run directory back instead.
            signal: the one that asked the run to stop before.
            is_from_signal: whether that explains the failure.
        """
        failure = failed.failure
        if failure.is_users_mistake:
            return self.give_back(failure.message)
        if signal is not None and is_from_signal:
            self.record("stopped")
            return 128 + signal
        self.record(
            "failed",
            cause=failure.summary,
            kind=failure.kind,
            iteration=failure.iteration,
            is_asked_to_stop=signal is not None,
        )
        # Each worker that something else has started prints a report of its own failure alone.
        is_own = failure.rank == self.plan.rank.rank and not failure.is_secondary
        is_reported = self.plan.launcher != "outer" or is_own
        print(failure.report if is_reported else failure.summary, file=sys.stderr)
        if failed.record:
            print(f"Recorded in {failed.record}", file=sys.stderr)
        return FAILED

    def give_back(self, mistake: str) -> int:
        """Leave the run directory as it was, after a mistake of the user's; return the exit code.

        Raises:
            UserError: that mistake, on rank 0.
        """
        if self.run_dir is None:
            print(f"rank {self.plan.rank.rank}: error: {mistake}", file=sys.stderr)
            return 2
        self.run_dir.discard()
        note_run(None)
        what = "left as it was" if self.plan.goes_on else "removed again"
        print_line(f"{what}, nothing was run: {self.plan.run_dir}")
        raise UserError(mistake)


def draw_curves(run_dir: Path, patience: float = DRAW_SECONDS) -> None:
    """Draw what `mjfleet plot` draws, in a child process. A failure is a warning; a signal ends it.

    Args:
        run_dir: the run.
        patience: seconds that it may take.
    """
    if completed_iterations(run_dir) < FEW_ITERATIONS:
        return
    why = None
    try:
        command = python_module("mjfleet.cli.dispatcher", "plot", str(run_dir))
        with StopRequest().installed(), ChildProcess(command) as child:
            code = child.wait(patience)
            if code is None:
                why = f"it took longer than {patience:g} s"
            elif code:
                why = (child.errors().strip() or child.how_it_ended()).splitlines()[-1]
            else:
                print_line(child.output().decode(errors="replace").strip())
    except Stopped:
        return
    except (OSError, subprocess.SubprocessError) as error:
        why = in_a_line(error)
    if why:
        logger.warning("the run's curves were not drawn (`mjfleet plot` tries again): %s", why)
