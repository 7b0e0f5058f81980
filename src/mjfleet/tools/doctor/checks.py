"""The checks of `mjfleet doctor`, each a function, and the process that makes one.

`python -m mjfleet.tools.doctor.checks <check> <WorkerArgs as JSON> <local rank>` prints the finding
as JSON: a driver may crash or hang it. Importing this imports nothing heavy; the checks do.
"""

import importlib.util
import ipaddress
import json
import os
import shutil
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Literal, NamedTuple

import psutil

from mjfleet.utils.console import in_a_line
from mjfleet.utils.hardware_names import nvml, rendering_variables, usable_cores
from mjfleet.utils.mujoco_import import import_mujoco
from mjfleet.utils.packages import stack_versions
from mjfleet.utils.parent_death import die_with_parent
from mjfleet.worker.worker_args import WorkerArgs

MIB, GIB = 2**20, 2**30
MIN_FREE = GIB  # Bytes that a disk or a GPU must have free.
SLOW_DISK = 10 * MIB  # Bytes per second: below, workers wait noticeably for checkpoints.
WRITTEN = 64 * MIB  # Bytes that are written to measure a disk.
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


def check_versions(args: WorkerArgs, index: int) -> Finding:
    """Report the versions of Python and of the packages on which a run's result depends."""
    stack = ", ".join(f"{name} {version}" for name, version in stack_versions().items())
    return Finding("ok", f"Python {sys.version.split()[0]}, {stack}")


def check_machine(args: WorkerArgs, index: int) -> Finding:
    """Report processors and memory; warn if workers have to share a core."""
    memory, cores = psutil.virtual_memory(), usable_cores()
    found = f"{cores} of {os.cpu_count()} CPU cores may be used"
    found += f"; {_size(memory.available)} of {_size(memory.total)} memory free"
    if len(args.devices) > cores:
        return Finding("warn", f"{found}; {len(args.devices)} workers share them")
    return Finding("ok", found)


def check_torch(args: WorkerArgs, index: int) -> Finding:
    """Check that torch can be imported and sees the selected GPUs."""
    import torch

    if args.devices[0] == "cpu":
        return Finding("ok", f"torch {torch.__version__} on the CPU")
    if not torch.cuda.is_available():
        torch.cuda.init()  # Its exception says why.
    count = torch.cuda.device_count()
    found = f"torch {torch.__version__} for CUDA {torch.version.cuda} sees {count} GPUs"
    return Finding("ok" if count > _last_gpu(args) else "FAIL", found)


def check_bytecode(args: WorkerArgs, index: int) -> Finding:
    """Check that torch, which an earlier check has imported, is stored as compiled bytecode."""
    spec = importlib.util.find_spec("torch")
    if spec and spec.cached and Path(spec.cached).exists():
        return Finding("ok", "packages are compiled")
    return Finding("warn", "packages are not compiled: every process compiles them, for seconds")


def check_warp(args: WorkerArgs, index: int) -> Finding:
    """Check that warp sees the selected GPUs and can write to its folder of compiled kernels."""
    import_mujoco()
    import mujoco_warp  # noqa: F401  It fails first if versions do not fit.
    import warp as wp

    wp.init()
    found = f"warp {wp.__version__}"
    if args.devices[0] != "cpu":
        cuda, count = wp.get_cuda_toolkit_version() or ["none"], wp.get_cuda_device_count()
        found += f" for CUDA {'.'.join(map(str, cuda))} sees {count} GPUs"
        if count <= _last_gpu(args):
            return Finding("FAIL", found)
    cache = str(wp.config.kernel_cache_dir)
    with tempfile.TemporaryFile(dir=cache) as file:
        file.write(b"kernel")
    free = shutil.disk_usage(cache).free
    status = "ok" if free >= MIN_FREE else "FAIL"
    return Finding(status, f"{found}; kernel cache {cache}, {_size(free)} free")


