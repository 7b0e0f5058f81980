"""`mjfleet export RUN`: a trained policy as a file that runs without mjfleet."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from mjfleet.cli.flags import parse_flags
from mjfleet.config import from_dict, to_dict
from mjfleet.errors import UserError
from mjfleet.registry import discover
from mjfleet.runs.checkpoint_names import iteration_of
from mjfleet.runs.resume_choice import find_trained, take_tasks_dir
from mjfleet.tools.export.write_policy import COMPARED, MARK
from mjfleet.tools.export.write_policy import export as make
from mjfleet.tools.play.command import WORLDS
from mjfleet.utils.atomic_write import write_atomically
from mjfleet.utils.console import print_line
from mjfleet.utils.packages import need_extra
from mjfleet.worker.worker_args import WorkerArgs

SUFFIXES = {"onnx": ".onnx", "torchscript": ".pt"}
NEEDED = {"onnx": ("onnx", "onnxruntime", "onnxscript"), "torchscript": ()}
"""Packages that mjfleet itself does without."""


@dataclass(frozen=True, kw_only=True)
class ExportArguments:
    """Write a trained policy, its normaliser included, as a file that runs without mjfleet."""

    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """Run directory, whose newest checkpoint is taken, a checkpoint in one, `latest`, or the
    beginning of a run's name."""
    format: Literal["onnx", "torchscript"] = "onnx"
    """What robots' runtimes read: ONNX, or TorchScript."""
    output: str | None = None
    """File to write, with a .json beside it; `None`: exported/policy.onnx (.pt) in the run."""
    log_root: str = "logs"
    """Folder under which run directories are."""
    tasks_dir: str | None = None
    """Folder of task folders that is searched first; `None`: where the run has found its task."""


def export(arguments: Sequence[str]) -> int:
    """Write two files; returns the exit code."""
    parsed = parse_flags(ExportArguments, arguments, "mjfleet export")
    need_extra("export", f"--format {parsed.format}", NEEDED[parsed.format])
    task, trained = find_trained(parsed.run, Path(parsed.log_root))
    suffix = SUFFIXES[parsed.format]
    output = Path(parsed.output or trained.run_dir / f"exported/policy{suffix}")
    beside = output.with_suffix(".json")
    _check_output(output, beside, suffix)
    for note in trained.notes:
        print_line(note)
    job = _job(task, trained.config, parsed.tasks_dir)
    print_line(f"exporting {trained.checkpoint}")
    exported = make(job, trained.checkpoint, parsed.format)
    print_line(
        f"{COMPARED:,} random observations: actions differ by at most {exported.difference:.2g} "
        "from the checkpoint's"
    )
    if not exported.difference <= exported.tolerated:  # Nor is NaN.
        print(
            f"error: rounding explains {exported.tolerated:.2g} at most: nothing was written",
            file=sys.stderr,
        )
        return 1
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(output, lambda file: file.write(exported.graph))
        write_atomically(beside, lambda file: file.write(exported.metadata.encode()))
    except OSError as error:
        raise UserError(f"{output}: {error.strerror}.") from None
    print_line(f"wrote {output} and {beside.name}")
    return 0


def _check_output(output: Path, beside: Path, suffix: str) -> None:
    """Refuse a name by which something else would be lost."""
    if output.suffix != suffix:
        raise UserError(f"--output {output}: its name must end in {suffix}.")
    if iteration_of(output) is not None and output.exists():
        raise UserError(f"--output {output}: it exists, and is called like a checkpoint.")
    is_other = beside.is_file() and f'"{MARK}"' not in beside.read_text(errors="replace")
    if is_other or beside.is_dir():
        raise UserError(f"--output {output}: {beside} exists, and no export has written it.")


def _job(task: str, recorded: dict[str, Any], tasks_dir: str | None) -> WorkerArgs:
    """The task as the run had it, in a few worlds on the CPU."""
    found = discover(os.environ, tasks_dir or take_tasks_dir(recorded)).find(task)
    config = from_dict(found.defaults(), recorded)
    worlds = config.env.num_envs
    config = replace(
        config.with_num_envs(WORLDS if worlds == "auto" else min(worlds, WORLDS)),
        agent=replace(config.agent, torch_compile_mode=None),
    )
    return WorkerArgs(
        task=found.name,
        task_folder=str(found.folder),
        config=to_dict(config),
        devices=("cpu",),
        engine="native",
        threads=1,
        run_dir="",
    )
