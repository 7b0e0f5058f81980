"""`mjfleet bench <what> ...`: measures, and writes the result with machine and versions."""

import os
import platform
import shlex
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from mjfleet.bench.benchmark_options import Options, Setup
from mjfleet.bench.measurements import BenchOptions, scaling, startup, throughput
from mjfleet.bench.result import Result, our_commit
from mjfleet.cli.run_command import run_command
from mjfleet.config.flags import parse_flags
from mjfleet.errors import UserError
from mjfleet.launch.devices import choose_devices, needs_gpus
from mjfleet.registry import discover
from mjfleet.runs.run_json import now
from mjfleet.utils.console import print_error, print_line
from mjfleet.utils.hardware_names import (
    count_gpus,
    cpu_name,
    driver_version,
    gpu_name,
    usable_cores,
)
from mjfleet.utils.packages import stack_versions
from mjfleet.worker.stop_signals import StopRequest

BENCHMARKS = {"throughput": throughput, "scaling": scaling, "startup": startup}


def bench(arguments: Sequence[str]) -> int:
    """Run one of BENCHMARKS; returns the exit code."""

    def measure(setup: Setup, options: BenchOptions) -> Result:
        return BENCHMARKS[options.what](setup, options)

    return run_benchmark(BenchOptions, measure, "mjfleet bench", arguments)


def run_script(kind: type[Options], measure: Callable[[Setup, Any], Result]) -> NoReturn:
    """Run a script of benchmarks/ by the flags of its command line, and exit."""
    prog = f"python benchmarks/{Path(sys.argv[0]).name}"
    sys.exit(run_command(partial(run_benchmark, kind, measure, prog), sys.argv[1:]))


def run_benchmark(
    kind: type[Options], measure: Callable[[Setup, Any], Result], prog: str, flags: Sequence[str]
) -> int:
    """Run a benchmark, write its result into `--output` and print it; returns the exit code.

    UserError if the flags fit neither each other nor this machine: nothing was created then.
    """
    options = parse_flags(kind, flags, prog)
    found = discover(os.environ).find(options.task)
    folder = Path(options.output)
    if any(path.exists() and not path.is_dir() for path in (folder, *folder.parents)):
        raise UserError(f"--output {folder}: this path leads through a file; it must be a folder.")
    chosen = options.placement
    if needs_gpus(chosen) and chosen.gpu_ids == "auto":
        chosen = replace(chosen, gpu_ids="all")
    devices, taken = choose_devices(chosen, os.environ), now()
    gpus = [gpu_name(str(index)) for index in range(count_gpus())]
    versions = {"python": platform.python_version(), **stack_versions()}
    if commit := our_commit():
        versions["mjfleet"] += f" ({commit})"
    machine = {"CPU": cpu_name(), "cores": f"{usable_cores()} of {os.cpu_count()}"}
    machine |= {"GPU": ", ".join(gpus), "NVIDIA driver": driver_version()} if gpus else {}
    command = shlex.join([*prog.split(), *flags])

    def save(result: Result) -> str:
        return result.write(folder, command, taken, machine | versions)

    with (
        StopRequest().installed(),
        tempfile.TemporaryDirectory(prefix="mjfleet-bench-") as scratch,
    ):
        result = measure(Setup(found, options, devices, Path(scratch), save), options)
    text = save(result)
    print_error(f"written: {folder / result.name}.json and .md")
    print_line(text)
    return 0
