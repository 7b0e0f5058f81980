"""Trains as rank 0, which hands iterations, checkpoints and videos to the loggers."""

from pathlib import Path

from mjfleet.loggers.console_logger import ConsoleLogger
from mjfleet.loggers.iteration_metrics import IterationMetrics
from mjfleet.loggers.logger_group import LoggerGroup
from mjfleet.rl.checkpoint_contents import Checkpointer
from mjfleet.rl.gpu_usage import IdleGpuWarning
from mjfleet.rl.runner import Runner
from mjfleet.video.video_recorder import TrainingVideos
from mjfleet.worker.stop_signals import StopRequest
from mjfleet.worker.worker_args import WorkerArgs


def train_and_log(
    runner: Runner, checkpointer: Checkpointer, run_dir: Path, args: WorkerArgs, stop: StopRequest
) -> int | None:
    """Train and write the run's files; return the signal that ended training early, if any."""
    agent, begun = runner.agent, runner.current_learning_iteration
    view = "quiet" if args.config["quiet"] else "plain" if args.config["plain"] else "live"
    progress = ConsoleLogger(agent.max_iterations, begun, view, args.task)
    idle_gpus = IdleGpuWarning()
    interval = args.config["video_interval"]
    with LoggerGroup(run_dir, agent, args.config, resumed_from=begun) as loggers:
        videos = None
        if interval:
            videos = TrainingVideos(runner, interval, run_dir / "videos", args.task, loggers)

        def on_iteration(metrics: IterationMetrics) -> None:
            with runner.heartbeat.excused():  # A terminal may be paused.
                progress.iteration(metrics)
            idle_gpus.look(metrics)
            loggers.write(metrics.row())
            if videos:
                videos.iteration(metrics.iteration)

        def save(is_last: bool) -> list[Path]:
            paths = checkpointer.save(is_last, before=loggers.settle)
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
