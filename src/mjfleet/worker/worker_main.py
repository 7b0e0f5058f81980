"""One worker's life: device, seed, process group, build, train, close.

Importing this imports nothing heavy; `run` does.
"""

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from mjfleet.config import TrainConfig, from_dict
from mjfleet.registry import FoundTask, find_task
from mjfleet.rl.phase import Phase
from mjfleet.runs.checkpoint_names import set_aside
from mjfleet.runs.metrics_csv import METRICS_FILE
from mjfleet.utils.console import print_line
from mjfleet.worker.heartbeat import Heartbeat
from mjfleet.worker.stop_signals import StopRequest
from mjfleet.worker.thread_limits import prepare
from mjfleet.worker.worker_args import Outcome, Rank, WorkerArgs

if TYPE_CHECKING:
    from mjfleet.loggers.iteration_metrics import IterationMetrics
    from mjfleet.rl.checkpoint_contents import Checkpointer
    from mjfleet.rl.evaluator import Evaluator
    from mjfleet.rl.runner import Runner


def run(
    job: WorkerArgs,
    rank: Rank,
    stop: StopRequest,
    heartbeat: Heartbeat,
    found_run_dir: Callable[[Path], object] = lambda run_dir: None,
) -> Outcome:
    """Train on one device until the configured iterations are done or a signal arrives.

    With several workers, all of them run this at the same time; only rank 0 writes the run's files
    and reports to the terminal.

    Args:
        job: what to train.
        rank: this worker's place.
        stop: asks it to stop.
        pulse: is told where it is.
        found_run_dir: is told the run directory that rank 0 has made.
    """
    device = job.devices[rank.local_rank]
    worlds = job.config["env"]["num_envs"]
    compiles = "; a model's first run compiles its kernels" if job.engine == "warp" else ""
    if rank.rank == 0 or job.log_files:
        who = f"rank {rank.rank}: " if rank.world_size > 1 else ""
        print_line(f"{who}building {worlds} worlds: {job.engine} engine on {device}{compiles}")
    prepare()

    import rich.style  # noqa: F401  It draws one of Python's random numbers: before they are seeded.

    from mjfleet.env.factory import build_env, on_device
    from mjfleet.nan_dump.nan_guard import DumpTo
    from mjfleet.rl.checkpoint_contents import Checkpointer
    from mjfleet.rl.checkpoint_files import seed_everything
    from mjfleet.rl.runner import Runner
    from mjfleet.worker.torch_process_group import process_group

    found = find_task(job.task, Path(job.task_folder))
    config = from_dict(found.defaults(), job.config)
    agent = config.agent
    stop.check()
    heartbeat.enter(Phase.BUILD)
    seed_everything(agent.seed + rank.rank)
    with (
        on_device(job.engine, device),
        process_group(job, rank, config.collective_timeout) as group,
    ):
        run_dir, checkpoint = job.run_dir, job.checkpoint or ""
        if not job.part:  # Hosts that we started workers on have folders of their own.
            run_dir, checkpoint = group.agree(run_dir), group.agree(checkpoint)
        run_dir = Path(run_dir)
        found_run_dir(run_dir)
        with group.one_first(on=job.engine == "warp", beat=heartbeat.beat):
            env = build_env(
                *(found, config, job.engine, device, job.threads),
                rank=rank.rank,
                while_compiling=heartbeat.excused,
            )
        dump = DumpTo(path=run_dir / "failures" / f"nan_rank{rank.rank}.npz", task=job.task)
        evaluator = _build_evaluator(found, config, job, rank, heartbeat)
        runner = Runner(
            *(env, agent, device, job.threads, found.load, group.collectives, heartbeat, dump),
            evaluator=evaluator,
        )
        checkpointer = Checkpointer(
            *(runner, found.name, run_dir / "checkpoints", config.keep_checkpoints),
            worlds=config.save_worlds,
        )
        lost = checkpointer.resume(Path(checkpoint)) if checkpoint else []
        group.collectives.total([0])  # Everybody got this far: nobody has found a mistake.
        begun = runner.current_learning_iteration
        if begun and rank.rank == 0:
            _announce(begun, agent.max_iterations, lost)
            if replaced := set_aside(run_dir / "checkpoints", begun):
                with suppress(FileNotFoundError):
                    shutil.copy(run_dir / METRICS_FILE, replaced)
                print_line(
                    f"what came after iteration {begun} comes again; it is kept in {replaced}"
                )
        stop.check()
        with stop.deferred():
            heartbeat.enter(Phase.COLLECT, begun + 1)
            if rank.rank == 0:
                stopped_by = _train_and_report(runner, checkpointer, run_dir, job, stop)
            else:
                stopped_by = runner.train(lambda _: None, stop.check, checkpointer.save)
            heartbeat.enter(Phase.CLOSE)
    return Outcome(runner.current_learning_iteration, stopped_by)


def _train_and_report(
    runner: "Runner",
    checkpointer: "Checkpointer",
    run_dir: Path,
    job: WorkerArgs,
    stop: StopRequest,
) -> int | None:
    """Train as the rank that writes the run's files; returns the signal that ended it early."""
    from mjfleet.loggers.console_logger import Progress
    from mjfleet.loggers.logger_group import LoggerGroup
    from mjfleet.video.video_schedule import Videos

    agent, begun = runner.agent, runner.current_learning_iteration
    view = "quiet" if job.config["quiet"] else "plain" if job.config["plain"] else "live"
    progress = Progress(agent.max_iterations, begun, view, job.task)
    interval = job.config["video_interval"]
    with LoggerGroup(run_dir, agent, job.config, resumed_from=begun) as loggers:
        videos = (
            Videos(runner, interval, run_dir / "videos", job.task, loggers) if interval else None
        )

        def on_iteration(metrics: "IterationMetrics") -> None:
            with runner.heartbeat.excused():  # A terminal may be paused.
                progress.iteration(metrics)
            loggers.write(metrics.row())
            if videos:
                videos.iteration(metrics.iteration)

        def save(is_last: bool) -> None:
            for path in checkpointer.save(is_last, before=loggers.settle):
                loggers.checkpoint(path, runner.current_learning_iteration)

        try:
            stopped_by = runner.train(on_iteration, stop.check, save)
            if videos and stopped_by is None:
                with runner.heartbeat.excused():
                    videos.finish(stop.check)
            return stopped_by
        finally:
            progress.close()
            if videos:
                videos.close()


def _announce(begun: int, total: int, lost: list[str]) -> None:
    """Say where a run goes on."""
    print_line(f"{begun} of {total} iterations are done, {total - begun} are left")
    for what in lost:
        print_line(f"not kept: {what}")


def _build_evaluator(
    found: FoundTask, config: TrainConfig, job: WorkerArgs, rank: Rank, heartbeat: Heartbeat
) -> "Evaluator | None":
    """This rank's share of the worlds in which policies are evaluated, if they are to be."""
    if config.eval_interval is None:
        return None
    from mjfleet.env.environment import EVALUATION_SEED, EnvShard
    from mjfleet.env.factory import build_env
    from mjfleet.rl.checkpoint_files import own_random_numbers
    from mjfleet.rl.evaluator import Evaluator

    first, end = (config.eval_envs * r // rank.world_size for r in (rank.rank, rank.rank + 1))
    shard = EnvShard(first, end - first, config.eval_envs)
    device = job.devices[rank.local_rank]
    with own_random_numbers(EVALUATION_SEED, device):
        env = build_env(
            *(found, config, job.engine, device, job.threads),
            shard=shard,
            while_compiling=heartbeat.excused,
        )
    return Evaluator(env, config.eval_interval)
