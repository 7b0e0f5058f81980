"""The benchmarks' flags, and the task, devices and folder they stand for. In the launcher."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import tyro

from mjfleet.config import LaunchConfig, TrainConfig, from_dict
from mjfleet.config.launch_config import GPUS, GpuRequest
from mjfleet.config.validation import COUNT, Checked, Count, Folder, OptionalCount, Rule
from mjfleet.errors import UserError
from mjfleet.launch.devices import Devices, choose_devices
from mjfleet.launch.launch_plan import make_plan
from mjfleet.registry import FoundTask
from mjfleet.utils.console import print_error
from mjfleet.utils.hardware_names import usable_cores
from mjfleet.worker.worker_args import WorkerArgs

Counts = Annotated[
    tuple[int, ...],
    Rule(lambda v: v and all(map(COUNT.holds, v)), f"one number or more, each {COUNT.allowed}"),
]


@dataclass(frozen=True, kw_only=True)
class Options(Checked):
    """The flags of every benchmark."""

    several: ClassVar[bool] = False  # Whether the benchmark uses several GPUs.

    task: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="TASK")] = "cartpole-balance"
    """The task to train."""
    gpu_ids: Annotated[GpuRequest, GPUS] = "auto"
    """`auto` (GPU 0, else the CPU), `None` (the CPU), or indices of visible GPUs."""
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

    def devices(self) -> Devices:
        """Select devices; UserError if one does not exist, or the benchmark uses one of several."""
        chosen = choose_devices(LaunchConfig(gpu_ids=self.gpu_ids, engine=self.engine), os.environ)
        if len(chosen.names) > 1 and not self.several:
            raise UserError("--gpu-ids names several GPUs; this benchmark uses one.")
        return chosen


@dataclass(frozen=True)
class Setup:
    """A task on the selected devices, and a folder for temporary files."""

    found: FoundTask
    options: Options
    devices: Devices
    scratch: Path

    @property
    def device(self) -> str:
        """torch's name of the first device."""
        return self.devices.names[0]

    @property
    def kind(self) -> str:
        """The kind of device: cpu or cuda."""
        return self.device.partition(":")[0]

    def config(
        self, num_envs: int, *, workers: int = 1, threads: int | None = None, **agent: Any
    ) -> TrainConfig:
        """Return the task's configuration with settings of the agent, and environments per worker.

        The workers are on the first of the devices, and share `threads`; None: --cpu-threads. They
        train for --warmup and --iterations, unless `agent` says otherwise. UserError if there are
        fewer GPUs or threads than workers.
        """
        gpus, threads = self.devices.indices, threads or self.options.cpu_threads
        most = len(gpus) or threads or usable_cores()
        if workers > most:
            what = "GPUs" if gpus else "CPU threads"
            raise UserError(
                f"--workers is {workers}; it must be at most {most}, the number of {what}."
            )
        values: dict[str, Any] = {
            "gpu_ids": list(gpus[:workers]) or None,
            "engine": self.options.engine,
            "cpu_threads": threads,
            "env": {"num_envs": num_envs},
            "agent": {"max_iterations": self.options.warmup + self.options.iterations, **agent},
        }
        if workers > 1 and not gpus:
            values["cpu_workers"] = workers
        return from_dict(self.found.defaults(), values)

    def worker_args(self, config: TrainConfig, run_dir: Path) -> WorkerArgs:
        """Return the arguments of a single worker, which trains without a launcher.

        UserError if engine, threads and devices do not fit each other.
        """
        plan = make_plan(self.found, config, [self.devices], {})
        return replace(plan, run_dir=run_dir).worker_args()

    def rounds(
        self,
        keys: Sequence[Mapping[str, Any]],
        measure: Callable[..., Mapping[str, Any]],
        label: str,
    ) -> list[dict[str, Any]]:
        """Call `measure` with every key in turn, `--repeats` times: noise then affects all alike.

        Returns the keys and figures of each measurement. `label`, with the names in a key in
        braces, is what standard error says of it.
        """
        samples = []
        for number in range(1, self.options.repeats + 1):
            for key in keys:
                print_error(f"round {number} of {self.options.repeats}: {label.format(**key)}")
                samples.append({**key, **measure(**key)})
        return samples
