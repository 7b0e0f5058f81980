"""Checks of `mjfleet doctor` that need no GPU: packages, processors, memory, disk, network, W&B.

Runs in a child process. Importing this file imports nothing heavy; the checks may.
"""

import importlib.util
import ipaddress
import os
import shutil
import socket
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mjfleet.utils.hardware_names import usable_cores
from mjfleet.utils.packages import stack_versions
from mjfleet.worker.rank_environment import Rank
from mjfleet.worker.worker_args import WorkerArgs

MIB, GIB = 2**20, 2**30
MIN_FREE = GIB  # Bytes that a disk or a GPU must have free.
SLOW_DISK = 10 * MIB  # Bytes per second: below, workers wait noticeably for checkpoints.
WRITTEN = 64 * MIB  # Bytes that are written to measure a disk.


@dataclass(frozen=True)
class Finding:
    """The result of a check, which a child process sends to its parent."""

    status: Literal["ok", "warn", "FAIL"]
    found: str
    todo: str = ""  # What the user can do; empty: what `check_process.REMEDIES` says.


def size(number: float) -> str:
    """Return a number of bytes in MiB or GiB, as text."""
    return f"{number / GIB:.1f} GiB" if number >= GIB else f"{number / MIB:.0f} MiB"


def check_versions(args: WorkerArgs, rank: Rank) -> Finding:
    """Report the versions of Python and of the packages on which a run's result depends."""
    stack = ", ".join(f"{name} {version}" for name, version in stack_versions().items())
    return Finding("ok", f"Python {sys.version.split()[0]}, {stack}")


def check_machine(args: WorkerArgs, rank: Rank) -> Finding:
    """Report processors and memory; warn if workers have to share a core."""
    import psutil

    memory, cores = psutil.virtual_memory(), usable_cores()
    found = f"{cores} of {os.cpu_count()} CPU cores may be used"
    found += f"; {size(memory.available)} of {size(memory.total)} memory free"
    if len(args.devices) > cores:
        return Finding("warn", f"{found}; {len(args.devices)} workers share them")
    return Finding("ok", found)


def check_bytecode(args: WorkerArgs, rank: Rank) -> Finding:
    """Check that torch, which an earlier check has imported, is stored as compiled bytecode."""
    spec = importlib.util.find_spec("torch")
    if spec and spec.cached and Path(spec.cached).exists():
        return Finding("ok", "packages are compiled")
    return Finding("warn", "packages are not compiled: every process compiles them, for seconds")


def check_log_root(args: WorkerArgs, rank: Rank) -> Finding:
    """Check free space and speed where run directories will be; the folder is not created."""
    root = Path(args.config["log_root"]).absolute()
    folder = next(path for path in (root, *root.parents) if os.path.lexists(path))
    if not folder.is_dir():
        return Finding("FAIL", f"{root}: {folder} is not a folder")
    free = shutil.disk_usage(folder).free
    if free < MIN_FREE:
        return Finding("FAIL", f"{root}: {size(free)} free")
    content = os.urandom(WRITTEN)
    with tempfile.TemporaryFile(dir=folder) as file:
        start = time.perf_counter()
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
        speed = WRITTEN / (time.perf_counter() - start)
    found = f"{root}: {size(free)} free, writes {size(speed)} per second"
    if speed < SLOW_DISK:
        return Finding("warn", found, "checkpoints will take long; set --log-root to a faster disk")
    return Finding("ok", found)


def check_ports(args: WorkerArgs, rank: Rank) -> Finding:
    """Check that workers can meet at a TCP port of the loopback interface."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        socket.create_connection(("127.0.0.1", port)).close()
    return Finding("ok", f"127.0.0.1:{port} accepts connections")


def check_host_name(args: WorkerArgs, rank: Rank) -> Finding:
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


def check_wandb(args: WorkerArgs, rank: Rank) -> Finding:
    """Check that a W&B login is stored, without a prompt and without the network."""
    if importlib.util.find_spec("wandb") is None:
        return Finding("ok", "not installed, which only --agent.logger wandb needs")
    import wandb

    mode = os.environ.get("WANDB_MODE")
    if mode in ("offline", "disabled", "dryrun"):
        return Finding("ok", f"WANDB_MODE={mode}: nothing is uploaded")
    if wandb.login(prompt=False, verify=False):
        return Finding("ok", "a login is stored; the first run will show whether it is valid")
    return Finding("warn", "not logged in: runs would be recorded offline")
