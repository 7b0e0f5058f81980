"""What `mjfleet doctor` looks at, each in a child process of its own, which may crash or hang.

    python -m mjfleet.tools.doctor.host_checks <name> <request as JSON>

Importing this imports nothing heavy; the checks do.
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
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from mjfleet.tools.doctor import device_checks as devices
from mjfleet.tools.doctor.finding import LEAST_FREE, MIB, Finding, size
from mjfleet.utils.packages import stack_versions
from mjfleet.utils.parent_death import die_with_parent
from mjfleet.worker.worker_args import Rank, WorkerArgs

LOOPBACK = "127.0.0.1"
SLOW_DISK = 10 * MIB
"""Bytes a second below which checkpoints keep the workers waiting."""
WRITTEN = 64
"""MiB that are written to measure a disk."""


@dataclass(frozen=True)
class Check:
    """A check, and what to do where it fails without knowing better."""

    look: Callable[[WorkerArgs, Rank], Finding]
    todo: str


def main(arguments: list[str]) -> None:
    """Make one check: print the finding as JSON and end with code 1 where it is FAIL.

    Args:
        arguments: the check's name, and `job` and `rank` as JSON.
    """
    die_with_parent()
    # The finding alone goes to standard output: what libraries print goes where errors do.
    output = os.dup(1)
    os.dup2(2, 1)
    check = CHECKS[arguments[0]]
    request: dict[str, Any] = json.loads(arguments[1])
    try:
        finding = check.look(WorkerArgs(**request["job"]), Rank(**request["rank"]))
    except Exception as error:
        traceback.print_exc()
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        finding = Finding("FAIL", ": ".join([type(error).__name__, *lines[:1]]))
    if not finding.todo and finding.status != "ok":
        finding = replace(finding, todo=check.todo)
    os.write(output, json.dumps(asdict(finding)).encode())
    sys.stderr.flush()
    # Without taking anything down: NCCL would wait for ranks that are gone, and a driver may hang.
    os._exit(1 if finding.status == "FAIL" else 0)


def _versions(job: WorkerArgs, rank: Rank) -> Finding:
    """Python, and the packages that decide a run's result."""
    stack = ", ".join(f"{name} {version}" for name, version in stack_versions().items())
    return Finding("ok", f"Python {sys.version.split()[0]}, {stack}")


def _machine(job: WorkerArgs, rank: Rank) -> Finding:
    """CPU cores and memory, see proc_meminfo(5)."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    kib = {name: int(rest.split()[0]) for name, rest in (line.split(":") for line in lines)}
    cores = len(os.sched_getaffinity(0))
    found = (
        f"{cores} of {os.cpu_count()} CPU cores may be used; "
        f"{size(kib['MemAvailable'] * 1024)} of {size(kib['MemTotal'] * 1024)} memory free"
    )
    if len(job.devices) > cores:
        return Finding("warn", f"{found}; {len(job.devices)} workers share them")
    return Finding("ok", found)


def _bytecode(job: WorkerArgs, rank: Rank) -> Finding:
    """Whether Python could keep what it has compiled; the check of torch has imported it."""
    spec = importlib.util.find_spec("torch")
    if spec and spec.cached and Path(spec.cached).exists():
        return Finding("ok", "packages are compiled")
    return Finding("warn", "packages are not compiled: every process does it anew, for seconds")


def _log_root(job: WorkerArgs, rank: Rank) -> Finding:
    """Where run directories will be made: free space and speed. The folder itself is not made."""
    root = Path(job.config["log_root"]).absolute()
    folder = next(path for path in (root, *root.parents) if os.path.lexists(path))
    if not folder.is_dir():
        return Finding("FAIL", f"{root}: {folder} is no folder")
    free = shutil.disk_usage(folder).free
    if free < LEAST_FREE:
        return Finding("FAIL", f"{root}: {size(free)} free")
    block = os.urandom(MIB)
    # The file has no name, where the system can do that, and is gone with this process.
    with tempfile.TemporaryFile(dir=folder) as file:
        start = time.perf_counter()
        for _ in range(WRITTEN):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        speed = WRITTEN * MIB / (time.perf_counter() - start)
    found = f"{root}: {size(free)} free, {size(speed)} written in a second"
    if speed < SLOW_DISK:
        return Finding("warn", found, "saving will take long: --log-root on a faster disk")
    return Finding("ok", found)


def _ports(job: WorkerArgs, rank: Rank) -> Finding:
    """Whether workers can meet at a TCP port of the loopback interface."""
    with socket.create_server((LOOPBACK, 0)) as server:
        port = server.getsockname()[1]
        socket.create_connection((LOOPBACK, port)).close()
    return Finding("ok", f"{LOOPBACK}:{port} could be opened and connected to")


def _host_name(job: WorkerArgs, rank: Rank) -> Finding:
    """What this host's name resolves to, which only runs on several hosts need."""
    name = socket.gethostname()
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError as error:
        return Finding("warn", f"{name} does not resolve: {error.strerror}")
    addresses = list(dict.fromkeys(str(address[4][0]) for address in found))
    own = all(ipaddress.ip_address(a.partition("%")[0]).is_loopback for a in addresses)
    note = " (the loopback interface: enough for one host, not for several)" if own else ""
    return Finding("ok", f"{name} is {', '.join(addresses)}{note}")


