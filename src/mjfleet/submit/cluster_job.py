"""What a cluster is to run: made once from a command line, for whichever cluster.

Runs in the process that the user started. Imports nothing heavy.
"""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

from mjfleet.cli.flag_table import flags_of
from mjfleet.cli.flags import parse_flags, peek, split_words
from mjfleet.cli.train import configure, with_task
from mjfleet.config import TrainConfig
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
from mjfleet.runs.run_json import GROUP_FILE, RECORD_FILE
from mjfleet.runs.run_lookup import is_group
from mjfleet.sweep.arguments import SweepArguments, split_flags
from mjfleet.sweep.command import PROG, define_sweep

SHORTEST_SECONDS = 300
TIME = re.compile(r"(?:(\d{1,3})-)?(\d{1,3}):([0-5]\d):([0-5]\d)", re.ASCII)
TIMES = Rule(
    lambda v: TIME.fullmatch(v) is not None and to_seconds(v) >= SHORTEST_SECONDS,
    "HOURS:MM:SS or DAYS-HH:MM:SS, such as 4:00:00, at least 0:05:00",
)
JOB_NAME = Rule(
    lambda v: re.fullmatch(r"[a-z]([a-z0-9-]{0,28}[a-z0-9])?", v) is not None,
    "at most 30 lower-case letters, digits and dashes, with a letter first",
)

NEW_RUN = {
    "train": {"config", "init-from", "seeds"},
    "sweep": {"config", *(flag.name for flag in flags_of(SweepArguments))} - {"storage"},
}
"""Flags that are for a new run only."""


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

    cluster: ClassVar[str]
    submit: ClassVar[Sequence[str]]


@dataclass(frozen=True, kw_only=True)
class ClusterJob:
    """What a cluster runs, the same for SLURM, SkyPilot and Kubernetes."""

    header: str  # Comments: the command that the user typed, and what is trained.
    name: str
    kind: str  # The command: `train` or `sweep`.
    begin: str  # The words after it that begin a run, as a shell reads them,
    resume: str  # those that resume it,
    command: str  # and those that follow in either case.
    folder: str  # Of the experiment, in which the run directory is made.
    run_dir: str | None  # The run directory that the user named.
    nodes: int
    processes: int  # Of each machine.
    gpus: int  # Of each machine.
    cpus: int  # Cores of each process.
    restarts: int  # How often the run starts again after a fault.


def make_job(arguments: JobArguments, typed: str, command: Sequence[str]) -> ClusterJob:
    """Return the job that runs a `train` or `sweep` command.

    The command is checked as `train` checks it, and planned as `train --dry-run` does.

    Raises:
        UserError: a flag, task or number is wrong; what the command asks for does not fit the job.
    """
    kind, words = command[0], command[1:]
    why = "The job begins or resumes the run in --run-dir, on machines that the cluster chooses."
    _refuse(words, ("--resume", "--hosts", "--dry-run"), why)
    if arguments.is_array:
        fixed = ("--run-dir", "--seeds", "--agent.seed")[: 1 if kind == "sweep" else None]
        _refuse(words, fixed, "An array has a run for each index, which decides its seed.")
    words = with_task(words)
    run_dir, restarts = peek(words, "--run-dir"), peek(words, "--max-restarts")
    new, always = split_words(split_words(words, {"run-dir"})[1], NEW_RUN[kind])
    task = [always.pop(0)] if words and not words[0].startswith("-") else []
    found, config, resume, runs = _checked(kind, task, new, always, run_dir)
    gpus = _gpus(arguments, config)
    if not gpus and needs_gpus(config):
        config = replace(config, gpu_ids=None)
        always = [*split_words(always, {"gpu-ids"})[1], "--gpu-ids", "None"]
    workers = gpus or config.cpu_workers or 1
    cores, sizes = workers * arguments.cpus, dict[str, Any]()
    if runs:
        if arguments.nodes > 1:
            raise UserError("--nodes: several runs share one machine: leave it out.")
        shares = divide_devices(config, {}, runs, config.per_run, gpus, cores)
        sizes["runs"] = f"{runs}, {len(shares)} at a time, each on {shares[0]}"
        devices = choose_devices(replace(config, gpu_ids=list(shares[0].gpus) or None), {}, gpus)
        place, processes = {}, 1
    else:
        always = split_words(always, {"max-restarts"})[1]
        config = replace(config, max_restarts=0)
        devices = choose_devices(config, {}, gpus, started=workers)
        place, processes = _place(arguments.nodes, workers), workers
    sizes |= describe_size(plan_size(found, config, [replace(devices, cores=cores)], place, resume))
    lines = [" ".join(typed.split()), *(f"{name}: {value}" for name, value in sizes.items())]
    name = re.sub(r"[^a-z0-9]+", "-", found.name.lower()).strip("-")[:30].rstrip("-")
    return ClusterJob(
        header="\n".join(f"# {line}" for line in lines),
        name=arguments.name or name,
        kind=kind,
        begin=shlex.join([*task, *new]),
        resume=shlex.join(task if kind == "train" else []),
        command=shlex.join(always),
        folder=str(Path(config.log_root, config.agent.experiment_name)),
        run_dir=run_dir,
        nodes=arguments.nodes,
        processes=processes,
        gpus=gpus,
        cpus=cores // processes,
        restarts=0 if runs else int(restarts or 0),
    )


def _checked(
    kind: str, task: Sequence[str], new: Sequence[str], always: Sequence[str], run_dir: str | None
) -> tuple[FoundTask, TrainConfig, Resume | None, int | None]:
    """Return what is trained, the run that goes on, and the number of runs of a group."""
    own, words = split_flags([*task, *new, *always]) if kind == "sweep" else ([], [])
    if kind == "sweep":
        found, config, *_ = configure([*words, "--dry-run"])
        wanted = parse_flags(SweepArguments, own, PROG)
        config, definition = define_sweep(wanted, found, config, words)
        return found, config, None, definition.most
    is_begun = run_dir and any(Path(run_dir, n).is_file() for n in (RECORD_FILE, GROUP_FILE))
    start = ["--resume", run_dir] if run_dir and is_begun else new
    found, config, resume = configure([*task, *start, *always, "--dry-run"])
    group = resume if resume and is_group(resume.path) else None
    if config.per_run is not None and not (config.seeds or group):
        raise UserError(f"--per-run {config.per_run} is for several runs: add --seeds.")
    runs = count_seeds(config) if config.seeds else int(group is not None) or None
    return found, config, resume, runs


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


def _place(nodes: int, workers: int) -> dict[str, str]:
    """Return the variables by which the first worker of the job will know its place."""
    if nodes * workers == 1:
        return {}
    numbers = {"WORLD_SIZE": nodes * workers, "LOCAL_WORLD_SIZE": workers, "MASTER_PORT": 1}
    others = {"RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost"}
    return {name: str(number) for name, number in numbers.items()} | others


def to_seconds(text: str) -> int:
    """Return the seconds of a time that TIME accepts."""
    match = TIME.fullmatch(text)
    assert match
    days, hours, minutes, rest = (int(number or 0) for number in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + rest
