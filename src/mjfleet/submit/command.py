"""`mjfleet submit CLUSTER ... -- train ...`: runs a command on a cluster, or prints the file.

A job is planned once, for whichever cluster; each has flags and a template of its own.
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

from mjfleet.cli.train import configure
from mjfleet.config.flags import (
    HELP,
    LIST_FLAGS,
    parse_flags,
    parse_known,
    typed_fields,
    without_fields,
)
from mjfleet.config.launch_config import MAX_HOSTS, MAX_WORKERS
from mjfleet.config.validation import Checked, Count, Rule, between, optional
from mjfleet.errors import UserError
from mjfleet.groups.device_shares import divide_devices
from mjfleet.groups.seeds import count_seeds
from mjfleet.launch.devices import choose_devices, needs_gpus
from mjfleet.launch.launch_plan import describe_size, make_plan
from mjfleet.sweep.arguments import SweepArguments
from mjfleet.sweep.command import PROG, define_sweep
from mjfleet.utils.console import print_line
from mjfleet.worker.rank_environment import Rank

TEMPLATES = Path(__file__).with_name("templates")
SAVE_SECONDS = 120
"""How long a run that is to stop has to save a checkpoint; with several workers of torchrun, from
torch 2.12 on: earlier ones end workers after 30 s, and know no TORCH_ELASTIC_SHUTDOWN_TIMEOUT."""
VOLUME = "/runs"
JOB_NAME = Rule(
    lambda v: re.fullmatch(r"[a-z]([a-z0-9-]{0,28}[a-z0-9])?", v) is not None,
    "at most 30 lower-case letters, digits and dashes, with a letter first",
)
OPTIONS = Rule(
    lambda v: all(re.fullmatch(r"[^\s-]\S*", option) for option in v),
    "NAME or NAME=VALUE, without dashes",
)


def _seconds(time: str) -> int:
    """Return the seconds of HOURS:MM:SS; 0 for anything else."""
    match = re.fullmatch(r"(\d{1,4}):([0-5]\d):([0-5]\d)", time, re.ASCII)
    hours, minutes, seconds = map(int, match.groups()) if match else (0, 0, 0)
    return (hours * 60 + minutes) * 60 + seconds


TIMES = Rule(
    lambda v: _seconds(v) > 2 * SAVE_SECONDS, "HOURS:MM:SS, such as 24:00:00, more than 0:04:00"
)
Time = Annotated[str | None, optional(TIMES)]


@dataclass(frozen=True, kw_only=True)
class JobArguments(Checked):
    """The job's resources, on any cluster."""

    nodes: Annotated[int, between(1, MAX_HOSTS)] = 1
    """Machines of a run."""
    gpus: Annotated[int | None, optional(between(0, MAX_WORKERS))] = None
    """GPUs of each machine, one worker on each; `None`: as many as the command names, or one."""
    cpus: Count = 4
    """CPU cores of each worker."""
    name: Annotated[str | None, optional(JOB_NAME)] = None
    """Name of the job; `None`: the task's."""
    print: bool = False
    """Print the file; submit nothing."""


@dataclass(frozen=True, kw_only=True)
class SlurmArguments(JobArguments):
    """Run a command as a batch job of SLURM, in this folder, with this Python."""

    submit: ClassVar = ("sbatch",)

    time: Time = None
    """Longest time until the job has to queue again: HOURS:MM:SS; `None`: the partition's."""
    sbatch: Annotated[list[str], OPTIONS] = field(default_factory=list)
    """Other options of sbatch, without dashes: partition=long exclusive."""


@dataclass(frozen=True, kw_only=True)
class SkyArguments(JobArguments):
    """Run a command on a cloud as a managed job of SkyPilot, which gets a copy of this folder."""

    submit: ClassVar = ("sky", "jobs", "launch", "--yes", "--detach-run")

    gpu: str | None = None
    """Name of the GPU, such as H100."""
    spot: bool = False
    """Use machines that are cheaper and may be preempted."""
    volume: str
    """Storage of the runs: a bucket, such as s3://my-runs, or a volume of SkyPilot."""
    image: str | None = None
    """Container image with mjfleet; `None`: uv installs what this folder's pyproject.toml needs."""


@dataclass(frozen=True, kw_only=True)
class KubernetesArguments(JobArguments):
    """Run a command on Kubernetes as a JobSet, whose operator the cluster needs."""

    submit: ClassVar = ("kubectl", "create", "--filename")

    image: str
    """Image with mjfleet and your tasks, such as one that mjfleet's Dockerfile builds."""
    volume: str
    """Persistent volume claim for the runs, which all pods can write to."""
    time: Time = None
    """Longest time until the run has to queue again: HOURS:MM:SS; `None`: no limit."""


CLUSTERS = {"slurm": SlurmArguments, "sky": SkyArguments, "k8s": KubernetesArguments}


@dataclass(frozen=True, kw_only=True)
class ClusterJob:
    """A job for SLURM, SkyPilot or Kubernetes."""

    sizes: list[str]  # What is trained, for the first lines of the file.
    name: str
    command: list[str]
    folder: str  # The experiment's folder, in which the run directory is made.
    run_dir: str | None  # The run directory that the command names.
    processes: int  # Processes of each machine.
    gpus: int  # GPUs of each machine.
    cpus: int  # Cores of each process.
    restarts: int  # How often the run starts again after a fault.


