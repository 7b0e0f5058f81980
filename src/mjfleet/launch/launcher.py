"""From a plan to a finished run: the workers, and how they ended."""

import os
import sys
import tempfile
from dataclasses import replace

from mjfleet.config import TrainConfig, to_dict
from mjfleet.errors import Stopped, UserError, WorkerError
from mjfleet.launch.agent import Agent
from mjfleet.launch.curves import draw_curves, is_for_a_person
from mjfleet.launch.host_starter import HostConnections
from mjfleet.launch.launch_plan import LOCALHOST, LaunchPlan
from mjfleet.launch.output_relay import Relay
from mjfleet.launch.run_supervisor import run_on_hosts
from mjfleet.launch.worker_watchdog import WorkerWatchdog
from mjfleet.runs.run_directory import RunDirectory
from mjfleet.utils.console import print_line
from mjfleet.worker.failure_record import FailedError
from mjfleet.worker.in_process_worker import train_in_process
from mjfleet.worker.stop_signals import StopRequest
from mjfleet.worker.worker_args import Outcome, WorkerArgs


def launch(
    plan: LaunchPlan,
    config: TrainConfig,
    run_dir: RunDirectory | None,
    connections: HostConnections | None = None,
) -> int:
    """Run the plan in its run directory; returns the exit code.

    Args:
        plan: who runs where.
        config: the resolved configuration.
        run_dir: the run's directory; None on ranks that something else has started, and that are
            not the first.
        posts: the hosts that it is to run on; None: this one.

    Raises:
        UserError: a worker found a mistake of the user's before training began.
        WorkerError: a worker failed; its text is all that is known.
    """
    job = make_worker_args(plan, config)
    leaves_curves = run_dir is not None and is_for_a_person()

    def end(status: str, failed: FailedError | None = None, is_asked_to_stop: bool = False) -> None:
        if run_dir:
            details = {}
            if failed:
                failure = failed.failure
                details = {"cause": failure.summary, "kind": failure.kind}
                details |= {"iteration": failure.iteration, "is_asked_to_stop": is_asked_to_stop}
            run_dir.end(status, **details)

    def hang(failed: FailedError) -> None:
        end("failed", failed)
        print(_text(failed, plan), file=sys.stderr)

    stop = StopRequest(
        say=print_line if run_dir else lambda text: None, force=lambda number: end("stopped")
    )
    try:
        with stop.installed():
            if connections:
                outcome = run_on_hosts(plan, job, connections, stop)
            elif plan.launcher == "torchrunx":
                outcome = _run_fleet(plan, job, stop)
            else:
                outcome = train_in_process(job, plan.rank, stop, hang)
    except Stopped as stopped:
        end("stopped")
        return 128 + stopped.signal_number
    except FailedError as failed:
        if failed.failure.is_users_mistake:
            raise UserError(failed.failure.message) from None
        if (
            stop.received is not None
            and failed.failure.is_secondary
            and plan.launcher == "torchrunx"
        ):
            end("stopped")
            return 128 + stop.received
        end("failed", failed, is_asked_to_stop=stop.received is not None)
        raise WorkerError(_text(failed, plan)) from None
    except BaseException:
        end("failed")
        raise
    end("finished" if outcome.stopped_by is None else "stopped")
    if leaves_curves:
        draw_curves(plan.run_dir)
    if outcome.stopped_by is None:
        return 0
    # Workers that we started know SIGINT alone, whatever we received.
    return 128 + (stop.received or outcome.stopped_by)


def make_worker_args(plan: LaunchPlan, config: TrainConfig) -> WorkerArgs:
    """What the workers of a plan need to know."""
    return WorkerArgs(
        task=plan.task,
        task_folder=str(plan.task_folder),
        config=to_dict(config),
        devices=tuple(worker.device for worker in plan.workers),
        engine=plan.engine,
        threads=plan.threads,
        run_dir=str(plan.run_dir),
        backend=plan.backend,
        local=plan.launcher != "outer",
        checkpoint=str(plan.checkpoint) if plan.checkpoint else None,
    )


def _run_fleet(plan: LaunchPlan, job: WorkerArgs, stop: StopRequest) -> Outcome:
    """Run the job in several workers on this host."""
    log_files = [worker.log_file for worker in plan.workers]
    with Agent(plan.threads) as agent, Relay(log_files[0]) as relay:
        from mjfleet.launch.worker_processes import run_fleet

        job = replace(
            job,
            terminal=relay.paths,
            log_files=tuple(str(path.resolve()) if path else os.devnull for path in log_files),
            temporary=tempfile.gettempdir(),
            scratch=agent.scratch,
        )
        agent_log = log_files[0].with_name(f"{LOCALHOST}.log") if log_files[0] else None
        with WorkerWatchdog(job) as watchdog:
            return run_fleet(watchdog, agent, stop, agent_log, relay.say)


def _text(failed: FailedError, plan: LaunchPlan) -> str:
    """What a person needs to know; a worker that something else has started tells its own alone."""
    failure = failed.failure
    is_own = plan.launcher != "outer" or (
        failure.rank == plan.rank.rank and not failure.is_secondary
    )
    report = failure.report if is_own else failure.summary
    return f"{report}\nRecorded in {failed.record}" if failed.record else report
