"""One worker's life, and how it ended. Imports nothing heavy before `train_worker` is called."""

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from mjfleet.errors import Stopped
from mjfleet.registry import find_task
from mjfleet.rl.worker_phases import Phase
from mjfleet.utils.console import print_line
from mjfleet.utils.memory import enough_memory
from mjfleet.utils.wait_until import wait_until
from mjfleet.worker.failure_record import SECONDARY_SECONDS, Failure, read_failures
from mjfleet.worker.heartbeat import Heartbeat
from mjfleet.worker.near_cores import use_near_cores
from mjfleet.worker.rank_environment import Rank
from mjfleet.worker.stop_signals import StopRequest
from mjfleet.worker.thread_limits import import_for_training
from mjfleet.worker.worker_args import Outcome, WorkerArgs

RELAY_SECONDS = 0.2  # Within this time the launcher copies rank 0's output into its log file.


def run_worker(
    args: WorkerArgs, rank: Rank, stop: StopRequest, heartbeat: Heartbeat, run_dirs: list[Path]
) -> Outcome | Failure:
    """Train; return how that ended. A failure is recorded in the run directory, if that is known.

    The last of `run_dirs` is that directory; rank 0 may have to name it first.

    Raises:
        Stopped: a signal arrived before training began, or a second one.
    """
    try:
        return train_worker(args, rank, stop, heartbeat, run_dirs.append)
    except BaseException as error:
        if not isinstance(error, Stopped):
            # A library that a signal has interrupted, as in an import, may fail in any way.
            stop.check()
        # torchrun stops a worker that has lost another one, while it handles that.
        cause = error.__context__ if isinstance(error, Stopped) else error
        with stop.deferred(is_announced=False):
            if args.terminal and rank.rank == 0:  # The failure holds the last lines of the log.
                time.sleep(RELAY_SECONDS)
            failure = Failure.of(cause, args, rank, heartbeat) if cause else None
            if failure is None or (isinstance(error, Stopped) and not failure.is_secondary):
                raise
            # The host agent looks into its own folder, too: the user may have moved the other one.
            folders = [*run_dirs[-1:], *map(Path, filter(None, [args.scratch]))]
            if folders and not failure.write(*folders) and args.log_files:
                print(failure.report, file=sys.stderr)  # The launcher cannot.
            if failure.is_secondary and rank.rank == 0 and not args.local:
                failure = _cause_of(failure, run_dirs[0])
        return failure


def _cause_of(secondary: Failure, run_dir: Path) -> Failure:
    """Return the failure of another rank from which this one follows, once it is recorded."""

    def causes() -> list[Failure]:
        return [failure for failure in read_failures(run_dir) if not failure.is_secondary]

    wait_until(causes, SECONDARY_SECONDS)
    return (causes() or [secondary])[0]


def train_worker(
    args: WorkerArgs,
    rank: Rank,
    stop: StopRequest,
    heartbeat: Heartbeat,
    on_run_dir: Callable[[Path], object],
) -> Outcome:
    """Train on one device until all iterations are done or a signal arrives.

    All workers of a run call this at the same time; only rank 0 writes the run's files and prints.
    `on_run_dir` receives the run directory, which rank 0 may have to name first.

    Raises:
        UserError: a mistake of the user's.
        Stopped: a signal arrived before training began, or a second one.
    """
    device = args.devices[rank.local_rank]
    if rank.rank == 0 or args.log_files:
        who = f"rank {rank.rank}: " if rank.world_size > 1 else ""
        compiles = "; a model's first run compiles its kernels" if args.engine == "warp" else ""
        num_envs = args.config["env"]["num_envs"]
        print_line(
            f"{who}building {num_envs} environments: {args.engine} engine on {device}{compiles}"
        )
    if args.config["numa"] == "auto":  # Threads inherit the cores: before torch or NCCL starts any.
        args = replace(args, threads=use_near_cores(args.gpus, rank.local_rank, args.threads))
    import_for_training(args.engine, device)
    from mjfleet.env.factory import on_device
    from mjfleet.env.random_numbers import seed_everything
    from mjfleet.rl.checkpoints.files import read_checkpoint
    from mjfleet.worker.torch_process_group import process_group
    from mjfleet.worker.torch_settings import apply_settings
    from mjfleet.worker.training import build, restore, train_and_log

    found = find_task(args.task, Path(args.task_folder), args.config["tasks_dir"])
    config = found.with_values(args.config)
    stop.check()
    heartbeat.enter(Phase.BUILD)
    seed_everything(config.agent.seed + rank.rank)
    with (
        on_device(args.engine, device),
        process_group(args, rank, config.collective_timeout) as collectives,
    ):
        apply_settings(config)
        run_dir, checkpoint = args.run_dir, args.checkpoint or ""
        if not args.meeting:  # On hosts that we started workers on, run directories differ.
            run_dir = collectives.all_gather_text(run_dir)[0] or ""
            checkpoint = collectives.all_gather_text(checkpoint)[0] or ""
        run_dir = Path(run_dir)
        on_run_dir(run_dir)
        # Refuse an unreadable checkpoint before anything is built.
        state = read_checkpoint(Path(checkpoint)) if checkpoint else None
        with enough_memory():
            runner, checkpointer = build(found, config, args, rank, heartbeat, collectives, run_dir)
        notes = restore(Path(checkpoint), state, config, runner, checkpointer, args.continues)
        runner.alg.begin()
        del state  # Its environments may take much memory.
        # Waits until every rank has got this far without an error.
        texts = collectives.all_gather_text("\n".join(notes))
        for note in dict.fromkeys(filter(None, "\n".join(map(str, texts)).splitlines())):
            if rank.rank == 0:
                print_line(note)
        stop.check()
        with stop.deferred():
            heartbeat.enter(Phase.COLLECT, runner.current_learning_iteration + 1)
            if rank.rank == 0:
                stopped_by = train_and_log(runner, checkpointer, run_dir, args, stop)
            else:
                stopped_by = runner.train(lambda _: None, stop.check, checkpointer.save)
            heartbeat.enter(Phase.CLOSE)
    return Outcome(stopped_by)
