"""`mjfleet bench <what> <task> [flags]`: how fast training is on this machine."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import tyro

from mjfleet.bench.options import Options, PeerOptions, ThroughputOptions
from mjfleet.bench.peer import compare
from mjfleet.bench.result import Result
from mjfleet.bench.run import run_benchmark
from mjfleet.bench.setup import Setup
from mjfleet.bench.throughput import throughput
from mjfleet.cli.arguments import PARSERS, STYLE
from mjfleet.errors import UserError, WorkerError
from mjfleet.tell import tell
from mjfleet.worker.stop import Stopped, StopRequest


@dataclass(frozen=True)
class Benchmark:
    """What can be typed after `mjfleet bench`."""

    summary: str
    options: type[Options]
    measure: Callable[[Setup, Any], Result]
    several: bool = False
    """Whether it uses several GPUs."""
    task: str | None = None
    """Where none is named."""


BENCHMARKS = {
    "throughput": Benchmark(
        "Env steps per second, where the time goes, and the engine's own limit.",
        ThroughputOptions,
        throughput,
    ),
    "peer mjlab": Benchmark(
        "The same training by mjlab, which is installed for it, in turn with ours.",
        PeerOptions,
        partial(compare, name="mjlab"),
        task="cartpole-balance",
    ),
    "peer rsl_rl": Benchmark(
        "Our environment under rsl_rl's stock runner and PPO, in turn with ours.",
        PeerOptions,
        partial(compare, name="rsl_rl"),
        task="cartpole-balance",
    ),
}


def bench(arguments: Sequence[str]) -> int:
    """Dispatch to a benchmark and print its tables; returns the exit code."""
    if not arguments or arguments[0] in ("-h", "--help"):
        tell(_usage())
        return 0 if arguments else 2
    name, words = next(
        ((n, n.split()) for n in BENCHMARKS if list(arguments[: len(n.split())]) == n.split()),
        ("", []),
    )
    if not name:
        given = " ".join(arguments[:2])
        raise UserError(f"there is no benchmark `{given}`. Benchmarks: {', '.join(BENCHMARKS)}.")
    rest = arguments[len(words) :]
    wants_help = bool({"-h", "--help"} & set(rest))
    benchmark = BENCHMARKS[name]
    task = rest[0] if rest and not rest[0].startswith("-") else None
    flags = rest[1:] if task else rest
    task = task or benchmark.task
    if task is None and not wants_help:
        raise UserError(f"the task comes first: mjfleet bench {name} <task> ...")
    options = tyro.cli(
        benchmark.options,
        args=["--help"] if wants_help else flags,
        prog=f"mjfleet bench {name} <task>",
        config=STYLE,
        registry=PARSERS,
    )

    def measure(setup: Setup) -> Result:
        return benchmark.measure(setup, options)

    assert task is not None  # Help has ended this already.
    try:
        with StopRequest().installed():
            result = run_benchmark(measure, task, options, arguments, several=benchmark.several)
    except Stopped as stopped:
        return 128 + stopped.signal_number
    except WorkerError as error:
        raise SystemExit(f"error: {error}") from None
    tell(result.markdown())
    return 0


def _usage() -> str:
    width = max(map(len, BENCHMARKS))
    lines = [f"  {name:<{width}} <task>  {b.summary}" for name, b in BENCHMARKS.items()]
    return (
        "usage: mjfleet bench <what> ...\n\nbenchmarks:\n"
        + "\n".join(lines)
        + "\n\n`mjfleet bench <what> --help` says more."
    )
