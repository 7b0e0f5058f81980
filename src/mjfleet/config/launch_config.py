"""Flags that all tasks share: devices, hosts, files, checkpoints, restarts."""

import re
from dataclasses import dataclass, field
from typing import Annotated, Literal

from mjfleet.config.field_kinds import Kind
from mjfleet.config.validation import (
    MAX_COUNT,
    MAX_SECONDS,
    Checked,
    Count,
    Folder,
    OptionalCount,
    OptionalFolder,
    PathText,
    Rule,
    Seconds,
    between,
    optional,
)

MAX_WORKERS = 1024  # Workers of one host.
MAX_HOSTS = 1024
GpuRequest = list[int] | Literal["auto", "all"] | None
GPUS = Rule(
    lambda v: not isinstance(v, list) or 0 < len(v) <= MAX_WORKERS,
    f"1 to {MAX_WORKERS} GPU indices, `all`, `auto`, or `None` for the CPU",
)
HOST = r"[\w.:%@][\w.:%@-]*"  # What begins with a dash would be an option of ssh's.
HOSTS = Rule(
    lambda v: len(set(v)) == len(v) <= MAX_HOSTS and all(re.fullmatch(HOST, name) for name in v),
    f"names of at most {MAX_HOSTS} different hosts, or `slurm`",
)
MAX_SEEDS = 1000
SEEDS = Rule(
    lambda v: (
        1 <= v[0] <= MAX_SEEDS
        if len(v) == 1
        else len(set(v)) == len(v) <= MAX_SEEDS and all(0 <= seed <= MAX_COUNT for seed in v)
    ),
    f"a number of seeds from 1 to {MAX_SEEDS}, or several different seeds from 0 to {MAX_COUNT}",
)
VARIABLES = Rule(
    lambda v: all(re.match(r"[A-Za-z_]\w*(=|$)", item) for item in v),
    "NAME or NAME=VALUE, one or more",
)


