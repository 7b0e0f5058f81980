"""What a cluster is to run: made once from a command line, for whichever cluster.

Runs in the process that the user started. Imports nothing heavy.
"""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from mjfleet.cli.train import configure
from mjfleet.config import TrainConfig
from mjfleet.config.flags import is_given, parse_flags, peek, split_words
from mjfleet.config.launch_config import MAX_HOSTS, MAX_WORKERS
from mjfleet.config.validation import Checked, Count, Rule, between, count, optional
from mjfleet.errors import UserError
from mjfleet.groups.device_shares import divide_devices
from mjfleet.groups.seeds import count_seeds
from mjfleet.launch.devices import choose_devices, needs_gpus
from mjfleet.launch.launch_plan import describe_size
from mjfleet.launch.launch_training import plan_size
from mjfleet.registry import FoundTask
from mjfleet.runs.resume_choice import Resume
from mjfleet.runs.run_lookup import is_group
from mjfleet.sweep.arguments import SweepArguments, split_flags
from mjfleet.sweep.command import PROG, define_sweep

JOB_NAME = Rule(
    lambda v: re.fullmatch(r"[a-z]([a-z0-9-]{0,28}[a-z0-9])?", v) is not None,
    "at most 30 lower-case letters, digits and dashes, with a letter first",
)


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


@dataclass(frozen=True, kw_only=True)
class ClusterJob:
    """What a cluster runs, the same for SLURM, SkyPilot and Kubernetes."""

    header: str  # Comments: the command that the user typed, and what is trained.
    name: str
    kind: str  # The command: `train` or `sweep`.
    command: str  # The words after it, as a shell reads them, without --run-dir.
    folder: str  # Of the experiment, in which the run directory is made.
    run_dir: str | None  # The run directory that the user named.
    nodes: int
    processes: int  # Of each machine.
    gpus: int  # Of each machine.
    cpus: int  # Cores of each process.
    restarts: int  # How often the run starts again after a fault.


def make_job(
    arguments: JobArguments, typed: str, command: Sequence[str], is_array: bool
) -> ClusterJob:
    """Return the job that runs a `train` or `sweep` command.

    The command is checked as `train` checks it, and planned as `train --dry-run` does.

    Raises:
        UserError: a flag, task or number is wrong; what the command asks for does not fit the job.
    """
    kind, words = command[0], command[1:]
    if not is_given(words, "--fork"):
        _refuse(words, ["--resume"], "The job begins or continues the run in --run-dir.")
    _refuse(words, ["--hosts", "--dry-run"], "The cluster chooses the machines of the job.")
    if is_array:
        fixed = ("--run-dir", "--seeds", "--agent.seed")[: 1 if kind == "sweep" else None]
        _refuse(words, fixed, "An array has a run for each index, which decides its seed.")
    run_dir, restarts = peek(words, "--run-dir"), peek(words, "--max-restarts")
    found, config, resume, runs = _checked(kind, words)
    gpus = _gpus(arguments, config)
    words = split_words(words, {"run-dir"})[1]
    if not gpus and needs_gpus(config):
        config = replace(config, gpu_ids=None)
        words = [*split_words(words, {"gpu-ids"})[1], "--gpu-ids", "None"]
    workers = gpus or config.cpu_workers or 1
    cores, sizes, place, processes = workers * arguments.cpus, {}, {}, workers
    if runs:
        if arguments.nodes > 1:
            raise UserError("--nodes: several runs share one machine: leave it out.")
        shares = divide_devices(config, {}, runs, config.per_run, gpus, cores)
        sizes["runs"] = f"{runs}, {len(shares)} at a time, each on {shares[0]}"
        devices = choose_devices(replace(config, gpu_ids=list(shares[0].gpus) or None), {}, gpus)
        processes, restarts = 1, None  # Each run restarts by itself.
    else:
        words = split_words(words, {"max-restarts"})[1]
        config = replace(config, max_restarts=0)
        devices = choose_devices(config, {}, gpus, started=workers)
        world_size = arguments.nodes * workers
        if world_size > 1:  # The first worker will know its place by these variables.
            place = {
                "WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": str(workers), "RANK": "0",
                "LOCAL_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "1",
            }  # fmt: skip
    sizes |= describe_size(plan_size(found, config, [replace(devices, cores=cores)], place, resume))
    lines = [" ".join(typed.split()), *(f"{name}: {value}" for name, value in sizes.items())]
    name = re.sub(r"[^a-z0-9]+", "-", found.name.lower()).strip("-")[:30].rstrip("-")
    return ClusterJob(
        header="\n".join(f"# {line}" for line in lines),
        name=arguments.name or name,
        kind=kind,
        command=shlex.join(words),
        folder=str(Path(config.log_root, config.agent.experiment_name)),
        run_dir=run_dir,
        nodes=arguments.nodes,
        processes=processes,
        gpus=gpus,
        cpus=cores // processes,
        restarts=int(restarts or 0),
    )


def _checked(kind: str, words: Sequence[str]) -> tuple[FoundTask, TrainConfig, Resume | None, int]:
    """Return what is trained, the run that continues, and the number of runs of a group, or 0."""
    own, words = split_flags(words) if kind == "sweep" else ([], words)
    found, config, resume = configure([*words, "--dry-run"])
    if kind == "sweep":
        wanted = parse_flags(SweepArguments, own, PROG)
        study = define_sweep(wanted, found, config)
        return found, study.config, None, study.most
    is_group_here = resume is not None and is_group(resume.path)
    if config.per_run is not None and not (config.seeds or is_group_here):
        raise UserError(f"--per-run {config.per_run} is for several runs: add --seeds.")
    return found, config, resume, count_seeds(config) if config.seeds else int(is_group_here)


def _refuse(words: Sequence[str], flags: Sequence[str], why: str) -> None:
    """Raise an error if one of the flags is given."""
    for flag in flags:
        if split_words(words, {flag.removeprefix("--")})[0]:
            raise UserError(f"{flag}: leave it out. {why}")


def _gpus(arguments: JobArguments, config: TrainConfig) -> int:
    """Return the GPUs of each machine; an error if flags and command ask for different ones."""
    named = config.gpu_ids if isinstance(config.gpu_ids, list) else None
    wanted = len(named) if named else int(needs_gpus(config))
    given = wanted if arguments.gpus is None else arguments.gpus
    if given != wanted and (named or not needs_gpus(config)):
        has = f"names {wanted} GPUs (--gpu-ids)" if named else "trains on the CPU"
        raise UserError(f"--gpus is {given}, but the command {has}: leave out one of them.")
    return given
