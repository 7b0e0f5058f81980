"""Measures commands, and training by `train`, from outside: time and memory. In the launcher."""

import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mjfleet.config import TrainConfig
from mjfleet.errors import UserError, WorkerError
from mjfleet.registry import FoundTask
from mjfleet.runs.config_yaml import placement_flags, write_config
from mjfleet.runs.metrics_csv import METRICS_FILE, read_rows
from mjfleet.runs.own_runs import remove_note
from mjfleet.utils.child_process import ChildProcess, python_module

TRAIN = python_module("mjfleet.cli.train")
CHILD_STOP_SECONDS = 3.0  # How long a child that is asked to end may take.
SHOWN_CHARACTERS = 2000  # The most that is shown of a failed child's output.


@dataclass(frozen=True)
class TimedChild:
    """A child process that succeeded."""

    lines: Sequence[tuple[float, str]]  # Lines of output, with the seconds since the start.
    seconds: float  # From its start to its end.
    peak_memory: int  # Bytes: the greatest resident set of it or of one process it waited for.
    errors: str  # What it has printed to standard error.


def run_timed(
    command: Sequence[str], scratch: Path, environ: Mapping[str, str] | None = None
) -> TimedChild:
    """Run a command until it ends, with temporary files in `scratch`, and further variables.

    UserError if it has found a mistake of the user's; WorkerError with its output for any other.
    """
    # With PYTHONDONTWRITEBYTECODE every process would compile all that it imports.
    variables = {"TMPDIR": str(scratch), "PYTHONDONTWRITEBYTECODE": None, **(environ or {})}
    start = time.perf_counter()
    lines: list[tuple[float, str]] = []
    pipe = subprocess.PIPE
    with ChildProcess(command, environ=variables, stdout=pipe, is_foreign=True) as child:
        try:
            assert child.stdout is not None
            for line in child.stdout:
                text = line.decode(errors="replace").rstrip("\n")
                lines.append((time.perf_counter() - start, text))
            code = child.wait()
        except BaseException:  # Ctrl-C has not reached the child.
            child.send_signal(signal.SIGTERM)
            child.wait(CHILD_STOP_SECONDS)
            raise
        seconds, errors = time.perf_counter() - start, child.errors()
        if code:
            if mistake := child.mistake():
                raise UserError(mistake)
            errors = errors or "\n".join(line for _, line in lines)
            how = f"{' '.join(command[:4])} ... {child.how_it_ended()}"
            raise WorkerError(f"{how}\n{errors[-SHOWN_CHARACTERS:].strip()}")
    return TimedChild(lines, seconds, child.peak_memory, errors)


def train_timed(
    found: FoundTask,
    config: TrainConfig,
    scratch: Path,
    flags: Sequence[str] = (),
    look: Callable[[Path], object] = lambda run_dir: None,
) -> tuple[list[dict[str, float]], TimedChild]:
    """Train by the command `train`, with further `flags`; the run directory is removed again, after
    a `look` at it.

    Returns the rows of metrics.csv without empty cells, each with the `seconds` from the start of
    the process to its report; and the process. Raises what `run_timed` does.
    """
    file, run_dir = scratch / "config.yaml", scratch / "run"
    config = replace(config, log_root=str(scratch), max_restarts=0, quiet=False)
    write_config(file, found.name, config)
    arguments = [found.name, "--config", str(file), "--run-dir", str(run_dir)]
    arguments += placement_flags(config, found.defaults())
    if (teacher := config.agent.teacher) and teacher.checkpoint:
        arguments += ["--teacher", teacher.checkpoint]
    try:
        child = run_timed([*TRAIN, *arguments, *flags], scratch)
        rows = read_rows(run_dir / METRICS_FILE)[1]
        look(run_dir)
    finally:
        remove_note(run_dir)
        shutil.rmtree(run_dir, ignore_errors=True)
    reported = [seconds for seconds, line in child.lines if line.startswith("iteration=")]
    return [
        {"seconds": seconds, **{name: float(value) for name, value in row.items() if value}}
        for seconds, row in zip(reported, rows, strict=True)
    ], child
