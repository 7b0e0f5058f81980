"""The checks of `mjfleet doctor`, each a function, and the process that makes one.

`python -m mjfleet.tools.doctor.checks <check> <WorkerArgs as JSON> <local rank>` prints the finding
as JSON: a driver may crash or hang it. Importing this imports nothing heavy; the checks do.
"""

import json
import os
import shutil
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, NamedTuple

from mjfleet.utils.console import in_a_line
from mjfleet.utils.mujoco_import import import_mujoco
from mjfleet.utils.parent_death import die_with_parent
from mjfleet.utils.user_folders import is_writable
from mjfleet.worker.worker_args import WorkerArgs

COMPILED = ("torch", "tensordict", "rsl_rl", "warp", "mujoco_warp", "torchrunx")
"""Packages that take long to compile; if one of them has bytecode, all of its modules have."""
MIN_FREE = 2**30  # Bytes that a disk or a GPU must have free.
SHARED_MEMORY = "/dev/shm"
MIN_SHARED_MEMORY = 2**30  # Bytes that NCCL's troubleshooting guide asks of a container.
REDUCED_MIB = 16  # Size of the reduced tensor: float32 gradients of four million parameters.
SCENE = '<mujoco><worldbody><light pos="0 0 3"/><geom size="0.5"/></worldbody></mujoco>'


class Finding(NamedTuple):
    """The result of a check."""

    status: Literal["ok", "warn", "FAIL"]
    found: str
    todo: str = ""  # What the user can do, as the parent adds.


def main(check: str, request: str, index: str) -> None:
    """Make a check, print its finding and exit: with 1 if that is FAIL."""
    die_with_parent()
    output = os.dup(1)
    os.dup2(2, 1)  # Keeps what libraries print out of the JSON.
    try:
        finding = globals()[check](WorkerArgs(**json.loads(request)), int(index))
    except Exception as error:
        finding = Finding("FAIL", f"{type(error).__name__}: {in_a_line(error)[:300]}")
    os.write(output, json.dumps(finding).encode())
    # Without cleanup: NCCL would wait for ranks that are gone, and a driver may hang.
    os._exit(finding.status == "FAIL")


