"""`mjfleet bench <what> <task> [flags]`: how fast training is on this machine."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import tyro

from mjfleet.bench.exchange import exchange
from mjfleet.bench.learning import learning
from mjfleet.bench.options import (
    ExchangeOptions,
    LearningOptions,
    Options,
    PeerOptions,
    ScalingOptions,
    StartupOptions,
    ThroughputOptions,
)
from mjfleet.bench.peer import compare
from mjfleet.bench.report import page, write_page
from mjfleet.bench.result import Result
from mjfleet.bench.run import run_benchmark
from mjfleet.bench.scaling import scaling
from mjfleet.bench.setup import Setup
from mjfleet.bench.startup import startup
from mjfleet.bench.throughput import throughput
from mjfleet.cli.flags import PARSERS, STYLE
from mjfleet.errors import Stopped, UserError, WorkerError
from mjfleet.utils.console import print_line
from mjfleet.worker.stop_signals import StopRequest


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


@dataclass(frozen=True, kw_only=True)
class ReportArguments:
    """Make a page of all results in a folder, such as docs/benchmarks.md."""

    folder: tyro.conf.Positional[str] = "benchmarks"
    """The folder that benchmarks have written into."""
    output: str | None = None
    """File to write, with plots in `images` beside it; `None`: print the page."""


BENCHMARKS = {
    "throughput": Benchmark(
        "Env steps per second, where the time goes, and the engine's own limit.",
        ThroughputOptions,
        throughput,
    ),
    "scaling": Benchmark(
        "Weak scaling over 1 to N workers: speed, efficiency, waiting.",
        ScalingOptions,
        scaling,
        several=True,
    ),
    "exchange": Benchmark(
        "What up to 64 ranks tell each other, without the simulation.", ExchangeOptions, exchange
    ),
    "startup": Benchmark(
        "From Enter to help and to the first iteration.", StartupOptions, startup, several=True
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
    "learning": Benchmark(
        "Reward against samples and time over seeds, ours and mjlab's.", LearningOptions, learning
    ),
}


def bench(arguments: Sequence[str]) -> int:
    """Dispatch to a benchmark and print its tables; returns the exit code."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print_line(_usage())
        return 0 if arguments else 2
    if arguments[0] == "report":
        return report(arguments[1:])
    name, words = next(
        ((n, n.split()) for n in BENCHMARKS if list(arguments[: len(n.split())]) == n.split()),
        ("", []),
    )
    if not name and {"-h", "--help"} & set(arguments):
        print_line(_usage())
        return 0
    if not name:
        given, known = " ".join(arguments[:2]), ", ".join([*BENCHMARKS, "report"])
        raise UserError(f"there is no benchmark `{given}`. Benchmarks: {known}.")
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
    print_line(result.markdown())
    return 0


def report(arguments: Sequence[str]) -> int:
    """Print or write the page of all results in a folder."""
    parsed = tyro.cli(ReportArguments, args=arguments, prog="mjfleet bench report", config=STYLE)
    if parsed.output is None:
        print_line(page(Path(parsed.folder), f"{parsed.folder}/"))
    else:
        write_page(Path(parsed.folder), Path(parsed.output))
    return 0


def _usage() -> str:
    names = {f"{name} <task>": b.summary for name, b in BENCHMARKS.items()}
    names["report [folder]"] = "A page of all results in a folder, as Markdown."
    width = max(map(len, names))
    lines = [f"  {name:<{width}}  {summary}" for name, summary in names.items()]
    return (
        "usage: mjfleet bench <what> ...\n\nbenchmarks:\n"
        + "\n".join(lines)
        + "\n\n`mjfleet bench <what> --help` says more."
    )
