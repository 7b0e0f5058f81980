"""What is trained and where: the environment's numbers, the launch flags, and a task's entry."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Literal

from mjfleet.config.agent_config import AgentConfig
from mjfleet.config.validation import Rule, above, at_least, check, optional
from mjfleet.errors import UserError

HOST = r"[\w.:%@][\w.:%@-]*"
NumEnvs = int | Literal["auto"]
GpuRequest = list[int] | Literal["auto", "all"] | None


@dataclass(frozen=True, kw_only=True)
class EnvConfig:
    """The environment. A task's own configuration is a subclass that adds its fields."""

    flags: ClassVar[str] = "env."

    num_envs: NumEnvs = 1024
    """Environments per worker; `auto` measures which number trains fastest on these devices."""
    decimation: int = 1
    """Physics steps per environment step; the action is held meanwhile."""
    episode_seconds: float = 20.0
    """Simulated seconds after which an episode times out."""
    nconmax: int | None = None
    """Contacts per environment that the warp engine has room for; None: estimated from the
    model."""
    njmax: int | None = None
    """Constraint rows per environment that the warp engine has room for; None: estimated from the
    model."""

    def __init_subclass__(cls, **keywords: Any) -> None:
        """Let `auto` also be a value where a task writes `num_envs: int = 256`."""
        super().__init_subclass__(**keywords)
        if "num_envs" in cls.__annotations__:
            cls.__annotations__["num_envs"] = NumEnvs

    def __post_init__(self) -> None:
        worlds = Rule(lambda v: v == "auto" or at_least(1).holds(v), "at least 1, or `auto`")
        check(self, num_envs=worlds, decimation=at_least(1), episode_seconds=above(0))
        check(self, nconmax=optional(at_least(1)), njmax=optional(at_least(1)))
        number = Rule(lambda v: not (isinstance(v, float) and math.isnan(v)), "a number")
        check(self, **{f.name: number for f in fields(self)})


@dataclass(frozen=True, kw_only=True)
class LaunchConfig:
    """The flags that all tasks share: where training runs and where its files go."""

    flags: ClassVar[str] = ""

    gpu_ids: GpuRequest = "auto"
    """`auto` (GPU 0 if there is one, else the CPU), `all`, `None` (the CPU), or indices of visible
    GPUs. Each GPU gets one worker."""
    cpu_workers: int | None = None
    """Number of workers on the CPU; `None`: one, if no GPU is used."""
    hosts: list[str] = field(default_factory=list)
    """Hosts to train on, by names that ssh knows, or `slurm`; by default this host, or those of a
    SLURM allocation. The device flags apply to each host."""
    ssh_config: str | None = None
    """File that ssh reads instead of ~/.ssh/config."""
    launcher_address: str | None = None
    """Address at which the other hosts reach the first one; `None`: the one that ssh shows."""
    min_hosts: int | None = None
    """How many hosts are enough to restart after a fault if some cannot be reached; `None`: all of
    them."""
    env_var: list[str] = field(default_factory=list)
    """Environment variables for workers on other hosts: NAME, with its value here, or NAME=VALUE.
    Those of torch, MuJoCo, Warp, NCCL, gloo, OpenMP and W&B are passed on anyway."""
    total_envs: int | None = None
    """Environments of all workers together, divided evenly, instead of a number per worker."""
    engine: Literal["auto", "warp", "native"] = "auto"
    """`warp` (MuJoCo-Warp) or `native` (MuJoCo's thread pool, CPU only); `auto`: warp on a GPU,
    native on the CPU."""
    cpu_threads: int | None = None
    """CPU threads for simulation and learning, divided among the workers; `None`: one for each core
    that this process may use."""
    backend: Literal["auto", "nccl", "gloo"] = "auto"
    """How workers communicate; `auto`: nccl on GPUs, gloo on the CPU."""
    collective_timeout: float = 900.0
    """Seconds after which a worker gives up waiting for the others in a collective."""
    hang_timeout: float = 600.0
    """Seconds without a step after which the run ends with every worker's stacks; 0: never."""
    max_restarts: int = 0
    """How often the run restarts automatically after a fault, from its newest checkpoint."""
    resume: str | None = None
    """What to resume: a run directory, the beginning of a run's name, a checkpoint, or `latest`,
    the experiment's newest run."""
    keep_checkpoints: int | None = None
    """How many of the newest checkpoints are kept; `None`: all."""
    save_worlds: bool = True
    """Whether checkpoints hold the state of all environments, so that a run resumes bit for bit."""
    eval_interval: int | None = None
    """Iterations between evaluations: one episode with the policy's mean actions in each evaluation
    environment, always from the same states. The best policy is kept in best.pt. `None`: none."""
    eval_envs: int = 64
    """Environments of an evaluation, of all workers together."""
    video_interval: int | None = None
    """Iterations between videos of the first environments; `None`: no videos."""
    on_nan: Literal["stop", "reset"] = "stop"
    """What to do when a number in an environment is not finite: `stop` all workers and dump the
    environment, or `reset` the environment and continue."""
    log_root: str = "logs"
    """Folder under which run directories are made."""
    torchrunx_log_dir: str | None = None
    """Folder of workers' logs; `""`: no logs; `None`: in the run directory. The variable
    TORCHRUNX_LOG_DIR overrides this flag."""
    tasks_dir: str | None = None
    """Folder of task folders to search first, before those of MJFLEET_TASKS."""
    config: str | None = None
    """File to start from, such as the config.yaml of an earlier run; flags override it."""
    plain: bool = False
    """Print one line per iteration instead of a live view; always so without a terminal."""
    quiet: bool = False
    """Print warnings and errors only, no iterations."""
    dry_run: bool = False
    """Print what would run, then stop; start and create nothing."""

    def __post_init__(self) -> None:
        gpus = Rule(
            lambda v: v != [],
            "one or more GPU indices, `all`, `auto`, or `None` for the CPU",
        )
        count = optional(at_least(1))
        check(self, gpu_ids=gpus, cpu_workers=count, total_envs=count, cpu_threads=count)
        check(self, collective_timeout=above(0), hang_timeout=at_least(0))
        check(self, eval_interval=count, eval_envs=at_least(1), video_interval=count)
        check(self, max_restarts=at_least(0), keep_checkpoints=count, min_hosts=count)
        # What begins with a dash would be an option of ssh's.
        hosts = Rule(
            lambda v: len(set(v)) == len(v) and all(re.fullmatch(HOST, name) for name in v),
            "names of different hosts, or `slurm`",
        )
        names = Rule(
            lambda v: all(re.match(r"[A-Za-z_]\w*(=|$)", item) for item in v),
            "NAME or NAME=VALUE, one or more",
        )
        check(self, hosts=hosts, env_var=names)
        check(self, log_root=Rule(lambda v: v.strip() != "", "the name of a folder"))


