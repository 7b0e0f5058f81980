"""`mjfleet submit CLUSTER ... -- train ...`: runs a command on a cluster, or prints the file.

The clusters have flags of their own, and want different files. Runs in the process that the user
started. Imports nothing heavy.
"""

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Annotated, ClassVar

from mjfleet.config.flags import HELP, LIST_FLAGS, parse_flags
from mjfleet.config.validation import Rule, optional
from mjfleet.errors import UserError
from mjfleet.submit.cluster_job import ClusterJob, JobArguments, make_job
from mjfleet.utils.console import print_line

TEMPLATES = Path(__file__).with_name("templates")
SAVE_SECONDS = 120
"""How long a run that is to stop has to save a checkpoint."""
VOLUME = "/runs"
OPTIONS = Rule(
    lambda v: all(re.fullmatch(r"[^\s-]\S*", option) for option in v),
    "NAME or NAME=VALUE, without dashes",
)


def _seconds(time: str) -> int:
    """Return the seconds of HOURS:MM:SS or DAYS-HH:MM:SS; 0 for anything else."""
    match = re.fullmatch(r"(?:(\d{1,3})-)?(\d{1,3}):([0-5]\d):([0-5]\d)", time, re.ASCII)
    days, hours, minutes, seconds = (int(n or 0) for n in match.groups()) if match else [0] * 4
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


TIMES = Rule(
    lambda v: _seconds(v) > 2 * SAVE_SECONDS,
    "HOURS:MM:SS or DAYS-HH:MM:SS, such as 4:00:00, more than 0:04:00",
)
Time = Annotated[str | None, optional(TIMES)]


@dataclass(frozen=True, kw_only=True)
class SlurmArguments(JobArguments):
    """Run a command as a batch job of SLURM, in this folder, with this Python."""

    submit: ClassVar = ("sbatch",)

    time: Time = None
    """Longest time until the job has to queue again: HOURS:MM:SS; `None`: the partition's."""
    sbatch: Annotated[list[str], OPTIONS] = field(default_factory=list)
    """Other options of sbatch, without dashes: partition=long exclusive."""

    @property
    def is_array(self) -> bool:
        return any(option.startswith("array=") for option in self.sbatch)


@dataclass(frozen=True, kw_only=True)
class SkyArguments(JobArguments):
    """Run a command on a cloud as a managed job of SkyPilot, which gets a copy of this folder."""

    submit: ClassVar = ("sky", "jobs", "launch", "--yes", "--detach-run")

    gpu: str | None = None
    """Name of the GPU, such as H100."""
    spot: bool = False
    """Use machines that are cheaper and may be preempted."""
    volume: str
    """Where the runs are kept: a bucket, such as s3://my-runs, or a volume of SkyPilot."""
    image: str | None = None
    """Container image with mjfleet; `None`: uv installs what this folder's pyproject.toml needs."""


@dataclass(frozen=True, kw_only=True)
class KubernetesArguments(JobArguments):
    """Run a command on Kubernetes as a JobSet, whose operator the cluster needs."""

    submit: ClassVar = ("kubectl", "create", "--filename")

    image: str
    """Image with mjfleet and your tasks, such as the Dockerfile of mjfleet makes."""
    volume: str
    """Persistent volume claim for the runs, which all pods can write to."""
    time: Time = None
    """Longest time until the run has to queue again: HOURS:MM:SS; `None`: no limit."""


CLUSTERS = {"slurm": SlurmArguments, "sky": SkyArguments, "k8s": KubernetesArguments}


def submit(arguments: Sequence[str]) -> int:
    """Submit a job, or print its file; returns the exit code."""
    cluster, words = next(iter(arguments), ""), list(arguments[1:])
    if cluster in ("", *HELP):
        texts = "\n".join(f"  {name:<7}{kind.__doc__}" for name, kind in CLUSTERS.items())
        usage = "usage: mjfleet submit CLUSTER [flags] -- train <task> ...\n\nclusters:"
        print_line(f"{usage}\n{texts}\n\n`mjfleet submit CLUSTER --help` says more.")
        return 0 if cluster else 2
    if cluster not in CLUSTERS:
        raise UserError(f"submit {cluster}: it must be one of {', '.join(CLUSTERS)}.")
    at = words.index("--") if "--" in words else len(words)
    flags, command = words[:at], words[at + 1 :]
    asks = {*HELP, LIST_FLAGS}
    if not asks & {*flags} and (command[:1] not in (["train"], ["sweep"]) or asks & {*command}):
        raise UserError(
            f"after the flags comes the command: mjfleet submit {cluster} ... -- train <task> ... "
            "or sweep <task> ... `train <task> --help` shows its flags."
        )
    parsed = parse_flags(CLUSTERS[cluster], flags, f"mjfleet submit {cluster}")
    text = _file(cluster, parsed, make_job(parsed, command), ["mjfleet", "submit", *arguments])
    if parsed.print:
        print(text, end="")
        return 0
    if not shutil.which(parsed.submit[0]):
        raise UserError(
            f"`{parsed.submit[0]}` is not installed here, so nothing can be submitted. --print "
            "shows the file, for another machine."
        )
    with TemporaryDirectory(prefix="mjfleet-submit-") as folder:
        file = Path(folder, "job.yaml")  # sbatch looks at what is in it.
        file.write_text(text, encoding="utf-8")
        return subprocess.run([*parsed.submit, file], check=False).returncode


def _file(cluster: str, arguments: JobArguments, job: ClusterJob, typed: Sequence[str]) -> str:
    """Return the file that the cluster's template makes of a job, and of what the user typed.

    Raises:
        UserError: the run directory would not be in the volume, no GPU is named, or nothing says
            what to install.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    words = job.words
    if cluster != "slurm":
        if not job.run_dir:
            when = f"{datetime.now():%Y-%m-%d_%H-%M-%S}"
            words = [*words, "--run-dir", f"{VOLUME}/{PurePosixPath(job.folder).name}/{when}"]
        elif VOLUME not in map(str, PurePosixPath(job.run_dir).parents):
            raise UserError(f"--run-dir {job.run_dir}: it must be in {VOLUME}, the volume.")
    if isinstance(arguments, SkyArguments):
        if job.gpus and not arguments.gpu:
            raise UserError("--gpu: name the GPU to use, such as H100; or give --gpus 0.")
        if not arguments.image and not Path("pyproject.toml").is_file():
            raise UserError("--image: name one, since this folder has no pyproject.toml.")
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), undefined=StrictUndefined, trim_blocks=True,
        keep_trailing_newline=True,
    )  # fmt: skip
    environment.filters |= {"quote": shlex.quote, "seconds": _seconds}
    header = [" ".join(shlex.join(typed).split()), *job.sizes]
    template = environment.get_template("slurm.sh" if cluster == "slurm" else f"{cluster}.yaml")
    return template.render(
        header="\n".join(f"# {line}" for line in header), command=shlex.join(words), job=job,
        arguments=arguments, save_seconds=SAVE_SECONDS, python=sys.executable,
    )  # fmt: skip
