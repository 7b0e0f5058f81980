"""`mjfleet bench <what> ...`: measures, and writes the result with machine and versions."""

import os
import platform
import shlex
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from mjfleet.bench.benchmark_options import Options, Setup
from mjfleet.bench.result import Result, our_commit
from mjfleet.bench.scaling import ScalingOptions, scaling
from mjfleet.bench.startup import StartupOptions, startup
from mjfleet.bench.throughput import ThroughputOptions, throughput
from mjfleet.config.flags import parse_flags
from mjfleet.errors import UserError
from mjfleet.registry import discover
from mjfleet.runs.run_json import now
from mjfleet.utils.console import print_error, print_line
from mjfleet.utils.hardware_names import count_gpus, cpu_name, gpu_name, usable_cores
from mjfleet.utils.packages import stack_versions
from mjfleet.worker.stop_signals import StopRequest

Benchmark = tuple[type[Options], Callable[[Setup, Any], Result]]
BENCHMARKS: dict[str, Benchmark] = {
    "throughput": (ThroughputOptions, throughput),
    "scaling": (ScalingOptions, scaling),
    "startup": (StartupOptions, startup),
}
"""By what can be typed after `mjfleet bench`."""


def bench(arguments: Sequence[str]) -> int:
    """Run one of BENCHMARKS; returns the exit code."""
    return choose(BENCHMARKS, "mjfleet bench", arguments)


def choose(benchmarks: Mapping[str, Benchmark], prog: str, arguments: Sequence[str]) -> int:
    """Run the benchmark that the first argument names; returns the exit code."""
    name, *flags = arguments or ["--help"]
    if name in ("-h", "--help"):
        lines = "\n".join(f"  {n:<12}{options.__doc__}" for n, (options, _) in benchmarks.items())
        more = f"`{prog} <what> --help` says more."
        print_line(f"usage: {prog} <what> [task] ...\n\nbenchmarks:\n{lines}\n\n{more}")
        return 0 if arguments else 2
    if name not in benchmarks:
        raise UserError(f"there is no benchmark `{name}`. Benchmarks: {', '.join(benchmarks)}.")
    return run_benchmark(*benchmarks[name], f"{prog} {name}", flags)


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
    devices = options.devices()
    taken, machine = now(), _describe_machine()
    versions = {"python": platform.python_version(), **stack_versions()}
    if commit := our_commit():
        versions["mjfleet"] += f" ({commit})"
    with (
        StopRequest().installed(),
        tempfile.TemporaryDirectory(prefix="mjfleet-bench-") as scratch,
    ):
        result = measure(Setup(found, options, devices, Path(scratch)), options)
        versions |= result.versions
        command = shlex.join([*prog.split(), *flags])
        result = replace(result, command=command, taken=taken, machine=machine, versions=versions)
        result.write(folder)
    print_error(f"written: {folder / result.name}.json and .md")
    print_line(result.markdown())
    return 0


def _describe_machine() -> dict[str, str]:
    """Describe CPU, memory, GPUs and system, without names of hosts or people."""
    cores = f"{usable_cores()} of {os.cpu_count()}"
    memory = psutil.virtual_memory().total / 2**30
    machine = {"CPU": cpu_name(), "cores used": cores, "memory": f"{memory:.0f} GiB"}
    gpus = [gpu_name(str(index)) for index in range(count_gpus())]
    if gpus:
        machine["GPU"] = ", ".join(f"{gpus.count(name)} x {name}" for name in dict.fromkeys(gpus))
    system = platform.system()
    with suppress(OSError):  # Some containers have no such file.
        system = platform.freedesktop_os_release()["PRETTY_NAME"]
    return machine | {"system": f"{system}, kernel {platform.release().partition('-')[0]}"}
