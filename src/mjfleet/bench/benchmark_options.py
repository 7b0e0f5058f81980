"""The benchmarks' flags, and the task, devices and folder they stand for. In the launcher."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from mjfleet.bench.result import Result
from mjfleet.config import LaunchConfig, TrainConfig, from_dict
from mjfleet.config.launch_config import GPUS, GpuRequest
from mjfleet.config.validation import COUNT, Checked, Count, Folder, OptionalCount, Rule
from mjfleet.launch.devices import Devices
from mjfleet.launch.launch_plan import make_plan
from mjfleet.registry import FoundTask
from mjfleet.utils.console import print_error
from mjfleet.worker.worker_args import WorkerArgs

TaskName = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="TASK")]
Counts = Annotated[
    tuple[int, ...],
    Rule(lambda v: v and all(map(COUNT.holds, v)), f"one number or more, each {COUNT.allowed}"),
]


@dataclass(frozen=True, kw_only=True)
class Options(Checked):
    """The flags of every benchmark."""

    task: TaskName = "cartpole-balance"
    """The task to train."""
    gpu_ids: Annotated[GpuRequest, GPUS] = "auto"
    """`auto` (the visible GPUs, else the CPU), `None` (the CPU), or indices of visible GPUs; only
    `scaling` uses more than the first."""
    engine: Literal["auto", "warp", "native"] = "auto"
    """`warp` (MuJoCo-Warp), `native` (MuJoCo's threads, CPU only); `auto`: warp on a GPU only."""
    cpu_threads: OptionalCount = None
    """CPU threads of mjfleet; `None`: one for each core that this process may use."""
    iterations: Count = 20
    """Iterations to measure in each run."""
    warmup: Count = 5
    """Iterations before those, which are not measured."""
    repeats: Count = 5
    """How often to measure everything, in turn."""
    output: Folder = "logs/bench"
    """Folder for the results, as JSON and Markdown."""

    @property
    def placement(self) -> LaunchConfig:
        """What the flags say of devices and engine."""
        return LaunchConfig(gpu_ids=self.gpu_ids, engine=self.engine)


@dataclass(frozen=True)
class Setup:
    """A task on the selected devices, and a folder for temporary files."""

    found: FoundTask
    options: Options
    devices: Devices
    scratch: Path
    save: Callable[[Result], object]
    """Writes a result, also one that is not complete yet, into `--output`."""

    @property
    def kind(self) -> str:
        """The engine and the kind of device."""
        engine = self.worker_args(self.config(None)).engine
        return f"{engine}-{self.devices.names[0].partition(':')[0]}"

    @property
    def device_flags(self) -> list[str]:
        """The flags that give a command the first of the devices."""
        threads, gpu = self.options.cpu_threads, (*map(str, self.devices.indices), "None")[0]
        engine = self.options.placement.engine
        return ["--engine", engine, "--cpu-threads", str(threads), "--gpu-ids", gpu]

    def config(
        self, num_envs: int | None, *, workers: int = 1, threads: int | None = None, **agent: Any
    ) -> TrainConfig:
        """Return the task's configuration with settings of the agent, and environments per worker.

        Without `num_envs` it has as many as the task's. The workers are on the first of the
        devices and share `threads`, or --cpu-threads. They train for --warmup and --iterations,
        unless `agent` says otherwise.
        """
        options, gpus = self.options, self.devices.indices
        values = {
            "gpu_ids": list(gpus[:workers]) or None,
            "cpu_workers": None if gpus or workers == 1 else workers,
            "engine": options.placement.engine,
            "cpu_threads": threads or options.cpu_threads,
            "env": {"num_envs": num_envs} if num_envs else {},
            "agent": {"max_iterations": options.warmup + options.iterations, **agent},
        }
        return from_dict(self.found.defaults(), values)

    def worker_args(self, config: TrainConfig) -> WorkerArgs:
        """Return the arguments of a single worker, which trains without a launcher.

        UserError if engine, threads and devices do not fit each other.
        """
        devices = replace(self.devices, indices=self.devices.indices[:1])
        plan = make_plan(self.found, config, [devices], {})
        return replace(plan, run_dir=self.scratch).worker_args()

    def result(self, what: str, *contents: Any, **more: Any) -> Result:
        """Return a result whose name and title hold task, engine and kind of device."""
        name = f"{what}-{self.found.name}-{self.kind}"
        return Result(name, f"{what}: {self.found.name}, {self.kind}", *contents, **more)

    def rounds(
        self,
        keys: Sequence[Mapping[str, Any]],
        measure: Callable[..., Mapping[str, Any]],
        label: str,
    ) -> list[dict[str, Any]]:
        """Call `measure` with every key in turn, `--repeats` times: noise then affects all alike.

        Returns the keys and figures of each measurement. Before it, `label` is printed to standard
        error, with the values of the key in the place of their names in braces.
        """
        samples = []
        for number in range(1, self.options.repeats + 1):
            for key in keys:
                print_error(f"round {number} of {self.options.repeats}: {label.format(**key)}")
                samples.append({**key, **measure(**key)})
        return samples
