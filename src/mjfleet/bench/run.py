"""Runs a benchmark and writes what it has found. Runs in the launching process."""

import os
import shlex
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from mjfleet.bench.machine import describe_machine, describe_software
from mjfleet.bench.options import Options
from mjfleet.bench.result import Result
from mjfleet.bench.setup import Setup, choose_devices, progress
from mjfleet.errors import UserError
from mjfleet.registry import discover
from mjfleet.runs.run_json import now


def run_benchmark(
    measure: Callable[[Setup], Result],
    task: str,
    options: Options,
    arguments: Sequence[str],
    *,
    several: bool = False,
) -> Result:
    """Measure, and write the result into `options.output` under a name that says what it is.

    Args:
        measure: the benchmark.
        task: the task's name.
        options: its flags.
        arguments: what was typed after `mjfleet bench`.
        several: whether it uses several GPUs.

    Raises:
        UserError: the flags fit neither each other nor this machine; nothing was created.
        WorkerError: a run that was to be measured failed.
    """
    found = discover(os.environ).find(task)
    folder = Path(options.output)
    if any(path.exists() and not path.is_dir() for path in (folder, *folder.parents)):
        raise UserError(f"--output {folder}: a part of that is a file; it must be a folder.")
    devices = choose_devices(options, several=several)
    taken, machine, versions = now(), describe_machine(), describe_software()
    with tempfile.TemporaryDirectory(prefix="mjfleet-bench-") as scratch:
        setup = Setup(found, options, devices, Path(scratch))
        result = measure(setup)
        command = ["mjfleet", "bench", *_without_output(arguments)]
        result = replace(
            result,
            command=shlex.join(command),
            taken=taken,
            machine=machine,
            versions=versions | dict(result.versions),
        )
        result.write(folder)
        for plot in result.plots:
            (folder / plot).write_bytes((setup.scratch / plot).read_bytes())
    progress(f"written: {folder / result.name}.json and .md")
    return result


def _without_output(arguments: Sequence[str]) -> list[str]:
    """The arguments without --output, which is of no interest to others."""
    kept, rest = [], iter(arguments)
    for argument in rest:
        if argument == "--output":
            next(rest, None)
        elif not argument.startswith("--output="):
            kept.append(argument)
    return kept
