"""`mjfleet bench <what> ...`: measures, and writes the result with machine and versions."""

import os
import platform
import re
import shlex
import shutil
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from mjfleet.bench.benchmark_options import Options, Setup, select_devices
from mjfleet.bench.learning import LearningOptions, learning
from mjfleet.bench.peers import MjlabOptions, RslRlOptions, compare
from mjfleet.bench.reference import ReferenceOptions, reference
from mjfleet.bench.result import Result, our_commit
from mjfleet.bench.scaling import ScalingOptions, scaling
from mjfleet.bench.startup import StartupOptions, startup
from mjfleet.bench.throughput import ThroughputOptions, throughput
from mjfleet.cli.flags import parse_flags
from mjfleet.errors import UserError
from mjfleet.registry import discover
from mjfleet.runs.run_json import now
from mjfleet.utils.console import print_error, print_line
from mjfleet.utils.hardware_names import count_gpus, cpu_name, gpu_name, usable_cores
from mjfleet.utils.packages import stack_versions
from mjfleet.worker.stop_signals import StopRequest

BENCHMARKS: dict[str, tuple[type[Options], Callable[[Setup, Any], Result]]] = {
    "throughput": (ThroughputOptions, throughput),
    "scaling": (ScalingOptions, scaling),
    "startup": (StartupOptions, startup),
    "peer mjlab": (MjlabOptions, compare),
    "peer rsl_rl": (RslRlOptions, compare),
    "learning": (LearningOptions, learning),
    "reference": (ReferenceOptions, reference),
}
"""By what can be typed after `mjfleet bench`."""


def bench(arguments: Sequence[str]) -> int:
    """Run a benchmark and print its tables; returns the exit code."""
    name = next((n for n in BENCHMARKS if f"{' '.join(arguments)} ".startswith(f"{n} ")), None)
    if not arguments or (name is None and {"-h", "--help"} & set(arguments)):
        names = {f"{n} <task>": options.__doc__ for n, (options, _) in BENCHMARKS.items()}
        lines = "\n".join(f"  {n:<20}{summary}" for n, summary in names.items())
        more = "`mjfleet bench <what> --help` says more."
        print_line(f"usage: mjfleet bench <what> ...\n\nbenchmarks:\n{lines}\n\n{more}")
        return 0 if arguments else 2
    if name is None:
        given, known = " ".join(arguments[:2]), ", ".join(BENCHMARKS)
        raise UserError(f"there is no benchmark `{given}`. Benchmarks: {known}.")
    (kind, measure), flags = BENCHMARKS[name], list(arguments[len(name.split()) :])
    task = flags.pop(0) if flags and not flags[0].startswith("-") else kind.task
    if {"-h", "--help"} & set(flags):
        flags = ["--help"]
    elif task is None:
        raise UserError(f"the task comes first: mjfleet bench {name} <task> ...")
    options = parse_flags(kind, flags, f"mjfleet bench {name} <task>")
    assert task is not None  # With --help, tyro has exited.
    with StopRequest().installed():
        result = _run(measure, task, options, arguments)
    print_line(result.markdown())
    return 0


def _run(
    measure: Callable[[Setup, Any], Result], task: str, options: Options, arguments: Sequence[str]
) -> Result:
    """Run a benchmark, and write the result into `options.output`.

    UserError if the flags fit neither each other nor this machine: nothing was created then.
    """
    found = discover(os.environ).find(task)
    folder = Path(options.output)
    if any(path.exists() and not path.is_dir() for path in (folder, *folder.parents)):
        raise UserError(f"--output {folder}: this path leads through a file; it must be a folder.")
    devices = select_devices(options)
    taken, machine = now(), _describe_machine()
    versions = {"python": platform.python_version(), **stack_versions()}
    if commit := our_commit():
        versions["mjfleet"] += f" ({commit})"
    typed = re.sub(" --output[= ]('.*?'|[^ ]*)", "", f"mjfleet bench {shlex.join(arguments)}")
    with tempfile.TemporaryDirectory(prefix="mjfleet-bench-") as scratch:
        result = measure(Setup(found, options, devices, Path(scratch)), options)
        versions |= result.versions
        result = replace(result, command=typed, taken=taken, machine=machine, versions=versions)
        result.write(folder)
        for plot in result.plots:
            shutil.copyfile(Path(scratch, plot), folder / plot)
    print_error(f"written: {folder / result.name}.json and .md")
    return result


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
