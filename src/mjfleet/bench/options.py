"""The flags of each benchmark. Standard library alone."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from mjfleet.config import LaunchConfig
from mjfleet.config.validation import Rule, at_least, check, optional

SOME = Rule(lambda v: len(v) > 0 and all(n > 0 for n in v), "one or more positive numbers")
FOLDER = Rule(lambda v: v.strip() != "", "the name of a folder")


@dataclass(frozen=True, kw_only=True)
class Options:
    """What all benchmarks have in common."""

    flags: ClassVar[str] = ""

    gpu_ids: list[int] | Literal["auto", "all"] | None = "auto"
    """`auto` (GPU 0, else the CPU), `None` (the CPU), or indices of visible GPUs."""
    engine: Literal["auto", "warp", "native"] = "auto"
    """`warp` (MuJoCo-Warp), `native` (MuJoCo's threads, CPU only); `auto`: warp on a GPU only."""
    cpu_threads: int | None = None
    """CPU threads of ours; `None`: one for each core that this process may use."""
    iterations: int = 20
    """Iterations that are measured in each run."""
    warmup: int = 5
    """Iterations before them, which are not."""
    repeats: int = 5
    """How often everything is measured, in turn."""
    output: str = "benchmarks"
    """Folder for the results, as JSON and Markdown."""

    def __post_init__(self) -> None:
        check(self, iterations=at_least(1), warmup=at_least(1), repeats=at_least(1), output=FOLDER)
        LaunchConfig(gpu_ids=self.gpu_ids, cpu_threads=self.cpu_threads)


@dataclass(frozen=True, kw_only=True)
class ThroughputOptions(Options):
    """Env steps per second and where the time goes, beside the engine's own limit."""

    num_envs: tuple[int, ...] = (256, 1024, 4096)
    """Numbers of worlds to measure."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self, num_envs=SOME, iterations=at_least(2))


@dataclass(frozen=True, kw_only=True)
class PeerOptions(Options):
    """The same task with the same PPO settings, by mjfleet and by another stack, in turn."""

    num_envs: tuple[int, ...] = (256, 1024, 4096)
    """Numbers of worlds to measure."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self, num_envs=SOME)


@dataclass(frozen=True, kw_only=True)
class ScalingOptions(Options):
    """Weak scaling: the same worlds and threads for each of 1 to N workers."""

    gpu_ids: list[int] | Literal["auto", "all"] | None = "all"
    """`all` visible GPUs, else the CPU; `None` (the CPU), or indices of visible GPUs."""
    workers: int | None = None
    """The most workers; `None`: the number of visible GPUs, or 2 on the CPU."""
    num_envs: int = 1024
    """Worlds of each worker."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self, workers=optional(at_least(1)), num_envs=at_least(1))


@dataclass(frozen=True, kw_only=True)
class ExchangeOptions(Options):
    """What many ranks tell each other, on this machine, without the simulation around it."""

    gpu_ids: list[int] | Literal["auto", "all"] | None = None
    """`None`: the ranks are processes of the CPU."""
    ranks: tuple[int, ...] = (2, 4, 16, 64)
    """Numbers of ranks to measure."""
    num_envs: int = 1024
    """Worlds whose state a rank hands over for a checkpoint."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self, ranks=Rule(lambda v: len(v) > 0 and min(v) > 1, "numbers from 2 on"))
        check(self, num_envs=at_least(1))


@dataclass(frozen=True, kw_only=True)
class StartupOptions(Options):
    """The time from Enter to help and to the first iteration, and what it goes into."""

    iterations: int = 1
    """Iterations that each run does, of which the first counts."""
    num_envs: int = 1024
    """Worlds of each worker."""
    workers: int = 1
    """Workers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self, num_envs=at_least(1), workers=at_least(1))


@dataclass(frozen=True, kw_only=True)
class LearningOptions(Options):
    """Reward against samples and against time, over seeds, by mjfleet and by mjlab."""

    iterations: int = 150
    """Iterations of each run; all of them count, and --warmup does not."""
    repeats: int = 3
    """Seeds, from 1 on."""
    num_envs: int = 1024
    """Worlds."""
    peer: Literal["mjlab", "none"] = "mjlab"
    """Whom to compare with."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self, num_envs=at_least(1))