def submit(arguments: Sequence[str]) -> int:
    """Submit a job, or print its file; returns the exit code."""
    cluster, rest = next(iter(arguments), ""), list(arguments[1:])
    if cluster in ("", *HELP):
        texts = "\n".join(f"  {name:<7}{kind.__doc__}" for name, kind in CLUSTERS.items())
        usage = "usage: mjfleet submit CLUSTER [flags] -- train <task> ...\n\nclusters:"
        print_line(f"{usage}\n{texts}\n\n`mjfleet submit CLUSTER --help` says more.")
        return 0 if cluster else 2
    if cluster not in CLUSTERS:
        raise UserError(f"submit {cluster}: it must be one of {', '.join(CLUSTERS)}.")
    at = rest.index("--") if "--" in rest else len(rest)
    flags, command = rest[:at], rest[at + 1 :]
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


def make_job(arguments: JobArguments, command: Sequence[str]) -> ClusterJob:
    """Return the job that runs a `train` or `sweep` command, planned as by `train --dry-run`.

    UserError if a flag, task or number is wrong, or what is asked for does not fit the job.
    """
    is_sweep, job_command = command[0] == "sweep", list(command)
    own, rest = (
        parse_known(SweepArguments, job_command[1:], PROG) if is_sweep else (None, job_command[1:])
    )
    _refuse(typed_fields(job_command), _is_array(arguments), is_sweep)
    # In the job, --as-trained is about the run in --run-dir.
    if "fork" in typed_fields(job_command):
        rest = without_fields(rest, ["as_trained"])
    chosen = configure([*rest, "--dry-run"])
    found, config, start = chosen.found, chosen.config, chosen.start
    runs = count_seeds(config) if config.seeds else int(start.is_group)
    if own:
        study = define_sweep(own, chosen)
        config, runs = study.config, study.most
    elif config.per_run is not None and not runs:
        raise UserError(f"--per-run {config.per_run} is for several runs: add --seeds.")
    gpus, wants = arguments.gpus, int(needs_gpus(config))
    wants = len(config.gpu_ids) if isinstance(config.gpu_ids, list) else wants
    if gpus is None:
        gpus = wants
    if gpus and not wants:
        raise UserError(f"--gpus {gpus}: the command trains on the CPU; leave it out.")
    if isinstance(config.gpu_ids, list) and gpus != wants and not (gpus and runs):
        raise UserError(
            f"--gpus {gpus}: --gpu-ids in the command lists {wants}, one for each worker; leave "
            "one of the two out."
        )
    if not gpus and needs_gpus(config):
        config = replace(config, gpu_ids=None)
        job_command = [*without_fields(job_command, ["gpu_ids"]), "--gpu-ids", "None"]
    workers = gpus or config.cpu_workers or 1
    cores, restarts = workers * arguments.cpus, config.max_restarts
    if runs:
        if arguments.nodes > 1:
            raise UserError("--nodes: several runs share one machine: leave it out.")
        shares = divide_devices(config, {}, runs, config.per_run, gpus, cores)
        sizes = [f"runs: {runs}, {len(shares)} at a time, each on {shares[0].size}"]
        one = replace(config, gpu_ids=list(shares[0].gpus) or None)
        devices, place = choose_devices(one, {}, gpus), None
        processes, restarts = 1, 0  # Each run restarts by itself.
    else:
        if restarts:
            job_command = [*without_fields(job_command, ["max_restarts"]), "--max-restarts", "0"]
        config, sizes, processes = replace(config, max_restarts=0), [], workers
        devices = choose_devices(config, {}, gpus, started=workers)
        place = Rank(world_size=arguments.nodes * workers, local_world_size=workers)
    plan = make_plan(found, config, [replace(devices, cores=cores)], place, start)
    name = re.sub(r"[^a-z0-9]+", "-", found.name.lower()).strip("-")
    name = name if name[:1].isalpha() else f"train-{name}"
    return ClusterJob(
        sizes=[*sizes, *(f"{name}: {size}" for name, size in describe_size(plan).items())],
        name=arguments.name or name[:30].rstrip("-"),
        command=job_command,
        folder=str(Path(config.log_root, config.agent.experiment_name)),
        run_dir=config.run_dir,
        processes=processes,
        gpus=gpus,
        cpus=cores // processes,
        restarts=restarts,
    )


def _refuse(typed: frozenset[str], is_array: bool, is_sweep: bool) -> None:
    """Raise an error if a field is given that the job decides."""
    refused = {"hosts": "The cluster chooses the machines of the job."}
    if "fork" not in typed or is_sweep:
        refused["resume"] = "The job begins or continues the run in --run-dir."
    if is_array:
        fixed = ("run_dir",) if is_sweep else ("run_dir", "seeds", "agent.seed")
        why = "An array has a run for each index, which decides its seed."
        refused |= dict.fromkeys(fixed, why)
    for name, why in refused.items():
        if name in typed:
            raise UserError(f"--{name.replace('_', '-')}: leave it out. {why}")


def _is_array(arguments: JobArguments) -> bool:
    """Return whether there is a job, with a run of its own, for each index of an array."""
    options = arguments.sbatch if isinstance(arguments, SlurmArguments) else ()
    return any(option.startswith("array=") for option in options)


def _file(cluster: str, arguments: JobArguments, job: ClusterJob, typed: Sequence[str]) -> str:
    """Return the file that the cluster's template makes of a job, and of what the user typed.

    UserError if the run directory is not in the volume, no GPU or nothing to install is named.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    command = job.command
    if cluster != "slurm":
        if not job.run_dir:
            when = f"{datetime.now():%Y-%m-%d_%H-%M-%S}"
            command = [*command, "--run-dir", f"{VOLUME}/{PurePosixPath(job.folder).name}/{when}"]
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
        header="\n".join(f"# {line}" for line in header), command=shlex.join(command), job=job,
        arguments=arguments, is_array=_is_array(arguments), save_seconds=SAVE_SECONDS,
        python=sys.executable,
    )  # fmt: skip