@dataclass(frozen=True, kw_only=True)
class TrainConfig(LaunchConfig):
    """Everything that determines a training run."""

    env: EnvConfig = field(default_factory=EnvConfig)
    """The task's environment."""
    agent: AgentConfig = field(default_factory=AgentConfig)
    """The learning agent."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.env.num_envs == "auto":
            return  # Checked once it is a number.
        samples = self.env.num_envs * self.agent.num_steps_per_env
        batches = self.agent.algorithm.num_mini_batches
        if samples < 2:
            raise UserError(
                "a rollout has one sample, of which advantages cannot be normalised: raise "
                "--env.num-envs or --agent.num-steps-per-env."
            )
        if self.agent.algorithm.normalize_advantage_per_mini_batch and samples // batches < 2:
            raise UserError(
                f"--agent.algorithm.num-mini-batches is {batches}: of {samples} samples that "
                "leaves one in each minibatch, whose advantages cannot be normalised."
            )
        # Recurrent networks learn from whole trajectories: each minibatch is a share of the worlds.
        pieces = self.env.num_envs if self.agent.is_recurrent else samples
        if batches > pieces:
            what = "worlds" if self.agent.is_recurrent else "samples of a rollout"
            raise UserError(
                f"--agent.algorithm.num-mini-batches is {batches}, more than the {pieces} {what} "
                "that it divides."
            )

    @property
    def worlds(self) -> int:
        """Worlds per worker, once `auto` has been replaced by a number."""
        assert self.env.num_envs != "auto"
        return self.env.num_envs

    def with_worlds(self, num_envs: int) -> "TrainConfig":
        """The same with that many worlds per worker."""
        return replace(self, env=replace(self.env, num_envs=num_envs))


@dataclass(frozen=True, kw_only=True)
class Task:
    """A task as config.py lists it under TASKS: its environment and defaults."""

    summary: str
    """One line for lists and help."""
    env: EnvConfig
    """Defaults of the environment; the fields of its class are the task's flags."""
    env_class: str
    """`module:Class` of the environment within the task folder, e.g. `env:CartpoleEnv`."""
    agent: AgentConfig = field(default_factory=AgentConfig)
    """Defaults of the agent."""
    num_actions: int | None = None
    """Size of an action, for lists; checked when the environment is built."""
    observation_sizes: Mapping[str, int] | None = None
    """Size of each observation group, for lists; checked when the environment is built."""
