"""Checks of `mjfleet doctor` for driver, torch, warp, GPUs, all-reduce and rendering.

Runs in a child process. Importing this file imports nothing heavy; the checks do.
"""

import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from mjfleet.tools.doctor.host_checks import MIB, MIN_FREE, Finding, size
from mjfleet.utils.hardware_names import nvml
from mjfleet.utils.mujoco_import import import_mujoco
from mjfleet.worker.rank_environment import Rank
from mjfleet.worker.worker_args import WorkerArgs

REDUCED_MIB = 16  # Size of the reduced tensor: float32 gradients of four million parameters.
SCENE = '<mujoco><worldbody><light pos="0 0 3"/><geom size="0.5"/></worldbody></mujoco>'


def check_driver(args: WorkerArgs, rank: Rank) -> Finding:
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


def check_torch(args: WorkerArgs, rank: Rank) -> Finding:
    """Check that torch can be imported and sees the selected GPUs."""
    import torch

    if args.devices[0] == "cpu":
        return Finding("ok", f"torch {torch.__version__} on the CPU")
    if not torch.cuda.is_available():
        torch.cuda.init()  # Its exception says why.
    count = torch.cuda.device_count()
    found = f"torch {torch.__version__} for CUDA {torch.version.cuda} sees {count} GPUs"
    return Finding("ok" if count > _last_index(args) else "FAIL", found)


def check_warp(args: WorkerArgs, rank: Rank) -> Finding:
    """Check that warp sees the selected GPUs and can write to its folder of compiled kernels."""
    import_mujoco()
    import mujoco_warp  # noqa: F401  It fails first if versions do not fit.
    import warp as wp

    wp.init()
    built = f"warp {wp.__version__}"
    if args.devices[0] != "cpu":
        cuda, count = wp.get_cuda_toolkit_version() or ["none"], wp.get_cuda_device_count()
        built += f" for CUDA {'.'.join(map(str, cuda))} sees {count} GPUs"
        if count <= _last_index(args):
            return Finding("FAIL", built)
    cache = str(wp.config.kernel_cache_dir)
    with tempfile.TemporaryFile(dir=cache) as file:
        file.write(b"kernel")
    used = 0
    for path in Path(cache).rglob("*"):
        with suppress(FileNotFoundError):  # A run that compiles kernels renames files.
            used += path.stat().st_size
    free = shutil.disk_usage(cache).free
    found = f"{built}; kernel cache {cache} holds {size(used)}, {size(free)} free"
    return Finding("ok" if free >= MIN_FREE else "FAIL", found)


def check_gpu(args: WorkerArgs, rank: Rank) -> Finding:
    """Check that torch and warp compute on a GPU; report its memory and who else uses it."""
    import torch
    import warp as wp

    device = args.devices[rank.local_rank]
    properties = torch.cuda.get_device_properties(device)
    others = _processes_on(f"GPU-{properties.uuid}")  # Before this process uses it.
    torch.cuda.set_device(device)
    free, total = torch.cuda.mem_get_info(device)
    found = f"{properties.name}, {size(free)} of {size(total)} memory free"
    if others and free < total / 2:
        found += f"; also used by {others}"
    if free < MIN_FREE:
        return Finding("FAIL", found)
    torch_sum = torch.ones(1000, device=device).sum().item()
    warp_sum = wp.full(1000, 1.0, dtype=wp.float32, device=device).numpy().sum()
    if not torch_sum == warp_sum == 1000:
        return Finding("FAIL", f"{found}; 1000 ones add up to {torch_sum} and {warp_sum}")
    return Finding("ok" if free >= total / 2 else "warn", found)


def _processes_on(uuid: str) -> str:
    """List the processes that compute on a GPU, by the host's process numbers."""
    with nvml() as driver:
        if driver is None:
            return ""
        try:
            handle = driver.nvmlDeviceGetHandleByUUID(uuid)
            processes = driver.nvmlDeviceGetComputeRunningProcesses(handle)
        except driver.NVMLError:
            return ""  # Not available for a part of a GPU (MIG), nor to every user.
    used = {p.pid: "?" if p.usedGpuMemory is None else size(p.usedGpuMemory) for p in processes}
    return ", ".join(f"process {pid} ({memory})" for pid, memory in used.items())


def check_all_reduce(args: WorkerArgs, rank: Rank) -> Finding:
    """Sum a tensor over all workers, as training does; each worker runs this at the same time."""
    import torch

    from mjfleet.worker.torch_process_group import process_group

    device = args.devices[rank.local_rank]
    if device != "cpu":
        torch.cuda.set_device(device)
    tensor = torch.empty(REDUCED_MIB * MIB // 4, device=device)
    expected = rank.world_size * (rank.world_size + 1) / 2
    seconds = []
    with process_group(args, rank, args.config["collective_timeout"]) as collectives:
        for _ in range(4):  # The first one connects the workers.
            tensor.fill_(rank.rank + 1)
            collectives.total([0])
            start = time.perf_counter()
            collectives.all_reduce(tensor)
            if device != "cpu":
                torch.cuda.synchronize(device)
            seconds.append(time.perf_counter() - start)
            if (tensor != expected).any():
                return Finding("FAIL", f"{args.backend} sums are wrong on {device}")
    best = min(seconds)
    speed = f"{REDUCED_MIB} MiB in {best * 1000:.1f} ms, {REDUCED_MIB * MIB / best / 1e9:.2f} GB/s"
    return Finding("ok", f"{rank.world_size} workers, {args.backend}: {speed}")


def check_rendering(args: WorkerArgs, rank: Rank) -> Finding:
    """Check that MuJoCo can draw with MUJOCO_GL and MUJOCO_EGL_DEVICE_ID as they are set."""
    import mujoco

    model = mujoco.MjModel.from_xml_string(SCENE)
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    renderer = mujoco.Renderer(model, 48, 64)
    renderer.update_scene(data)
    picture = renderer.render()

    # Importing mujoco has made PyOpenGL choose between EGL and OSMesa.
    from OpenGL.GL import GL_RENDERER, glGetString

    renderer_name: bytes = glGetString(GL_RENDERER) or b"?"
    device, backend = args.devices[rank.local_rank], os.environ["MUJOCO_GL"]
    found = f"{backend} draws by {renderer_name.decode(errors='replace')}"
    if not picture.any():
        return Finding("warn", f"{found}, but the picture is black")
    slow = device != "cpu" and b"llvmpipe" in renderer_name
    return Finding("warn" if slow else "ok", f"{found}, not by the GPU" if slow else found)


def _last_index(args: WorkerArgs) -> int:
    return max(int(device.removeprefix("cuda:")) for device in args.devices)
