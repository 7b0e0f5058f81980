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
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Annotated, ClassVar

from mjfleet.cli.flags import HELP, LIST_FLAGS, parse_flags
from mjfleet.config.validation import Rule, optional
from mjfleet.errors import UserError
from mjfleet.submit.cluster_job import TIMES, ClusterJob, JobArguments, make_job, to_seconds
from mjfleet.utils.console import print_line

BEGINNINGS = ("--", "mjfleet", "train", "sweep")
"""Words at which the command that is submitted begins."""
TEMPLATES = Path(__file__).with_name("templates")
SAVE_SECONDS = 120
"""How long a run that is to stop has to save a checkpoint."""
VOLUME = "/runs"
WORDS = Rule(
    lambda v: all(re.fullmatch(r"[^\s-]\S*", word) for word in v),
    "words without dashes in front: NAME or NAME=VALUE",
)
Time = Annotated[str | None, optional(TIMES)]


@dataclass(frozen=True, kw_only=True)
class SlurmArguments(JobArguments):
    """Run a command as a batch job of SLURM, in this folder, with this Python."""

    cluster: ClassVar = "slurm"
    submit: ClassVar = ("sbatch",)

    time: Time = None
    """Longest time until the job has to queue again: HOURS:MM:SS; `None`: the partition's."""
    sbatch: Annotated[list[str], WORDS] = field(default_factory=list)
    """Other options of sbatch, without dashes: partition=long exclusive."""

    @property
    def is_array(self) -> bool:
        """Whether there is a job, with a run of its own, for each index of an array."""
        return any(option.startswith("array=") for option in self.sbatch)

    def file(self, job: ClusterJob) -> str:
        """Return a script."""
        return _render("slurm.sh", self, job)


@dataclass(frozen=True, kw_only=True)
class VolumeArguments(JobArguments):
    """Flags where the machines share a volume instead of this folder."""

    def file(self, job: ClusterJob) -> str:
        """Return a file in YAML.

        Raises:
            UserError: the run directory would not be in the volume.
        """
        if job.run_dir is None:
            folder = f"{VOLUME}/{PurePosixPath(job.folder).name}"
            job = replace(job, run_dir=f"{folder}/{datetime.now():%Y-%m-%d_%H-%M-%S}")
        assert job.run_dir
        if VOLUME not in map(str, PurePosixPath(job.run_dir).parents):
            raise UserError(f"--run-dir {job.run_dir}: it must be in {VOLUME}, the volume.")
        return _render(f"{self.cluster}.yaml", self, job)


@dataclass(frozen=True, kw_only=True)
class SkyArguments(VolumeArguments):
    """Run a command on a cloud as a managed job of SkyPilot, which gets a copy of this folder."""

    cluster: ClassVar = "sky"
    submit: ClassVar = ("sky", "jobs", "launch", "--yes", "--detach-run")

    gpu: str | None = None
    """Name of the GPU, such as H100."""
    spot: bool = False
    """Use machines that are cheaper and may be preempted."""
    volume: str
    """Where the runs are kept: a bucket, such as s3://my-runs, or a volume of SkyPilot."""
    image: str | None = None
    """Container image with mjfleet; `None`: uv installs what this folder's pyproject.toml needs."""

    def file(self, job: ClusterJob) -> str:
        """Return a task in YAML.

        Raises:
            UserError: no GPU is named, or nothing says what to install.
        """
        if job.gpus and not self.gpu:
            raise UserError("--gpu: name the GPU to use, such as H100; or give --gpus 0.")
        if not self.image and not Path("pyproject.toml").is_file():
            raise UserError("--image: name one, since this folder has no pyproject.toml.")
        return super().file(job)


@dataclass(frozen=True, kw_only=True)
class KubernetesArguments(VolumeArguments):
    """Run a command on Kubernetes as a JobSet, whose operator the cluster needs."""

    cluster: ClassVar = "k8s"
    submit: ClassVar = ("kubectl", "create", "--filename")

    image: str
    """Image with mjfleet and your tasks, such as the Dockerfile of mjfleet makes."""
    volume: str
    """Persistent volume claim for the runs, which all pods can write to."""
    time: Time = None
    """Longest time until the run has to queue again: HOURS:MM:SS; `None`: no limit."""

    @property
    def seconds(self) -> int:
        """The time in seconds, if it is given."""
        return to_seconds(self.time or "")


CLUSTERS = {kind.cluster: kind for kind in (SlurmArguments, SkyArguments, KubernetesArguments)}


def _render(template: str, arguments: JobArguments, job: ClusterJob) -> str:
    """Return the file that a template makes of a job."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["quote"] = shlex.quote
    values = {"arguments": arguments, "job": job, "save_seconds": SAVE_SECONDS}
    values["python"] = sys.executable
    if isinstance(arguments, VolumeArguments):
        script = environment.get_template("begin_or_resume.sh").render(values)
        values["script"] = script.strip()
    return environment.get_template(template).render(values)


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
    at = next((i for i, word in enumerate(words) if word in BEGINNINGS), len(words))
    flags, command = words[:at], words[at:]
    parsed = parse_flags(CLUSTERS[cluster], flags, f"mjfleet submit {cluster}")
    for word in BEGINNINGS[:2]:
        command = command[command[:1] == [word] :]
    if command[:1] not in (["train"], ["sweep"]) or {*HELP, LIST_FLAGS} & {*command}:
        raise UserError(
            f"after the flags comes the command: mjfleet submit {cluster} ... -- train <task> ... "
            "or sweep <task> ... `train <task> --help` shows its flags."
        )
    typed = shlex.join(flag for flag in flags if flag != "--print")
    job = make_job(parsed, f"mjfleet submit {cluster} {typed} -- {shlex.join(command)}", command)
    text = parsed.file(job)
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
