"""What a cluster is to run: made once from a command line, for whichever cluster.

Runs in the process that the user started. Imports nothing heavy.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from mjfleet.cli.train import configure
from mjfleet.config.flags import parse_known, typed_fields
from mjfleet.config.launch_config import MAX_HOSTS, MAX_WORKERS
from mjfleet.config.validation import Checked, Count, Rule, between, count, optional
from mjfleet.errors import UserError
from mjfleet.groups.device_shares import divide_devices
from mjfleet.groups.seeds import count_seeds
from mjfleet.launch.devices import choose_devices, needs_gpus
from mjfleet.launch.launch_plan import describe_size
from mjfleet.launch.launch_training import plan_size
from mjfleet.runs.run_lookup import is_group
from mjfleet.sweep.arguments import SweepArguments
from mjfleet.sweep.command import PROG, define_sweep

JOB_NAME = Rule(
    lambda v: re.fullmatch(r"[a-z]([a-z0-9-]{0,28}[a-z0-9])?", v) is not None,
    "at most 30 lower-case letters, digits and dashes, with a letter first",
)
REFUSED = {
    "resume": "The job begins or continues the run in --run-dir.",
    "hosts": "The cluster chooses the machines of the job.",
    "dry_run": "--print shows what the job would run.",
}
"""Flags of the submitted command that are refused, and why."""


@dataclass(frozen=True, kw_only=True)
class JobArguments(Checked):
    """What the job gets, on any cluster."""

    nodes: Annotated[int, count(MAX_HOSTS)] = 1
    """Machines of a run."""
    gpus: Annotated[int | None, optional(between(0, MAX_WORKERS))] = None
    """GPUs of each machine, with a worker on each; `None`: as many as the command names, or one."""
    cpus: Count = 4
    """CPU cores of each worker."""
    name: Annotated[str | None, optional(JOB_NAME)] = None
    """Name of the job; `None`: the task's."""
    print: bool = False
    """Print the file; submit nothing."""

    @property
    def is_array(self) -> bool:
        """Whether there is a job, with a run of its own, for each index of an array."""
        return False


@dataclass(frozen=True, kw_only=True)
class ClusterJob:
    """What a cluster runs, the same for SLURM, SkyPilot and Kubernetes."""

    sizes: list[str]  # What is trained, for the first lines of the file.
    name: str
    words: list[str]  # The command.
    folder: str  # Of the experiment, in which the run directory is made.
    run_dir: str | None  # The run directory that the command names.
    processes: int  # Of each machine.
    gpus: int  # Of each machine.
    cpus: int  # Cores of each process.
    restarts: int  # How often the run starts again after a fault.


def make_job(arguments: JobArguments, command: Sequence[str]) -> ClusterJob:
    """Return the job that runs a `train` or `sweep` command.

    The command is checked as `train` checks it, and planned as `train --dry-run` does.

    Raises:
        UserError: a flag, task or number is wrong; what the command asks for does not fit the job.
    """
    is_sweep, words = command[0] == "sweep", list(command)
    own, rest = parse_known(SweepArguments, words[1:], PROG) if is_sweep else (None, words[1:])
    _refuse(typed_fields(words), arguments.is_array, is_sweep)
    found, config, resume = configure([*rest, "--dry-run"])
    runs = count_seeds(config) if config.seeds else int(bool(resume and is_group(resume.path)))
    if own:
        study = define_sweep(own, found, config)
        config, runs = study.config, study.most
    elif config.per_run is not None and not runs:
        raise UserError(f"--per-run {config.per_run} is for several runs: add --seeds.")
    gpus = arguments.gpus
    if gpus is None:
        gpus = len(config.gpu_ids) if isinstance(config.gpu_ids, list) else int(needs_gpus(config))
    if not gpus and needs_gpus(config):
        config = replace(config, gpu_ids=None)
        words += ["--gpu-ids", "None"]
    workers = gpus or config.cpu_workers or 1
    cores, restarts = workers * arguments.cpus, config.max_restarts
    if runs:
        if arguments.nodes > 1:
            raise UserError("--nodes: several runs share one machine: leave it out.")
        shares = divide_devices(config, {}, runs, config.per_run, gpus, cores)
        sizes = [f"runs: {runs}, {len(shares)} at a time, each on {shares[0]}"]
        one = replace(config, gpu_ids=list(shares[0].gpus) or None)
        devices, place = choose_devices(one, {}, gpus), {}
        processes, restarts = 1, 0  # Each run restarts by itself.
    else:
        if restarts:
            words += ["--max-restarts", "0"]
        config, sizes, processes = replace(config, max_restarts=0), [], workers
        devices = choose_devices(config, {}, gpus, started=workers)
        # By these variables the first worker will know its place.
        place = {
            "WORLD_SIZE": str(arguments.nodes * workers), "LOCAL_WORLD_SIZE": str(workers),
            "RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "1",
        }  # fmt: skip
    plan = plan_size(found, config, [replace(devices, cores=cores)], place, resume)
    name = re.sub(r"[^a-z0-9]+", "-", found.name.lower()).strip("-")[:30].rstrip("-")
    return ClusterJob(
        sizes=[*sizes, *(f"{name}: {size}" for name, size in describe_size(plan).items())],
        name=arguments.name or name,
        words=words,
        folder=str(Path(config.log_root, config.agent.experiment_name)),
        run_dir=config.run_dir,
        processes=processes,
        gpus=gpus,
        cpus=cores // processes,
        restarts=restarts,
    )


def _refuse(typed: frozenset[str], is_array: bool, is_sweep: bool) -> None:
    """Raise an error if a field is given that the job decides."""
    refused = dict(REFUSED)
    if "fork" in typed:
        del refused["resume"]
    if is_array:
        fixed = ("run_dir",) if is_sweep else ("run_dir", "seeds", "agent.seed")
        refused |= dict.fromkeys(
            fixed, "An array has a run for each index, which decides its seed."
        )
    for name, why in refused.items():
        if name in typed:
            raise UserError(f"--{name.replace('_', '-')}: leave it out. {why}")