def check_driver(args: WorkerArgs, index: int) -> Finding:
    """Report the NVIDIA driver's version and number of GPUs, from its library NVML."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        if error.value == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND:  # pyright: ignore[reportAttributeAccessIssue]
            return Finding("ok", "no NVIDIA GPU: training runs on the CPU")
        return Finding("warn", f"the driver's library NVML says: {error}")
    cuda = pynvml.nvmlSystemGetCudaDriverVersion()
    driver, gpus = pynvml.nvmlSystemGetDriverVersion(), pynvml.nvmlDeviceGetCount()
    version = f"{cuda // 1000}.{cuda % 1000 // 10}"
    return Finding("ok", f"NVIDIA {driver}, for CUDA up to {version}; GPUs: {gpus}")


def check_bytecode(args: WorkerArgs, index: int) -> Finding:
    """Check that large packages have bytecode, or that Python writes it when it imports them."""
    specs = {name: find_spec(name) for name in COMPILED}
    cached = {name: Path(spec.cached) for name, spec in specs.items() if spec and spec.cached}
    missing = {name: file for name, file in cached.items() if not file.exists()}
    if not missing:
        return Finding("ok", f"{', '.join(cached)} have it")
    names = ", ".join(missing)
    if sys.dont_write_bytecode:
        why = "PYTHONDONTWRITEBYTECODE is set"
    elif not all(map(is_writable, missing.values())):
        why = f"{next(iter(missing.values())).parent} cannot be written"
    else:
        return Finding("ok", f"Python writes it when it imports {names}")
    slow = "each start compiles them, and takes about three times as long"
    return Finding("warn", f"{names} have none, and {why}: {slow}")


def check_torch(args: WorkerArgs, index: int) -> Finding:
    """Check that torch can be imported, and that CUDA starts if GPUs are selected."""
    import torch

    if args.devices[0] == "cpu":
        return Finding("ok", f"torch {torch.__version__} on the CPU")
    torch.cuda.init()
    return Finding("ok", f"torch {torch.__version__} for CUDA {torch.version.cuda}")


def check_warp(args: WorkerArgs, index: int) -> Finding:
    """Check that warp can be imported, and write to its folder of compiled kernels."""
    import_mujoco()
    import mujoco_warp  # noqa: F401  It fails first if versions do not fit.
    import warp as wp

    wp.init()
    return _space(f"warp {wp.__version__}; kernel cache", Path(wp.config.kernel_cache_dir or ""))


def check_gpu(args: WorkerArgs, index: int) -> Finding:
    """Check that torch and warp compute on a GPU; report its memory."""
    import torch
    import warp as wp

    device = args.devices[index]
    torch.cuda.set_device(device)
    free, total = torch.cuda.mem_get_info(device)
    found = f"{torch.cuda.get_device_name(device)}, {_gib(free)} of {_gib(total)} memory free"
    if free < MIN_FREE:
        return Finding("FAIL", found)
    torch_sum = torch.ones(1000, device=device).sum().item()
    warp_sum = wp.full(1000, 1.0, dtype=wp.float32, device=device).numpy().sum()
    if not torch_sum == warp_sum == 1000:
        return Finding("FAIL", f"{found}; 1000 ones add up to {torch_sum} and {warp_sum}")
    return Finding("ok" if free >= total / 2 else "warn", found)


def check_all_reduce(args: WorkerArgs, index: int) -> Finding:
    """Sum a tensor over all workers, as training does; each worker runs this at the same time."""
    os.environ.setdefault("NCCL_DEBUG", "WARN")
    import torch

    from mjfleet.worker.torch_process_group import process_group

    device, rank = args.devices[index], args.rank_of(index)
    if device != "cpu":
        torch.cuda.set_device(device)
    tensor = torch.empty(REDUCED_MIB * 2**18, device=device)
    milliseconds = 0.0
    with process_group(args, rank, args.config["collective_timeout"]) as collectives:
        for _ in range(2):  # The first one connects the workers.
            tensor.fill_(rank.rank + 1)
            collectives.total([0])
            start = time.perf_counter()
            collectives.all_reduce(tensor)
            if device != "cpu":
                torch.cuda.synchronize(device)
            milliseconds = 1000 * (time.perf_counter() - start)
        if (tensor != rank.world_size * (rank.world_size + 1) / 2).any():
            return Finding("FAIL", f"{args.backend} sums are wrong on {device}")
    speed = f"{REDUCED_MIB} MiB in {milliseconds:.1f} ms"
    return Finding("ok", f"{rank.world_size} workers, {args.backend}: {speed}")


def check_shared_memory(args: WorkerArgs, index: int) -> Finding:
    """Check that NCCL has the shared memory by which GPUs of one host exchange gradients."""
    size = shutil.disk_usage(SHARED_MEMORY).total
    found = f"{SHARED_MEMORY} has {_gib(size)}"
    if size >= MIN_SHARED_MEMORY or os.environ.get("NCCL_SHM_DISABLE") == "1":
        return Finding("ok", found)
    return Finding("warn", f"{found}, and NCCL may need {_gib(MIN_SHARED_MEMORY)}")


def check_rendering(args: WorkerArgs, index: int) -> Finding:
    """Check that MuJoCo can draw with MUJOCO_GL as it is set, on the GPU if there is one."""
    device = args.devices[index]
    if device != "cpu":
        os.environ.setdefault("MUJOCO_EGL_DEVICE_ID", device.removeprefix("cuda:"))
    import mujoco

    model = mujoco.MjModel.from_xml_string(SCENE)
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    renderer = mujoco.Renderer(model, 48, 64)
    renderer.update_scene(data)
    picture = renderer.render()

    # Importing mujoco has made PyOpenGL choose between EGL and OSMesa.
    from OpenGL.GL import GL_RENDERER, glGetString

    name: bytes = glGetString(GL_RENDERER) or b"?"
    found = f"{os.environ['MUJOCO_GL']} draws by {name.decode(errors='replace')}"
    if not picture.any():
        return Finding("warn", f"{found}, but the picture is black")
    if device != "cpu" and b"llvmpipe" in name:
        return Finding("warn", f"{found}, not by the GPU")
    return Finding("ok", found)


def check_log_root(args: WorkerArgs, index: int) -> Finding:
    """Check that run directories can be written; the folder is not created."""
    root = Path(args.config["log_root"]).absolute()
    folder = next(path for path in (root, *root.parents) if os.path.lexists(path))
    return _space(f"{root} on", folder)


def _space(what: str, folder: Path) -> Finding:
    """Check that a folder can be written and has space."""
    tempfile.TemporaryFile(dir=folder).close()
    free = shutil.disk_usage(folder).free
    return Finding("ok" if free >= MIN_FREE else "FAIL", f"{what} {folder}, {_gib(free)} free")


def _gib(number: float) -> str:
    return f"{number / 2**30:.1f} GiB"


if __name__ == "__main__":
    main(*sys.argv[1:])
