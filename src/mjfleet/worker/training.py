"""Builds what one worker trains with, and trains. Imports torch."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from mjfleet.config import TrainConfig
from mjfleet.env.env_shard import EVALUATION_SEED, EnvShard
from mjfleet.env.factory import build_env
from mjfleet.env.random_numbers import own_random_numbers
from mjfleet.loggers.console_logger import ConsoleLogger
from mjfleet.loggers.logger import Row
from mjfleet.loggers.logger_group import LoggerGroup
from mjfleet.registry import FoundTask
from mjfleet.rl.build_algorithm import load_classes
from mjfleet.rl.checkpoints.contents import Checkpointer
from mjfleet.rl.checkpoints.initial_networks import take_networks
from mjfleet.rl.evaluation.evaluator import Evaluator
from mjfleet.rl.ranks.collectives import Collectives
from mjfleet.rl.runner import Runner
from mjfleet.runs.attempts import count_last_attempt
from mjfleet.runs.checkpoints import INIT
from mjfleet.utils.packages import need_part
from mjfleet.worker.heartbeat import Heartbeat
from mjfleet.worker.rank_environment import Rank
from mjfleet.worker.stop_signals import StopRequest
from mjfleet.worker.worker_args import WorkerArgs


def build(
    found: FoundTask,
    config: TrainConfig,
    args: WorkerArgs,
    rank: Rank,
    heartbeat: Heartbeat,
    collectives: Collectives,
    run_dir: Path,
) -> tuple[Runner, Checkpointer]:
    """Build environment, runner and checkpointer; one worker of a host compiles kernels first."""
    load_classes(config.agent, found.load)  # Before minutes of building.
    device, evaluator = args.devices[rank.local_rank], None
    make_env = partial(build_env, found, config, args.engine, device, args.threads)
    runs = run_dir, Path(args.scratch)
    make_env = partial(make_env, runs=runs, while_compiling=heartbeat.excused)
    compiles = partial(_first_worker_compiles, rank, collectives, heartbeat)
    building, images = (compiles, nullcontext) if args.engine == "warp" else (nullcontext, compiles)
    with building():
        group_size = config.agent.algorithm.envs_per_group
        env = make_env(rank=rank.rank, group_size=group_size, first_images=images)
    if config.eval_interval is not None:
        first, end = (config.eval_envs * r // rank.world_size for r in (rank.rank, rank.rank + 1))
        with own_random_numbers(EVALUATION_SEED, device):
            shard = EnvShard(first, end - first, config.eval_envs)
            evaluator = Evaluator(make_env(shard=shard), config.eval_interval)
    dump = run_dir / "failures" / f"nan_rank{rank.rank}.npz"
    agent, load, threads = config.agent, found.load, args.threads
    runner = Runner(
        env, agent, device, threads, load, collectives, heartbeat, dump, evaluator=evaluator
    )
    checkpointer = Checkpointer(
        runner,
        found.name,
        run_dir / "checkpoints",
        config.keep_checkpoints,
        worlds=config.save_worlds,
        task_hash=args.task_hash,
        attempt=args.attempt,
    )
    return runner, checkpointer


def restore(
    path: Path,
    state: dict[str, Any] | None,
    config: TrainConfig,
    runner: Runner,
    checkpointer: Checkpointer,
    in_place: bool,
) -> list[str]:
    """Continue from a checkpoint, or take its networks alone; return notes for the user."""
    if state is None:
        return []
    if path.name == INIT:
        return take_networks(runner, path, state, config.init_from or path.name)
    notes = [f"not kept: {what}" for what in checkpointer.resume(path, state, in_place)]
    begun, total = runner.current_learning_iteration, config.agent.max_iterations
    return [f"{begun} of {total} iterations are done, {total - begun} to go", *notes]


def train_and_log(
    runner: Runner, checkpointer: Checkpointer, run_dir: Path, args: WorkerArgs, stop: StopRequest
) -> int | None:
    """Train and write the run's files; return the signal that ended training early, if any."""
    agent, begun = runner.agent, runner.current_learning_iteration
    view = "quiet" if args.config["quiet"] else "plain" if args.config["plain"] else "live"
    progress = ConsoleLogger(agent.max_iterations, begun, view, args.task)
    interval = args.config["video_interval"]
    with LoggerGroup(run_dir, agent, args.config, begun) as loggers:
        videos = None
        if interval:
            part = need_part("mjfleet.video.training_videos", "--video-interval")
            videos = part.TrainingVideos(runner, interval, run_dir / "videos", args.task, loggers)

        def on_iteration(row: Row) -> None:
            iteration = runner.current_learning_iteration
            if iteration == begun + 1:
                count_last_attempt(run_dir, begun)
            with runner.heartbeat.excused():  # A terminal may be paused, or a disk not answer.
                progress.iteration(row, runner.warnings)
                loggers.write(row)
            if videos:
                videos.iteration(iteration)

        def save(is_last: bool) -> list[Path]:
            paths = checkpointer.save(is_last)
            for path in paths:
                loggers.checkpoint(path, runner.current_learning_iteration)
            return paths

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


@contextmanager
def _first_worker_compiles(
    rank: Rank, collectives: Collectives, heartbeat: Heartbeat
) -> Iterator[None]:
    """Run the block on the first worker of each host, then on the others.

    The others find the compiled kernels in warp's cache.
    """
    is_first = rank.local_rank == 0
    if not is_first:
        with heartbeat.excused():
            collectives.total([0])
    yield
    if is_first:
        collectives.total([0])
