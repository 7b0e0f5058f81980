"""What a benchmark is about to measure: task, devices, plan, and where files may lie meanwhile.

Runs in the launching process.
"""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from mjfleet.bench.options import Options
from mjfleet.config import TrainConfig, from_dict, to_dict
from mjfleet.errors import UserError
from mjfleet.launch.devices import Devices, select_devices
from mjfleet.launch.launch_plan import Host, make_plan
from mjfleet.registry import FoundTask
from mjfleet.utils.hardware_names import count_gpus
from mjfleet.worker.worker_args import WorkerArgs

K = TypeVar("K")
S = TypeVar("S")


@dataclass(frozen=True)
class Setup:
    """A task on the selected devices."""

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
        """What kind of device it is: cpu or cuda."""
        return self.device.partition(":")[0]

    def config(self, num_envs: int, **agent: Any) -> TrainConfig:
        """The task's configuration with these worlds and numbers of the agent."""
        options = self.options
        values = {
            "gpu_ids": list(self.devices.indices) or None,
            "engine": options.engine,
            "cpu_threads": options.cpu_threads,
            "env": {"num_envs": num_envs},
            "agent": agent,
        }
        return from_dict(self.found.defaults(), values)

    def job(self, config: TrainConfig, run_dir: Path) -> WorkerArgs:
        """What a worker of its own, without a launcher, needs to know.

        Raises:
            UserError: engine, threads and devices do not fit each other.
        """
        cores = len(os.sched_getaffinity(0))
        hosts = [Host(devices=self.devices, cores=cores)]
        plan = make_plan(self.found, config, hosts, {}, datetime.now())
        return WorkerArgs(
            task=plan.task,
            task_folder=str(plan.task_folder),
            config=to_dict(config),
            devices=self.devices.names,
            engine=plan.engine,
            threads=plan.threads,
            run_dir=str(run_dir),
        )

    def rounds(
        self, keys: Sequence[K], measure: Callable[[K], S], name: Callable[[Any], str] = str
    ) -> list[tuple[K, S]]:
        """Measure everything in turn, `--repeats` times: noise then meets all alike."""
        taken = []
        for number in range(1, self.options.repeats + 1):
            for key in keys:
                progress(f"round {number} of {self.options.repeats}: {name(key)}")
                taken.append((key, measure(key)))
        return taken


def progress(text: str) -> None:
    """Say what is being measured now, apart from the results."""
    print(text, file=sys.stderr, flush=True)


def choose_devices(options: Options, *, several: bool = False) -> Devices:
    """The devices that the options name.

    Args:
        options: the flags.
        several: whether the benchmark uses more than one.

    Raises:
        UserError: one of them is not there, or there are several for a benchmark of one.
    """
    # The native engine needs no GPU: where none was asked for, there is none.
    if options.engine == "native" and options.gpu_ids == type(options).gpu_ids:
        return Devices((), ())
    count = 0 if options.gpu_ids is None else count_gpus()
    devices = select_devices(options.gpu_ids, os.environ, count)
    if len(devices.names) > 1 and not several:
        raise UserError("--gpu-ids names several GPUs; this benchmark uses one.")
    return devices
