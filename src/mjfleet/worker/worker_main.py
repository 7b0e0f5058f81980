"""One worker's life: device, seed, process group, build, train, close.

Importing this imports nothing heavy; `run` does.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mjfleet.config import TrainConfig, from_dict
from mjfleet.errors import UserError
from mjfleet.registry import FoundTask, find_task
from mjfleet.rl.phase import Phase
from mjfleet.runs.run_json import METRICS_FILE
from mjfleet.utils.atomic_write import set_aside
from mjfleet.utils.console import print_line
from mjfleet.worker.heartbeat import Heartbeat
from mjfleet.worker.stop_signals import StopRequest
from mjfleet.worker.thread_limits import prepare
from mjfleet.worker.worker_args import Outcome, Rank, WorkerArgs

if TYPE_CHECKING:
    from mjfleet.env import Env, EnvShard
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

    from mjfleet.nan_dump.nan_guard import DumpTo
    from mjfleet.rl.checkpoint_contents import Checkpointer
    from mjfleet.rl.checkpoint_files import seed_everything
    from mjfleet.rl.runner import Runner
    from mjfleet.worker.torch_process_group import process_group

    found = find_task(job.task, Path(job.task_folder))
    config = from_dict(found.defaults(), job.config)
    agent = config.agent
    writes = rank.rank == 0
    stop.check()
    heartbeat.enter(Phase.BUILD)
    seed_everything(agent.seed + rank.rank)
    with on_device(job, device), process_group(job, rank, config.collective_timeout) as group:
        run_dir, checkpoint = job.run_dir, job.checkpoint or ""
        if not job.part:  # Hosts that we started workers on have folders of their own.
            run_dir, checkpoint = group.agree(run_dir), group.agree(checkpoint)
        run_dir = Path(run_dir)
        found_run_dir(run_dir)
        with group.one_first(on=job.engine == "warp", beat=heartbeat.beat):
            env = build_env(found, config, job, rank, heartbeat)
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
        if writes and begun:
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
            if writes:
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
    from mjfleet.rl.checkpoint_files import own_random_numbers
    from mjfleet.rl.evaluator import Evaluator

    first, end = (config.eval_envs * r // rank.world_size for r in (rank.rank, rank.rank + 1))
    share = EnvShard(first, end - first, config.eval_envs)
    with own_random_numbers(EVALUATION_SEED, job.devices[rank.local_rank]):
        env = build_env(found, config, job, rank, heartbeat, share)
    return Evaluator(env, config.eval_interval)


def build_env(
    found: FoundTask,
    config: TrainConfig,
    job: WorkerArgs,
    rank: Rank,
    heartbeat: Heartbeat,
    share: "EnvShard | None" = None,
) -> "Env[Any]":
    """The environment over its simulation, on the worker's device.

    Args:
        found: the task.
        config: its numbers.
        job: where it runs.
        rank: this worker's place.
        pulse: is told what may take long.
        share: for an evaluation, which of its worlds are this worker's; None: for training.
    """
    from mjfleet.env import Env
    from mjfleet.env.environment import EVALUATION_SEED
    from mjfleet.sim import make_simulation

    env_class = found.load(found.task.env_class)
    if not (isinstance(env_class, type) and issubclass(env_class, Env)):
        raise UserError(f"task {found.name}: {found.task.env_class} is no subclass of Env.")
    if missing := sorted(env_class.__abstractmethods__):
        raise UserError(f"task {found.name}: {env_class.__name__} lacks {', '.join(missing)}.")
    own_model = env_class.make_model.__func__ is not Env.make_model.__func__
    if not own_model and not hasattr(env_class, "model_file"):
        raise UserError(f"task {found.name}: {env_class.__name__} sets no model_file.")
    worlds, seed = config.worlds, config.agent.seed + rank.rank
    if share is not None:
        worlds, seed = share.count, EVALUATION_SEED
    cfg = replace(config.env, num_envs=worlds)
    model = env_class.make_model(cfg)
    with heartbeat.excused():  # Warp compiles its kernels now.
        sim = make_simulation(
            job.engine,
            model,
            worlds,
            device=job.devices[rank.local_rank],
            num_threads=job.threads,
            nconmax=config.env.nconmax,
            njmax=config.env.njmax,
        )
    env = env_class(cfg, sim, seed, share)
    env.on_nan = config.on_nan
    sizes = {name: group.shape[1] for name, group in env.get_observations().items()}
    for what, declared, built in (
        ("num_actions", found.task.num_actions, env.num_actions),
        ("observation_sizes", found.task.observation_sizes, sizes),
    ):
        if declared is not None and declared != built:
            raise UserError(
                f"task {found.name}: config.py declares {what}={declared}, but the environment "
                f"has {built}."
            )
    found.check_groups(config, sizes)
    return env


@contextmanager
def on_device(job: WorkerArgs, device: str) -> Iterator[None]:
    """Make `device` that of torch, of rendering and of warp, before anything is allocated.

    Warp, where it is used, takes it also for what a task calls itself.
    """
    if device != "cpu":
        _bind_gpu(device)
    if job.engine != "warp":
        yield
        return
    import warp as wp

    from mjfleet.sim.warp_engine import start_warp

    start_warp(device)
    with wp.ScopedDevice(device):
        yield


def _bind_gpu(device: str) -> None:
    import torch

    index, count = int(device.removeprefix("cuda:")), torch.cuda.device_count()
    if index >= count:
        raise UserError(
            f"torch {torch.__version__} (built for CUDA {torch.version.cuda}) sees {count} GPUs, "
            f"so not index {index}. Its driver may be too old, CUDA_VISIBLE_DEVICES may name a "
            "GPU that is not there, or several MIG devices, of which a process sees one. "
            "--gpu-ids None trains on the CPU."
        )
    torch.cuda.set_device(device)
    # MuJoCo takes this for an index into the visible GPUs, as torch does.
    os.environ.setdefault("MUJOCO_EGL_DEVICE_ID", str(index))
