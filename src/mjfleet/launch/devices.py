"""Chooses the GPUs or CPU workers that a run uses on a host. Runs in the launcher, without CUDA."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from mjfleet.config import LaunchConfig
from mjfleet.config.launch_config import GpuRequest
from mjfleet.errors import UserError

VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Devices:
    """The devices of this host that a run uses, one for each worker; no index means the CPU."""

    indices: tuple[int, ...]
    """CUDA device indices, as torch and warp count them: into CUDA_VISIBLE_DEVICES if set."""
    physical: tuple[str, ...]
    """The same devices as the driver names them: a number, a GPU UUID or a MIG UUID."""
    note: str = ""
    """Why the CPU was chosen, where the user may have expected a GPU."""
    cpu_workers: int = 1
    """The number of workers, where there is no index."""

    @property
    def names(self) -> tuple[str, ...]:
        """torch's name of each worker's device."""
        return tuple(f"cuda:{index}" for index in self.indices) or ("cpu",) * self.cpu_workers


def select_devices(
    request: GpuRequest,
    environ: Mapping[str, str],
    num_gpus: int,
    *,
    cpu_workers: int | None = None,
    started: int | None = None,
    shared: bool = False,
) -> Devices:
    """Choose devices. A pure function.

    Args:
        request: the value of --gpu-ids.
        environ: environment variables, of which only CUDA_VISIBLE_DEVICES matters.
        num_gpus: GPUs that this host has, visible or not.
        cpu_workers: the value of --cpu-workers.
        started: how many workers something else, such as torchrun, has started on this host.
        shared: whether several workers may have the same GPU.

    Raises:
        UserError: a GPU was asked for that is not visible, or one twice, or
            CUDA_VISIBLE_DEVICES cannot be understood, or the number of devices is not that of the
            workers that were started.

    Examples:
        >>> select_devices([1], {"CUDA_VISIBLE_DEVICES": "2,3"}, 4).physical
        ('3',)
        >>> select_devices("all", {}, 2).names
        ('cuda:0', 'cuda:1')
        >>> select_devices(None, {}, 2).names
        ('cpu',)
        >>> select_devices("auto", {}, 0).note
        'no GPU was found'
        >>> select_devices("auto", {}, 4, started=2).indices
        (0, 1)
    """
    if cpu_workers is not None:
        if request not in (None, "auto"):
            raise UserError(
                f"--cpu-workers {cpu_workers} runs on the CPU, --gpu-ids {_shown(request)} does "
                "not: choose one of them."
            )
        _check_started(f"--cpu-workers {cpu_workers}", cpu_workers, started)
        return Devices((), (), cpu_workers=cpu_workers)
    if request is None:
        return Devices((), (), cpu_workers=started or 1)
    visible = visible_gpus(environ, num_gpus)
    if not visible:
        hidden = f"{VISIBLE}={environ.get(VISIBLE, '')!r} hides all GPUs"
        why = hidden if num_gpus and VISIBLE in environ else "no GPU was found"
        if isinstance(request, list):
            raise UserError(
                f"--gpu-ids {_shown(request)}: {why}; use --gpu-ids None to train on the CPU."
            )
        return Devices((), (), why, cpu_workers=started or 1)
    # A scheduler may show each worker one GPU, its own.
    own = VISIBLE in environ and len(visible) == 1
    indices = _indices(request, len(visible), started, own or shared)
    for index in indices:
        if not 0 <= index < len(visible):
            raise UserError(
                f"--gpu-ids {_shown(request)}: there is no GPU {index}. "
                + _describe(visible, environ)
            )
    if isinstance(request, list) and not shared:
        twice = [index for index in indices if indices.count(index) > 1]
        if twice:
            raise UserError(
                f"--gpu-ids {_shown(request)}: GPU {twice[0]} is listed twice; workers can share "
                "a GPU only with --backend gloo."
            )
    _check_started(f"--gpu-ids {_shown(request)}", len(indices), started)
    return Devices(indices, tuple(visible[index] for index in indices))


def choose_devices(
    config: LaunchConfig, environ: Mapping[str, str], num_gpus: int, started: int | None = None
) -> Devices:
    """Return the devices that a configuration asks for; see `select_devices`."""
    # The native engine needs no GPU: leave one alone unless it was asked for.
    if config.engine == "native" and config.gpu_ids == "auto" and config.cpu_workers is None:
        return Devices((), (), "--engine native", cpu_workers=started or 1)
    return select_devices(
        config.gpu_ids,
        environ,
        num_gpus,
        cpu_workers=config.cpu_workers,
        started=started,
        shared=config.backend == "gloo",
    )


def needs_gpus(config: LaunchConfig) -> bool:
    """Return whether the number of GPUs matters."""
    native = config.engine == "native" and config.gpu_ids == "auto"
    return not (config.gpu_ids is None or config.cpu_workers or native)


def _indices(request: GpuRequest, visible: int, started: int | None, own: bool) -> tuple[int, ...]:
    """Return the GPU of each worker, not yet checked against those that are visible."""
    if isinstance(request, list):
        return tuple(request)
    if request == "all":
        return tuple(range(visible))
    if started is None:
        return (0,)
    return (0,) * started if visible == 1 and own else tuple(range(started))


def _check_started(what: str, devices: int, started: int | None) -> None:
    """Refuse a number of started workers that differs from the number of devices."""
    if started is not None and devices != started:
        raise UserError(
            f"{what} is for {_count(devices, 'worker')} on this host, but {started} were started "
            "(LOCAL_WORLD_SIZE): give both the same number."
        )


def visible_gpus(environ: Mapping[str, str], num_gpus: int) -> list[str]:
    """Return what CUDA_VISIBLE_DEVICES leaves visible, in its order; without it, every GPU.

    The entries are numbers, GPU UUIDs or MIG UUIDs, see "CUDA Environment Variables" in NVIDIA's
    CUDA C++ Programming Guide. CUDA itself stops in silence at the first entry that it does not
    understand; here that is an error. `-1` and `NoDevFiles`, which some schedulers set, mean none.
    """
    value = environ.get(VISIBLE)
    if value is None:
        return [str(index) for index in range(num_gpus)]
    if value.strip() in ("", "-1", "NoDevFiles"):
        return []
    entries = [entry.strip() for entry in value.split(",")]
    shown = f"{VISIBLE}={value}"
    for entry in entries:
        if not re.fullmatch(r"[0-9]+|(GPU|MIG)-[0-9A-Za-z-]+(/[0-9]+/[0-9]+)?", entry):
            raise UserError(
                f"{shown}: cannot read the entry {entry!r}; entries are GPU numbers, GPU UUIDs "
                "(GPU-...) or MIG UUIDs (MIG-...), separated by commas."
            )
    if num_gpus == 0:
        return []
    for entry in entries:
        if entry.isdecimal() and int(entry) >= num_gpus:
            raise UserError(
                f"{shown}: there is no GPU {entry}; this machine has {_count(num_gpus)}, "
                "numbered from 0."
            )
    if len({entry.isdecimal() for entry in entries}) > 1:
        raise UserError(f"{shown}: use either numbers or UUIDs, not both.")
    if len(set(entries)) < len(entries):
        raise UserError(f"{shown}: the same GPU is listed twice.")
    return entries


def _shown(request: GpuRequest) -> str:
    return " ".join(map(str, request)) if isinstance(request, list) else str(request)


def _count(number: int, what: str = "GPU") -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")


def _describe(visible: list[str], environ: Mapping[str, str]) -> str:
    """Return in words which GPUs may be asked for."""
    indices = ", ".join(str(index) for index in range(len(visible)))
    listed = f" ({VISIBLE}={environ[VISIBLE]})" if VISIBLE in environ else ""
    return f"Visible: {_count(len(visible))}{listed}, index {indices}."
