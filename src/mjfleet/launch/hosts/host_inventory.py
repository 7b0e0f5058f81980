"""The facts of a host: versions, code, GPUs, cores."""

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from mjfleet.launch.devices import VISIBLE
from mjfleet.utils.atomic_write import digest, digests
from mjfleet.utils.hardware_names import count_gpus, usable_cores
from mjfleet.utils.packages import stack_versions

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")  # Another one whenever a machine starts.


@dataclass(frozen=True)
class AskInventory:
    """Asks for the facts of a host."""

    task_folder: str
    packages: tuple[str, ...]  # Whose versions matter besides those of the stack.
    token: str = ""  # The name of a file that the launcher has just made.
    classes: tuple[str, ...] = ()  # Files of classes that are not in the task's folder.


@dataclass(frozen=True, kw_only=True)
class HostInventory:
    """The facts that the launcher needs before it starts workers on a host."""

    versions: Mapping[str, str]
    code: Mapping[str, str]  # Digests of mjfleet's own files.
    task: Mapping[str, str]  # Digests of the task's files; empty where there is no such folder.
    classes: Mapping[str, str]  # Digests of the files asked for; empty where there is none.
    gpus: int
    visible: str | None  # CUDA_VISIBLE_DEVICES there.
    cores: int  # CPU cores that a process may use.
    identity: str  # Differs from that of any other host.
    has_token: bool  # Whether the file that the launcher has just made exists there.
    launcher_address: str  # From which ssh has reached it; elsewhere it means nothing.
    address: str  # At which ssh has reached it; elsewhere it means nothing.


def host_inventory(asked: AskInventory) -> HostInventory:
    launcher_address, _, address, _ = os.environ.get("SSH_CONNECTION", "   ").split(" ")
    versions = {"Python": platform.python_version(), **stack_versions()}
    for package in asked.packages:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "missing"
    return HostInventory(
        versions=versions,
        code=digests(Path(__file__).parents[2]),
        task=digests(Path(asked.task_folder)),
        classes={name: digest(Path(name)) for name in asked.classes},
        gpus=count_gpus(),
        visible=os.environ.get(VISIBLE),
        cores=usable_cores(),
        identity=f"{os.uname().nodename} {BOOT_ID.read_text().strip()}",
        has_token=Path(asked.token).exists(),
        launcher_address=launcher_address,
        address=address,
    )
