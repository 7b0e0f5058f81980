"""Which devices a run uses. Runs in the launching process, which never initialises CUDA."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import pynvml

from mjfleet.errors import UserError

VISIBLE = "CUDA_VISIBLE_DEVICES"
GpuRequest = list[int] | Literal["auto", "all"] | None


@dataclass(frozen=True)
class Devices:
    """The devices of this host that a run uses; no index means the CPU."""

    indices: tuple[int, ...]
    """CUDA device indices, as torch and warp count them: into CUDA_VISIBLE_DEVICES if set."""
    physical: tuple[str, ...]
    """The same devices as the driver names them: a number, a GPU UUID or a MIG UUID."""
    note: str = ""
    """Why the CPU was chosen, where the user may have expected a GPU."""


def count_gpus() -> int:
    """The number of NVIDIA GPUs of this host, from the driver's library NVML; 0 without it."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return 0
    try:
        return pynvml.nvmlDeviceGetCount()
    finally:
        pynvml.nvmlShutdown()


def select_devices(request: GpuRequest, environ: Mapping[str, str], num_gpus: int) -> Devices:
    """Choose devices; a pure function.

    Args:
        request: the value of --gpu-ids.
        environ: environment variables, of which only CUDA_VISIBLE_DEVICES matters.
        num_gpus: GPUs that this host has, visible or not.

    Raises:
        UserError: a GPU was asked for that is not visible, or one twice, or
            CUDA_VISIBLE_DEVICES cannot be understood.

    Examples:
        >>> select_devices([1], {"CUDA_VISIBLE_DEVICES": "2,3"}, 4)
        Devices(indices=(1,), physical=('3',), note='')
        >>> select_devices("all", {}, 2)
        Devices(indices=(0, 1), physical=('0', '1'), note='')
        >>> select_devices(None, {}, 2)
        Devices(indices=(), physical=(), note='')
        >>> select_devices("auto", {}, 0).note
        'no GPU was found'
    """
    if request is None:
        return Devices((), ())
    visible = visible_gpus(environ, num_gpus)
    if not visible:
        hidden = f"{VISIBLE}={environ.get(VISIBLE, '')!r} hides all GPUs"
        why = hidden if num_gpus and VISIBLE in environ else "no GPU was found"
        if isinstance(request, list):
            raise UserError(
                f"--gpu-ids {_join(request)}: {why}; use --gpu-ids None to train on the CPU."
            )
        return Devices((), (), why)
    if request == "auto":
        request = [0]
    elif request == "all":
        request = list(range(len(visible)))
    for index in request:
        if not 0 <= index < len(visible):
            raise UserError(
                f"--gpu-ids {_join(request)}: there is no GPU {index}. "
                + _describe(visible, environ)
            )
        if request.count(index) > 1:
            raise UserError(f"--gpu-ids {_join(request)}: GPU {index} is listed twice.")
    return Devices(tuple(request), tuple(visible[index] for index in request))


def visible_gpus(environ: Mapping[str, str], num_gpus: int) -> list[str]:
    """What CUDA_VISIBLE_DEVICES leaves visible, in its order; every GPU where it is not set.

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


def _join(request: list[int]) -> str:
    return " ".join(str(index) for index in request)


def _count(number: int) -> str:
    return f"{number} GPU" + ("" if number == 1 else "s")


def _describe(visible: list[str], environ: Mapping[str, str]) -> str:
    """Which GPUs may be asked for, in words."""
    indices = ", ".join(str(index) for index in range(len(visible)))
    listed = f" ({VISIBLE}={environ[VISIBLE]})" if VISIBLE in environ else ""
    return f"Visible: {_count(len(visible))}{listed}, index {indices}."