def check_gpu(args: WorkerArgs, index: int) -> Finding:
    """Check that torch and warp compute on a GPU; report its memory and who else uses it."""
    import torch
    import warp as wp

    device = args.devices[index]
    properties = torch.cuda.get_device_properties(device)
    others = _processes_on(f"GPU-{properties.uuid}")  # Before this process uses it.
    torch.cuda.set_device(device)
    free, total = torch.cuda.mem_get_info(device)
    found = f"{properties.name}, {_size(free)} of {_size(total)} memory free"
    if others and free < total / 2:
        found += f"; also used by {others}"
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
    tensor = torch.empty(REDUCED_MIB * MIB // 4, device=device)
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
            if (tensor != rank.world_size * (rank.world_size + 1) / 2).any():
                return Finding("FAIL", f"{args.backend} sums are wrong on {device}")
    best = min(seconds)
    speed = f"{REDUCED_MIB} MiB in {best * 1000:.1f} ms, {REDUCED_MIB * MIB / best / 1e9:.2f} GB/s"
    return Finding("ok", f"{rank.world_size} workers, {args.backend}: {speed}")


def check_rendering(args: WorkerArgs, index: int) -> Finding:
    """Check that MuJoCo can draw with MUJOCO_GL as it is set, on the GPU if there is one."""
    device = args.devices[index]
    if device != "cpu":
        os.environ.setdefault("MUJOCO_EGL_DEVICE_ID", device.removeprefix("cuda:"))
        os.environ.update(rendering_variables(os.environ))
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
    """Check free space and speed where run directories will be; the folder is not created."""
    root = Path(args.config["log_root"]).absolute()
    folder = next(path for path in (root, *root.parents) if os.path.lexists(path))
    if not folder.is_dir():
        return Finding("FAIL", f"{root}: {folder} is not a folder")
    free = shutil.disk_usage(folder).free
    if free < MIN_FREE:
        return Finding("FAIL", f"{root}: {_size(free)} free")
    content = os.urandom(WRITTEN)
    with tempfile.TemporaryFile(dir=folder) as file:
        start = time.perf_counter()
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
        speed = WRITTEN / (time.perf_counter() - start)
    found = f"{root}: {_size(free)} free, writes {_size(speed)} per second"
    if speed < SLOW_DISK:
        return Finding("warn", f"{found}: checkpoints will take long")
    return Finding("ok", found)


def check_host_name(args: WorkerArgs, index: int) -> Finding:
    """Report the addresses of this host's name, which runs on several hosts need."""
    name = socket.gethostname()
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError as error:
        return Finding("warn", f"{name} does not resolve: {error.strerror}")
    addresses = list(dict.fromkeys(str(address[4][0]) for address in found))
    is_local = all(ipaddress.ip_address(a.partition("%")[0]).is_loopback for a in addresses)
    note = " (the loopback interface: enough for one host, not for several)" if is_local else ""
    return Finding("ok", f"{name} is {', '.join(addresses)}{note}")


def check_wandb(args: WorkerArgs, index: int) -> Finding:
    """Check that a W&B login is stored, without a prompt and without the network."""
    import wandb

    mode = os.environ.get("WANDB_MODE")
    if mode in ("offline", "disabled", "dryrun"):
        return Finding("ok", f"WANDB_MODE={mode}: nothing is uploaded")
    if wandb.login(prompt=False, verify=False):
        return Finding("ok", "a login is stored; the first run will show whether it is valid")
    return Finding("warn", "not logged in: runs would be recorded offline")


def _size(number: float) -> str:
    """Return a number of bytes in MiB or GiB, as text."""
    return f"{number / GIB:.1f} GiB" if number >= GIB else f"{number / MIB:.0f} MiB"


def _last_gpu(args: WorkerArgs) -> int:
    return max(int(device.removeprefix("cuda:")) for device in args.devices)


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
    used = {p.pid: "?" if p.usedGpuMemory is None else _size(p.usedGpuMemory) for p in processes}
    return ", ".join(f"process {pid} ({memory})" for pid, memory in used.items())


if __name__ == "__main__":
    main(*sys.argv[1:])
