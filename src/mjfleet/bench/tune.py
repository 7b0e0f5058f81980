"""`mjfleet tune TASK`: measures how many environments train fastest, by `train` in processes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from mjfleet.bench.benchmark import new_run
from mjfleet.bench.timed_training import train_timed
from mjfleet.config import SACConfig, TrainConfig
from mjfleet.config.flags import HELP
from mjfleet.errors import UserError, WorkerError
from mjfleet.registry import FoundTask
from mjfleet.utils.console import print_line
from mjfleet.worker.stop_signals import StopRequest

SMALLEST, LARGEST = 256, 1 << 20  # Environments per worker that are tried first, and at most.
GAIN = 1.05  # More environments are worth it where throughput grows by this factor.
WARMUP = 2  # Iterations that are not measured: they compile, and capture CUDA graphs.
MEASURED_SECONDS = 2.0  # How long to measure at least,
ITERATIONS = 3  # and how many iterations at least.
LEFT_OUT = ("video_interval", "eval_interval", "agent.logger")  # Fields that are not measured.
USAGE = """usage: mjfleet tune TASK [--gpu-ids ...] [--cpu-workers N] ...

Measure how many environments per worker train fastest on these devices: train with 256, then with
twice as many, and so on, until throughput no longer grows. Nothing is kept.

The flags of `train` count, as throughput depends on them; `train TASK --help` shows them. Videos,
evaluations and loggers are left out."""


@dataclass(frozen=True)
class Point:
    """Throughput and memory of training with a number of environments."""

    num_envs: int  # Per worker.
    steps_per_second: float  # Environment steps of all workers, learning included.
    iteration_seconds: float
    memory: float  # GiB: of the fullest GPU, else of the largest process.


def tune(arguments: Sequence[str]) -> int:
    """Measure, print the curve and the flag to give; return the exit code."""
    if not arguments or HELP & set(arguments):
        print_line(USAGE)
        return 0 if arguments else 2
    found, config = new_run(arguments, "tune", *LEFT_OUT)
    if isinstance(config.agent.algorithm, SACConfig):
        raise UserError(
            "tune finds how many environments make rollouts fastest. With --agent.algorithm.name "
            "sac, updates take the time, and their number grows with the environments."
        )
    with StopRequest().installed(), TemporaryDirectory(prefix="mjfleet-tune-") as folder:
        fastest = choose(_measure(found, config, Path(folder)))
    print_line(f"fastest: --env.num-envs {fastest.num_envs}")
    return 0


def choose(curve: Sequence[Point]) -> Point:
    """Return the point with the fewest environments that comes near the greatest throughput."""
    greatest = max(point.steps_per_second for point in curve)
    return next(point for point in curve if GAIN * point.steps_per_second >= greatest)


def is_done(curve: Sequence[Point]) -> bool:
    """Return whether two doublings have gained little: at one, the machine may have been busy."""
    speeds = [point.steps_per_second for point in curve]
    return len(speeds) > 2 and max(speeds[-2:]) < GAIN * max(speeds[:-2])


def _measure(found: FoundTask, config: TrainConfig, folder: Path) -> list[Point]:
    """Measure more and more environments; print a line for each number."""
    group = config.agent.algorithm.envs_per_group
    num_envs, iterations, curve = math.ceil(SMALLEST / group) * group, 10, list[Point]()
    while num_envs <= LARGEST and not is_done(curve):
        try:
            point = _train(found, config, num_envs, WARMUP + iterations, folder)
        except (UserError, WorkerError) as error:
            if not curve:
                problem = f"{found.name} does not train with {num_envs} environments: {error}"
                raise UserError(problem) from None
            print_line(f"{num_envs:23}  {str(error).splitlines()[0]}")
            break
        if not curve:
            print_line("environments per worker      steps/s      memory")
        curve.append(point)
        speed = f"{point.steps_per_second:,.0f}"
        print_line(f"{num_envs:23}  {speed:>11}  {point.memory:6.1f} GiB")
        num_envs *= 2
        iterations = max(ITERATIONS, round(MEASURED_SECONDS / (2 * point.iteration_seconds)))
    return curve


def _train(
    found: FoundTask, config: TrainConfig, num_envs: int, iterations: int, folder: Path
) -> Point:
    agent = replace(config.agent, max_iterations=iterations, logger=("none",))
    config = replace(config.with_num_envs(num_envs), agent=agent)
    config = replace(config, video_interval=None, eval_interval=None)
    rows, child = train_timed(found, config, folder)
    speed = median(row["global_steps_per_second"] for row in rows[WARMUP:])
    steps = rows[0]["total_steps"]
    memory = [row["gpu_memory"] for row in rows if "gpu_memory" in row]
    return Point(num_envs, speed, steps / speed, max(memory, default=child.peak_memory / 2**30))
