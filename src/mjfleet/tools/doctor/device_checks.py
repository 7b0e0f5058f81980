"""What `mjfleet doctor` checks of the devices: driver, torch, warp, GPUs, all-reduce, rendering.

Runs in a child process; importing this imports nothing heavy.
"""

import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import pynvml

from mjfleet.tools.doctor.finding import LEAST_FREE, MIB, Finding, size
from mjfleet.worker.worker_args import Rank, WorkerArgs

REDUCED = 16
"""MiB that are reduced: float32 gradients of four million parameters."""
SCENE = """
<mujoco><worldbody><light pos="0 0 3"/><geom type="sphere" size="0.5"/></worldbody></mujoco>
"""


def check_driver(job: WorkerArgs, rank: Rank) -> Finding:
    """The NVIDIA driver, as its library NVML knows it."""
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


def check_torch(job: WorkerArgs, rank: Rank) -> Finding:
    """Whether torch can be imported and sees the selected GPUs."""
    import torch

    if job.devices[0] == "cpu":
        return Finding("ok", f"torch {torch.__version__} on the CPU")
    if not torch.cuda.is_available():
        torch.cuda.init()  # It says why.
    built = f"torch {torch.__version__} for CUDA {torch.version.cuda}"
    count = torch.cuda.device_count()
    found = f"{built} sees {count} GPUs"
    return Finding("ok" if count > _last_index(job) else "FAIL", found)


def check_warp(job: WorkerArgs, rank: Rank) -> Finding:
    """Whether warp sees the selected GPUs, and its folder of compiled kernels."""
    import mujoco_warp
    import warp as wp

    del mujoco_warp  # It is the first to break where versions do not fit.
    wp.init()
    built = f"warp {wp.__version__}"
    if job.devices[0] != "cpu":
        cuda = ".".join(map(str, wp.get_cuda_toolkit_version() or ["none"]))
        built += f" for CUDA {cuda} sees {wp.get_cuda_device_count()} GPUs"
        if wp.get_cuda_device_count() <= _last_index(job):
            return Finding("FAIL", built)
    cache = str(wp.config.kernel_cache_dir)
    with tempfile.TemporaryFile(dir=cache) as file:
        file.write(b"kernel")
    used = 0
    for path in Path(cache).rglob("*"):
        with suppress(FileNotFoundError):  # A run that compiles renames its files.
            used += path.stat().st_size
    free = shutil.disk_usage(cache).free
    found = f"{built}; kernel cache {cache} holds {size(used)}, {size(free)} free"
    return Finding("ok" if free >= LEAST_FREE else "FAIL", found)


def check_gpu(job: WorkerArgs, rank: Rank) -> Finding:
    """Whether torch and warp can compute on a GPU, its memory and who else uses it."""
    import torch
    import warp as wp

    device = job.devices[rank.local_rank]
    properties = torch.cuda.get_device_properties(device)
    others = _processes_on(f"GPU-{properties.uuid}")  # Not yet this one, whatever its number there.
    torch.cuda.set_device(device)
    free, total = torch.cuda.mem_get_info(device)
    found = f"{properties.name}, {size(free)} of {size(total)} memory free"
    if others and free < total / 2:
        found += f"; also used by {others}"
    if free < LEAST_FREE:
        return Finding("FAIL", found)
    torch_sum = torch.ones(1000, device=device).sum().item()
    warp_sum = wp.full(1000, 1.0, dtype=wp.float32, device=device).numpy().sum()
    if not torch_sum == warp_sum == 1000:
        return Finding("FAIL", f"{found}; 1000 ones add up to {torch_sum} and {warp_sum}")
    return Finding("ok" if free >= total / 2 else "warn", found)


def _processes_on(uuid: str) -> str:
    """Which processes compute on a GPU; the driver numbers them as the host does."""
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        processes = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except pynvml.NVMLError:
        return ""  # NVML does not tell it of part of a GPU (MIG), nor of all GPUs to everybody.
    used = {p.pid: "?" if p.usedGpuMemory is None else size(p.usedGpuMemory) for p in processes}
    return ", ".join(f"process {pid} ({memory})" for pid, memory in used.items())


def check_all_reduce(job: WorkerArgs, rank: Rank) -> Finding:
    """Sum over all workers as training does; every worker runs this at the same time."""
    import torch

    from mjfleet.worker.torch_process_group import process_group

    device = job.devices[rank.local_rank]
    if device != "cpu":
        torch.cuda.set_device(device)
    tensor = torch.empty(REDUCED * MIB // 4, device=device)
    expected = rank.world_size * (rank.world_size + 1) / 2
    seconds = []
    with process_group(job, rank, job.config["collective_timeout"]) as group:
        for _ in range(4):  # The first connects.
            tensor.fill_(rank.rank + 1)
            group.collectives.total([0])
            start = time.perf_counter()
            group.collectives.all_reduce(tensor)
            if device != "cpu":
                torch.cuda.synchronize(device)
            seconds.append(time.perf_counter() - start)
            if (tensor != expected).any():
                return Finding("FAIL", f"{job.backend} sums are wrong on {device}")
    best = min(seconds)
    return Finding(
        "ok",
        f"{rank.world_size} workers, {job.backend}: {REDUCED} MiB in {best * 1000:.1f} ms, "
        f"{REDUCED * MIB / best / 1e9:.2f} GB/s",
    )


def check_rendering(job: WorkerArgs, rank: Rank) -> Finding:
    """Whether MuJoCo can draw, by what MUJOCO_GL and MUJOCO_EGL_DEVICE_ID say."""
    import mujoco

    model = mujoco.MjModel.from_xml_string(SCENE)
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    renderer = mujoco.Renderer(model, 48, 64)
    renderer.update_scene(data)
    picture = renderer.render()

    # MuJoCo has it chosen between EGL and OSMesa when it was imported.
    from OpenGL.GL import GL_RENDERER, glGetString

    by: bytes = glGetString(GL_RENDERER) or b"?"
    device, what = job.devices[rank.local_rank], os.environ["MUJOCO_GL"]
    found = f"{what} draws by {by.decode(errors='replace')}"
    if not picture.any():
        return Finding("warn", f"{found}, but all is black")
    slow = device != "cpu" and b"llvmpipe" in by
    return Finding("warn" if slow else "ok", f"{found}, not by the GPU" if slow else found)


def _last_index(job: WorkerArgs) -> int:
    return max(int(device.removeprefix("cuda:")) for device in job.devices)