def _wandb(job: WorkerArgs, rank: Rank) -> Finding:
    """Whether a login is known, as a run would find it; nobody is asked, nothing is sent."""
    import wandb

    mode = os.environ.get("WANDB_MODE")
    if mode in ("offline", "disabled", "dryrun"):
        return Finding("ok", f"WANDB_MODE={mode}: nothing is uploaded")
    if wandb.login(prompt=False, verify=False):
        return Finding("ok", "a login is known; whether it is valid, the first run will tell")
    return Finding("warn", "not logged in: runs would be recorded offline")


INSTALL = "`uv sync` installs what belongs together"
CHECKS = {
    "driver": Check(
        devices.check_driver,
        "`nvidia-smi` must list the GPUs; after an update of the driver, reboot. In a container: "
        "`--gpus all`. Until then --gpu-ids None uses the CPU",
    ),
    "versions": Check(_versions, INSTALL),
    "machine": Check(_machine, "fewer workers, or more cores (taskset, cgroup, --cpus of docker)"),
    "torch": Check(
        devices.check_torch,
        f"{INSTALL}; a GPU needs a driver that supports the CUDA version that torch was built for, "
        "see the line `driver`: update it, or choose a torch for an older CUDA",
    ),
    "bytecode": Check(
        _bytecode,
        "`uv sync --compile-bytecode` compiles them; PYTHONDONTWRITEBYTECODE, or a folder that "
        "cannot be written, kept Python from it",
    ),
    "warp": Check(
        devices.check_warp,
        f"{INSTALL}; a GPU needs a driver at least as new as warp's CUDA version; WARP_CACHE_PATH "
        "names a folder for kernels that can be written and has 1 GiB free",
    ),
    "gpu": Check(
        devices.check_gpu,
        "`nvidia-smi` shows who uses this GPU and its compute mode: end them, or choose another by "
        "--gpu-ids",
    ),
    "all-reduce": Check(
        devices.check_all_reduce,
        "the loopback interface must be up and unfiltered (`ip link set lo up`). NCCL: "
        "NCCL_DEBUG=INFO says more, then try NCCL_P2P_DISABLE=1, NCCL_SHM_DISABLE=1, in a "
        "container `--shm-size=1g`; --backend gloo tells whether NCCL is at fault; "
        "docs/distributed.md has more",
    ),
    "rendering": Check(
        devices.check_rendering,
        "only videos need it. Debian: `apt install libegl1 libgl1-mesa-dri`, or `apt install "
        "libosmesa6` for MUJOCO_GL=osmesa. GPUs in a container: NVIDIA_DRIVER_CAPABILITIES=all",
    ),
    "log root": Check(
        _log_root, "choose another folder by --log-root: writable, on a disk with 1 GiB free"
    ),
    "ports": Check(_ports, "the loopback interface must be up: `ip link set lo up`; no firewall"),
    "host name": Check(
        _host_name, "only runs on several hosts need it: a line for it in /etc/hosts"
    ),
    "W&B": Check(_wandb, "only --agent.logger wandb needs it: `wandb login`, or WANDB_API_KEY"),
}

if __name__ == "__main__":
    main(sys.argv[1:])
