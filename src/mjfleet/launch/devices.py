"""Chooses the GPUs or CPU workers that a run uses on a host. Runs in the launcher, without CUDA."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from mjfleet.config import LaunchConfig
from mjfleet.errors import UserError
from mjfleet.launch.host_names import LOCALHOST
from mjfleet.utils.hardware_names import count_gpus, usable_cores

VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Devices:
    """The devices of a host that a run uses, one for each worker; no index means the CPU."""

    indices: tuple[int, ...] = ()  # As torch and warp count: into CUDA_VISIBLE_DEVICES if set.
    physical: tuple[str, ...] = ()  # As the driver says: a number, a GPU UUID or a MIG UUID.
    note: str = ""  # Why the CPU was chosen, where the user may have expected a GPU.
    cpu_workers: int = 1
    host: str = LOCALHOST
    cores: int = field(default_factory=usable_cores)  # CPU cores that a process there may use.
    threads: int = 1  # CPU threads of each worker; a launch plan decides.

    @property
    def names(self) -> tuple[str, ...]:
        """torch's name of each worker's device."""
        return tuple(f"cuda:{index}" for index in self.indices) or ("cpu",) * self.cpu_workers


def choose_devices(
    config: LaunchConfig,
    environ: Mapping[str, str],
    num_gpus: int | None = None,
    started: int | None = None,
) -> Devices:
    """Choose a host's devices by the flags and by CUDA_VISIBLE_DEVICES.

    The host has `num_gpus`, visible or not; None: as many as this one. Something else, such as
    torchrun, may have `started` workers on it.

    Raises:
        UserError: a GPU was asked for that is not visible, or one twice, CUDA_VISIBLE_DEVICES
            cannot be understood, or the number of devices is not that of the started workers.

    Examples:
        >>> choose_devices(LaunchConfig(gpu_ids=[1]), {"CUDA_VISIBLE_DEVICES": "2,3"}, 4).physical
        ('3',)
    """
    request, workers = config.gpu_ids, config.cpu_workers
    flag = f"--gpu-ids {' '.join(map(str, request)) if isinstance(request, list) else request}"
    if workers is not None:
        if request not in (None, "auto"):
            raise UserError(
                f"--cpu-workers {workers} runs on the CPU, {flag} does not: choose one of them."
            )
        _check_started(f"--cpu-workers {workers}", workers, started)
        return Devices(cpu_workers=workers)
    on_cpu = Devices(cpu_workers=started or 1)
    if not needs_gpus(config):
        return replace(on_cpu, note="--engine native" if request else "")
    num_gpus = count_gpus() if num_gpus is None else num_gpus
    visible = visible_gpus(environ, num_gpus)
    if not visible:
        hidden = f"{VISIBLE}={environ.get(VISIBLE, '')!r} hides all GPUs"
        why = hidden if num_gpus and VISIBLE in environ else "no GPU was found"
        if isinstance(request, list):
            raise UserError(f"{flag}: {why}; use --gpu-ids None to train on the CPU.")
        return replace(on_cpu, note=why)
    can_share = config.backend == "gloo"
    indices = tuple(range(len(visible) if request == "all" else started or 1))
    if isinstance(request, list):
        indices = tuple(request)
    elif len(visible) == 1 and (can_share or VISIBLE in environ) and request == "auto":
        indices = (0,) * len(indices)  # A scheduler may show each worker one GPU, its own.
    for index in indices:
        if not 0 <= index < len(visible):
            listed = f" ({VISIBLE}={environ[VISIBLE]})" if VISIBLE in environ else ""
            raise UserError(
                f"{flag}: there is no GPU {index}. Visible{listed}: "
                f"{', '.join(map(str, range(len(visible))))}."
            )
        if isinstance(request, list) and not can_share and indices.count(index) > 1:
            raise UserError(
                f"{flag}: GPU {index} is listed twice; workers can share a GPU only with "
                "--backend gloo."
            )
    _check_started(flag, len(indices), started)
    return Devices(indices, tuple(visible[index] for index in indices))


def needs_gpus(config: LaunchConfig) -> bool:
    """Return whether the number of GPUs matters: unless asked, the native engine uses none."""
    native = config.engine == "native" and config.gpu_ids == "auto"
    return not (config.gpu_ids is None or config.cpu_workers or native)


def uses_gpus(config: LaunchConfig, environ: Mapping[str, str]) -> bool:
    """Return whether a run on this host uses GPUs, as far as is known before they are chosen."""
    return needs_gpus(config) and bool(visible_gpus(environ, count_gpus()))


def choose_backend(config: LaunchConfig, devices: Devices) -> Literal["nccl", "gloo"]:
    """Return the backend by which several workers on these devices communicate.

    Raises:
        UserError: NCCL was asked for on the CPU.
    """
    if config.backend == "nccl" and not devices.indices:
        raise UserError("--backend nccl connects GPUs only: on the CPU use gloo, or auto.")
    if config.backend == "auto":
        return "nccl" if devices.indices else "gloo"
    return config.backend


def visible_gpus(environ: Mapping[str, str], num_gpus: int) -> list[str]:
    """Return what CUDA_VISIBLE_DEVICES leaves visible, in its order; without it, every GPU.

    The entries are numbers, GPU UUIDs or MIG UUIDs, see "CUDA Environment Variables" in NVIDIA's
    CUDA C++ Programming Guide. `-1` and `NoDevFiles`, which some schedulers set, mean none.

    Raises:
        UserError: an entry cannot be read, names a GPU that is not there, or one that another
            entry names, or a part of a GPU (MIG) is not the only entry.
    """
    value = environ.get(VISIBLE)
    if value is None:
        return [str(index) for index in range(num_gpus)]
    if value.strip() in ("", "-1", "NoDevFiles"):
        return []
    entries = [re.sub(r"^0+(?=[0-9])", "", entry.strip()) for entry in value.split(",")]
    for entry in entries:
        if not re.fullmatch(r"[0-9]+|(GPU|MIG)-[0-9A-Za-z-]+(/[0-9]+/[0-9]+)?", entry):
            raise UserError(
                f"{VISIBLE}={value}: cannot read the entry {entry!r}; entries are GPU numbers, GPU "
                "UUIDs (GPU-...) or MIG UUIDs (MIG-...), separated by commas."
            )
        if entry.isdecimal() and int(entry) >= num_gpus > 0:
            raise UserError(
                f"{VISIBLE}={value}: there is no GPU {entry}; numbers of GPUs here are below "
                f"{num_gpus}. Name a part of a GPU (MIG) by its UUID, see `nvidia-smi -L`."
            )
    if len(set(entries)) < len(entries):
        raise UserError(f"{VISIBLE}={value}: the same GPU is listed twice.")
    if len(entries) > 1 and any(entry.startswith("MIG-") for entry in entries):
        raise UserError(
            f"{VISIBLE}={value}: CUDA uses only one part of a GPU (MIG) in a process: list one "
            "UUID alone."
        )
    return entries if num_gpus else []


def _check_started(what: str, devices: int, started: int | None) -> None:
    """Refuse a number of started workers that differs from the number of devices."""
    if started is not None and devices != started:
        raise UserError(
            f"{what} is for {devices} worker{'s' * (devices > 1)} on this host, but {started} "
            f"{'was' if started == 1 else 'were'} started (LOCAL_WORLD_SIZE): the two numbers must "
            "be equal."
        )