@dataclass(frozen=True, kw_only=True)
class LaunchConfig(Checked):
    """The flags that all tasks share: where training runs and where its files go."""

    gpu_ids: Annotated[GpuRequest, GPUS, Kind.OPERATION] = "auto"
    """`auto` (GPU 0 if there is one, else the CPU), `all`, `None` (the CPU), or indices of visible
    GPUs. Each GPU gets one worker."""
    cpu_workers: Annotated[int | None, optional(between(1, MAX_WORKERS)), Kind.OPERATION] = None
    """Number of workers on the CPU; `None`: one, if no GPU is used."""
    hosts: Annotated[list[str], HOSTS, Kind.PLACEMENT] = field(default_factory=list)
    """Hosts to train on, by names that ssh knows, or `slurm`; by default this host, or the hosts of
    a SLURM allocation. The device flags apply to each host."""
    ssh_config: PathText = None
    """File that ssh reads instead of ~/.ssh/config."""
    launcher_address: Annotated[str | None, Kind.PLACEMENT] = None
    """Address at which the other hosts reach the first host; `None`: the address that ssh uses."""
    min_hosts: Annotated[OptionalCount, Kind.PLACEMENT] = None
    """Hosts that must be reachable for a restart after a fault; `None`: all of them."""
    seeds: Annotated[list[int], SEEDS, Kind.OPERATION] = field(default_factory=list)
    """Train one run for each seed, as a group that shares this machine's devices: `5` means 5 seeds
    from --agent.seed on, in steps of the number of workers of a run; `1 2 3` means these seeds.
    `--gpu-ids auto` then means all visible GPUs."""
    per_run: Annotated[OptionalCount, Kind.OPERATION] = None
    """GPUs of each run of a group, or cores on the CPU; `None`: one GPU, or an even part of the
    cores. As many runs train at once as fit; the others wait."""
    env_var: Annotated[list[str], VARIABLES, Kind.PLACEMENT] = field(default_factory=list)
    """Environment variables for workers on other hosts: NAME=VALUE, or NAME with this host's value.
    Variables of torch, MuJoCo, Warp, NCCL, gloo, OpenMP and W&B are always passed on."""
    total_envs: OptionalCount = None
    """Environments of all workers together, divided evenly, instead of a number per worker."""
    total_steps: Annotated[OptionalCount, Kind.OPERATION] = None
    """Least number of environment steps, of all workers together, to train for; instead of
    --agent.max-iterations."""
    engine: Annotated[Literal["auto", "warp", "native"], Kind.OPERATION] = "auto"
    """`warp` (MuJoCo-Warp), `native` (MuJoCo's threads, CPU only); `auto`: warp on a GPU only."""
    cpu_threads: Annotated[OptionalCount, Kind.OPERATION] = None
    """CPU threads of all workers together; `None`: one for each core that this process may use."""
    numa: Annotated[Literal["auto", "off"], Kind.OPERATION] = "auto"
    """`auto`: a GPU's worker uses only the cores of the GPU's NUMA node; `off`: all cores."""
    deterministic: Annotated[bool, Kind.OPERATION] = False
    """Whether a GPU computes the same bits each time, as CPUs do. Slower; does not work for models
    with contacts."""
    backend: Annotated[Literal["auto", "nccl", "gloo"], Kind.OPERATION] = "auto"
    """How workers communicate; `auto`: nccl on GPUs, gloo on the CPU."""
    collective_timeout: Annotated[Seconds, Kind.OPERATION] = 900.0
    """Seconds after which a worker gives up waiting for the others in a collective."""
    hang_timeout: Annotated[float, between(0, MAX_SECONDS), Kind.OPERATION] = 600.0
    """Seconds without a step after which the run ends with every worker's stacks; 0: never."""
    max_restarts: Annotated[int, between(0, MAX_COUNT), Kind.OPERATION] = 0
    """How often the run restarts automatically after a fault, from its newest checkpoint."""
    resume: PathText = None
    """Run that continues in its own directory: its path, a part of its name, `latest` (the task's
    newest run), a checkpoint, or a run on W&B: `wandb:<entity>/<project>/<run>[:model_<n>]`."""
    fork: Annotated[bool, Kind.PLACEMENT] = False
    """Begin a new run from the checkpoint of --resume, which may change any value; the other run
    stays as it is."""
    init_from: PathText = None
    """Run from which a new run takes networks and normalisers, named as for `--resume`; it may be
    of another task. Everything else begins anew."""
    teacher: PathText = None
    """Run that `--agent.algorithm.name distillation` imitates, named as for `--resume`."""
    keep_checkpoints: Annotated[OptionalCount, Kind.OPERATION] = None
    """How many of the newest checkpoints are kept; `None`: all."""
    save_worlds: Annotated[bool, Kind.OPERATION] = True
    """Whether checkpoints hold the state of all environments, and sac's replays, so that a run
    resumes bit for bit."""
    eval_interval: Annotated[OptionalCount, Kind.OPERATION] = None
    """Iterations between evaluations: one episode with the policy's mean actions in each evaluation
    environment, always from the same states. The best policy is kept in best.pt. `None`: none."""
    eval_envs: Annotated[Count, Kind.OPERATION] = 64
    """Environments of an evaluation, of all workers together."""
    video_interval: Annotated[OptionalCount, Kind.OPERATION] = None
    """Iterations between videos of the first environments; `None`: no videos."""
    on_nan: Annotated[Literal["stop", "reset"], Kind.OPERATION] = "stop"
    """What to do when a number in an environment is not finite: `stop` all workers and dump the
    environment, or `reset` the environment and continue."""
    log_root: Folder = "logs"
    """Folder under which run directories are made."""
    run_dir: OptionalFolder = None
    """Run directory to begin in, or to continue if it holds a run: the same command does both.
    `None`: a new one under --log-root, named by the experiment and the time."""
    torchrunx_log_dir: Annotated[str | None, Kind.PLACEMENT] = None
    """Folder of workers' logs; `""`: no logs; `None`: the run directory. The variable
    TORCHRUNX_LOG_DIR overrides it."""
    tasks_dir: OptionalFolder = None
    """Folder of task folders to search first, before those of MJFLEET_TASKS."""
    as_trained: Annotated[bool, Kind.PLACEMENT] = False
    """Continue with the run's own copy of the task's code, also if somebody else began the run."""
    config: PathText = None
    """YAML or JSON file to start from, such as the config.yaml of an earlier run; flags override
    it. If the file names its task, the command need not."""
    plain: Annotated[bool, Kind.OPERATION] = False
    """Print one line per iteration instead of a live view; always so without a terminal."""
    quiet: Annotated[bool, Kind.OPERATION] = False
    """Print only the run directory, warnings and errors, and no iterations."""
    dry_run: Annotated[bool, Kind.OPERATION] = False
    """Print what would run, then stop; start and create nothing."""
