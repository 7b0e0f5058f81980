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
from mjfleet.files import set_aside
from mjfleet.pulse import Phase, Pulse
from mjfleet.registry import FoundTask, find_task
from mjfleet.report.record import METRICS_FILE
from mjfleet.tell import tell
from mjfleet.worker.job import Job, Outcome, Rank
from mjfleet.worker.lean import prepare
from mjfleet.worker.stop import StopRequest

if TYPE_CHECKING:
    from mjfleet.env import Env, Share
    from mjfleet.rl.evaluation import Evaluator
    from mjfleet.rl.metrics import IterationMetrics
    from mjfleet.rl.runner import Runner
    from mjfleet.rl.saver import Saver


def run(
    job: Job,
    rank: Rank,
    stop: StopRequest,
    pulse: Pulse,
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
        tell(f"{who}building {worlds} worlds: {job.engine} engine on {device}{compiles}")
    prepare()

    import rich.style  # noqa: F401  It draws one of Python's random numbers: before they are seeded.

    from mjfleet.rl.checkpoint import seed_everything
    from mjfleet.rl.runner import Runner
    from mjfleet.rl.saver import Saver
    from mjfleet.rl.watch import DumpTo
    from mjfleet.worker.group import process_group

    found = find_task(job.task, Path(job.task_folder))
    config = from_dict(found.defaults(), job.config)
    agent = config.agent
    writes = rank.rank == 0
    stop.check()
    pulse.enter(Phase.BUILD)
    seed_everything(agent.seed + rank.rank)
    with on_device(job, device), process_group(job, rank, config.collective_timeout) as group:
        run_dir, checkpoint = job.run_dir, job.checkpoint or ""
        if not job.part:  # Hosts that we started workers on have folders of their own.
            run_dir, checkpoint = group.agree(run_dir), group.agree(checkpoint)
        run_dir = Path(run_dir)
        found_run_dir(run_dir)
        with group.one_first(on=job.engine == "warp", beat=pulse.beat):
            env = build_env(found, config, job, rank, pulse)
        dump = DumpTo(path=run_dir / "failures" / f"nan_rank{rank.rank}.npz", task=job.task)
        evaluator = _build_evaluator(found, config, job, rank, pulse)
        runner = Runner(
            *(env, agent, device, job.threads, found.load, group.collectives, pulse, dump),
            evaluator=evaluator,
        )
        saver = Saver(
            *(runner, found.name, run_dir / "checkpoints", config.keep_checkpoints),
            worlds=config.save_worlds,
        )
        lost = saver.resume(Path(checkpoint)) if checkpoint else []
        group.collectives.total([0])  # Everybody got this far: nobody has found a mistake.
        begun = runner.current_learning_iteration
        if writes and begun:
            _announce(begun, agent.max_iterations, lost)
            if replaced := set_aside(run_dir / "checkpoints", begun):
                with suppress(FileNotFoundError):
                    shutil.copy(run_dir / METRICS_FILE, replaced)
                tell(f"what came after iteration {begun} comes again; it is kept in {replaced}")
        stop.check()
        with stop.deferred():
            pulse.enter(Phase.COLLECT, begun + 1)
            if writes:
                stopped_by = _train_and_report(runner, saver, run_dir, job, stop)
            else:
                stopped_by = runner.train(lambda _: None, stop.check, saver.save)
            pulse.enter(Phase.CLOSE)
    return Outcome(runner.current_learning_iteration, stopped_by)


def _train_and_report(
    runner: "Runner", saver: "Saver", run_dir: Path, job: Job, stop: StopRequest
) -> int | None:
    """Train as the rank that writes the run's files; returns the signal that ended it early."""
    from mjfleet.report.console import Progress
    from mjfleet.report.sinks import Sinks
    from mjfleet.worker.videos import Videos

    agent, begun = runner.agent, runner.current_learning_iteration
    view = "quiet" if job.config["quiet"] else "plain" if job.config["plain"] else "live"
    progress = Progress(agent.max_iterations, begun, view, job.task)
    interval = job.config["video_interval"]
    with Sinks(run_dir, agent, job.config, resumed_from=begun) as sinks:
        videos = Videos(runner, interval, run_dir / "videos", job.task, sinks) if interval else None

        def on_iteration(metrics: "IterationMetrics") -> None:
            with runner.pulse.excused():  # A terminal may be paused.
                progress.iteration(metrics)
            sinks.write(metrics.row())
            if videos:
                videos.iteration(metrics.iteration)

        def save(is_last: bool) -> None:
            for path in saver.save(is_last, before=sinks.settle):
                sinks.checkpoint(path, runner.current_learning_iteration)

        try:
            stopped_by = runner.train(on_iteration, stop.check, save)
            if videos and stopped_by is None:
                with runner.pulse.excused():
                    videos.finish(stop.check)
            return stopped_by
        finally:
            progress.close()
            if videos:
                videos.close()


def _announce(begun: int, total: int, lost: list[str]) -> None:
    """Say where a run goes on."""
    tell(f"{begun} of {total} iterations are done, {total - begun} are left")
    for what in lost:
        tell(f"not kept: {what}")


def _build_evaluator(
    found: FoundTask, config: TrainConfig, job: Job, rank: Rank, pulse: Pulse
) -> "Evaluator | None":
    """This rank's share of the worlds in which policies are evaluated, if they are to be."""
    if config.eval_interval is None:
        return None
    from mjfleet.env.base import EVALUATION_SEED, Share
    from mjfleet.rl.checkpoint import own_random_numbers
    from mjfleet.rl.evaluation import Evaluator

    first, end = (config.eval_envs * r // rank.world_size for r in (rank.rank, rank.rank + 1))
    share = Share(first, end - first, config.eval_envs)
    with own_random_numbers(EVALUATION_SEED, job.devices[rank.local_rank]):
        env = build_env(found, config, job, rank, pulse, share)
    return Evaluator(env, config.eval_interval)


def build_env(
    found: FoundTask,
    config: TrainConfig,
    job: Job,
    rank: Rank,
    pulse: Pulse,
    share: "Share | None" = None,
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
    from mjfleet.env.base import EVALUATION_SEED
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
    with pulse.excused():  # Warp compiles its kernels now.
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
def on_device(job: Job, device: str) -> Iterator[None]:
    """Make `device` that of torch, of rendering and of warp, before anything is allocated.

    Warp, where it is used, takes it also for what a task calls itself.
    """
    if device != "cpu":
        _bind_gpu(device)
    if job.engine != "warp":
        yield
        return
    import warp as wp

    from mjfleet.sim.warp import start_warp

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
