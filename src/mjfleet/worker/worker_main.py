"""One worker's life: device, seed, process group, build, train, close.

Importing this imports nothing heavy; `train_worker` does.
"""

import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from mjfleet.config import from_dict
from mjfleet.config.rank_seed import rank_seed
from mjfleet.registry import find_task
from mjfleet.rl.phase import Phase
from mjfleet.runs.checkpoint_names import set_aside
from mjfleet.runs.metrics_csv import METRICS_FILE, completed_iterations
from mjfleet.utils.console import print_line
from mjfleet.utils.memory import enough_memory
from mjfleet.worker.heartbeat import Heartbeat
from mjfleet.worker.rank_environment import Rank
from mjfleet.worker.stop_signals import StopRequest
from mjfleet.worker.thread_limits import prepare
from mjfleet.worker.worker_args import Outcome, WorkerArgs


def train_worker(
    args: WorkerArgs,
    rank: Rank,
    stop: StopRequest,
    heartbeat: Heartbeat,
    on_run_dir: Callable[[Path], object] = lambda run_dir: None,
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
        _announce_build(args, rank)
    prepare()
    tempfile.tempdir = args.scratch  # Where wandb makes folders, which rsl_rl imports if it can.
    import rsl_rl.utils  # noqa: F401

    tempfile.tempdir = None

    import rich.style  # noqa: F401  It draws one of Python's random numbers: before they are seeded.

    from mjfleet.env.factory import on_device
    from mjfleet.env.random_numbers import seed_everything
    from mjfleet.rl.checkpoint_files import read_checkpoint
    from mjfleet.worker.gpu_settings import apply_settings
    from mjfleet.worker.torch_process_group import process_group
    from mjfleet.worker.training import build, restore, train_and_log

    found = find_task(args.task, Path(args.task_folder))
    config = from_dict(found.defaults(), args.config)
    stop.check()
    heartbeat.enter(Phase.BUILD)
    seed_everything(rank_seed(config.agent.seed, rank.rank))
    with (
        on_device(args.engine, device),
        process_group(args, rank, config.collective_timeout) as collectives,
    ):
        apply_settings(config, device)
        run_dir, checkpoint = args.run_dir, args.checkpoint or ""
        if not args.part:  # On hosts that we started workers on, run directories differ.
            run_dir = collectives.all_gather_text(run_dir)[0] or ""
            checkpoint = collectives.all_gather_text(checkpoint)[0] or ""
        run_dir = Path(run_dir)
        on_run_dir(run_dir)
        # What no run could continue from is refused before anything is built.
        state = read_checkpoint(Path(checkpoint)) if checkpoint else None
        with enough_memory():
            place = args, rank, heartbeat, collectives, run_dir
            runner, checkpointer = build(found, config, *place)
        said = restore(Path(checkpoint), state, config, runner, checkpointer) if state else []
        if rank.rank == 0:
            runner.alg.take_teacher(config.agent)
        del state  # Its worlds may take much memory.
        collectives.total([0])  # Waits until every rank has got this far without an error.
        begun = runner.current_learning_iteration
        if rank.rank == 0 and not begun and completed_iterations(run_dir):
            _keep_metrics(run_dir)
        if rank.rank == 0 and (begun or said):
            _announce_resume(run_dir, begun, config.agent.max_iterations, said)
        stop.check()
        with stop.deferred():
            heartbeat.enter(Phase.COLLECT, begun + 1)
            if rank.rank == 0:
                stopped_by = train_and_log(runner, checkpointer, run_dir, args, stop)
            else:
                stopped_by = runner.train(lambda _: None, stop.check, checkpointer.save)
            heartbeat.enter(Phase.CLOSE)
    return Outcome(runner.current_learning_iteration, stopped_by)


def _announce_build(args: WorkerArgs, rank: Rank) -> None:
    who = f"rank {rank.rank}: " if rank.world_size > 1 else ""
    num_envs, device = args.config["env"]["num_envs"], args.devices[rank.local_rank]
    compiles = "; a model's first run compiles its kernels" if args.engine == "warp" else ""
    print_line(f"{who}building {num_envs} worlds: {args.engine} engine on {device}{compiles}")


def _keep_metrics(run_dir: Path) -> None:
    """Copy the metrics of a run that has lost its checkpoints, and begins anew."""
    aside = run_dir / "checkpoints" / f"replaced_{datetime.now():%Y-%m-%d_%H-%M-%S}"
    aside.mkdir()
    shutil.copy(run_dir / METRICS_FILE, aside)
    print_line(f"the run has no checkpoint and begins anew; its {METRICS_FILE} is kept in {aside}")


def _announce_resume(run_dir: Path, begun: int, total: int, said: list[str]) -> None:
    """Say where the run continues, and put aside what came after its checkpoint."""
    if begun:
        print_line(f"{begun} of {total} iterations are done, {total - begun} are left")
    for line in said:
        print_line(line)
    if replaced := set_aside(run_dir / "checkpoints", begun):
        with suppress(FileNotFoundError):
            shutil.copy(run_dir / METRICS_FILE, replaced)
        moved = f"checkpoints after iteration {begun} were moved to {replaced}"
        print_line(f"{moved}; those iterations will be repeated")
