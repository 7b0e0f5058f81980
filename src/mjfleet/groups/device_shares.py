"""Divides this machine's devices among the runs of a group. Pure functions; run in the launcher."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from mjfleet.config import LaunchConfig
from mjfleet.errors import UserError
from mjfleet.launch.devices import choose_devices, needs_gpus
from mjfleet.utils.hardware_names import usable_cores


@dataclass(frozen=True)
class Share:
    """The devices of one run."""

    gpus: tuple[int, ...]  # As `--gpu-ids` counts; none means the CPU.
    threads: int | None  # For all workers of the run; None: not limited.
    workers: int

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags of `train` that choose these devices."""
        gpus = map(str, self.gpus) if self.gpus else ("None",)
        threads = () if self.threads is None else ("--cpu-threads", str(self.threads))
        return ("--gpu-ids", *gpus, *threads)

    @property
    def size(self) -> str:
        """Number and kind of these devices, which is the same for all shares."""
        number, what = (len(self.gpus), "GPU") if self.gpus else (self.threads or "all", "core")
        return f"{number} {what}" + ("" if number == 1 else "s")

    def __str__(self) -> str:
        return f"GPU {', '.join(map(str, self.gpus))}" if self.gpus else self.size


def divide_devices(
    config: LaunchConfig,
    environ: Mapping[str, str],
    runs: int,
    per_run: int | None = None,
    num_gpus: int | None = None,
    cores: int | None = None,
) -> list[Share]:
    """Divide the devices that the flags choose, all visible GPUs by default, among `runs` runs.

    `--cpu-threads` limits the cores of all runs together. `per_run` is the GPUs of each run, or its
    cores without GPUs; None: one GPU, or an even part of the cores, at least one for each worker.
    `num_gpus` and `cores` are this machine's; None: as it is.

    Raises:
        UserError: `per_run` is more than this machine has, or a device is not there.
    """
    if needs_gpus(config) and config.gpu_ids == "auto":
        config = replace(config, gpu_ids="all")
    cores = cores or usable_cores()
    cores = min(cores, config.cpu_threads or cores)
    devices = choose_devices(config, environ, num_gpus)
    gpus, workers = devices.indices, devices.cpu_workers
    have, least = (len(gpus), 1) if gpus else (cores, workers)
    if per_run is not None and not least <= per_run <= have:
        raise UserError(
            f"--per-run is {per_run}; it must be at least {least} and at most {have}, the "
            f"{'GPUs' if gpus else 'cores'} that the runs share."
        )
    size = per_run or (1 if gpus else max(workers, cores // runs))
    count = max(1, min(runs, have // size))
    threads, workers = (cores // count, size) if gpus else (size, workers)
    limit = threads if workers <= threads <= cores else None
    return [Share(gpus[i * size : (i + 1) * size], limit, workers) for i in range(count)]
