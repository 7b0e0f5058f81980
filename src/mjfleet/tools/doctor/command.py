"""`mjfleet doctor [flags]`: one line for each thing that training on this machine needs.

Runs in the process that the user started and imports nothing heavy; each check is a child process.
"""

import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from mjfleet.cli.flags import parse_flags
from mjfleet.config import LaunchConfig, to_dict
from mjfleet.config.launch_config import GpuRequest
from mjfleet.config.validation import Checked, Seconds
from mjfleet.errors import UserError
from mjfleet.launch.devices import choose_backend, choose_devices, needs_gpus
from mjfleet.tools.doctor import device_checks, host_checks
from mjfleet.tools.doctor.check_process import make_check
from mjfleet.tools.doctor.host_checks import Finding
from mjfleet.utils.console import print_line
from mjfleet.utils.hardware_names import rendering_variables
from mjfleet.worker.rank_environment import Rank
from mjfleet.worker.stop_signals import StopRequest
from mjfleet.worker.worker_args import LOOPBACK_ALONE, WorkerArgs


@dataclass(frozen=True, kw_only=True)
class DoctorArguments(Checked):
    """Check what training on these devices needs, and say what to do about what is missing."""

    gpu_ids: GpuRequest = "auto"
    """`auto` (GPU 0, else the CPU), `all`, `None` (the CPU), or indices of visible GPUs."""
    cpu_workers: int | None = None
    """Workers on the CPU; `None`: one, if no GPU is used."""
    backend: Literal["auto", "nccl", "gloo"] = "auto"
    """Library for communication between workers; `auto`: nccl on GPUs, gloo on the CPU."""
    log_root: str = "logs"
    """Folder in which run directories would be created."""
    wandb: bool = False
    """Check the login at Weights & Biases too, which only `--agent.logger wandb` needs."""
    timeout: Seconds = 60.0
    """Seconds after which a check counts as failed."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.launch_config()

    def launch_config(self) -> LaunchConfig:
        """Return the same flags as those of a training run, checked by its rules."""
        flags = dict(vars(self))
        del flags["wandb"]
        return LaunchConfig(collective_timeout=flags.pop("timeout"), **flags)


def doctor(arguments: Sequence[str]) -> int:
    """Print a line for each check as it ends; return 1 if training would fail, 0 otherwise."""
    parsed = parse_flags(DoctorArguments, arguments, "mjfleet doctor")
    has_failed = False
    with StopRequest().installed():
        for name, finding in _diagnose(parsed.launch_config(), parsed.wandb):
            print_line(f"{finding.status:<4}  {name + ':':<18}{finding.found}")
            if finding.todo:
                print_line(f"      to do: {finding.todo}")
            has_failed |= finding.status == "FAIL"
    return 1 if has_failed else 0


def _diagnose(config: LaunchConfig, uses_wandb: bool) -> Iterator[tuple[str, Finding]]:
    """Make all checks and yield each finding with its name; FAIL: training would fail."""
    try:
        scratch = tempfile.TemporaryDirectory(prefix="mjfleet-")
    except OSError as error:
        raise UserError(f"temporary files: {error}; set TMPDIR to a writable folder.") from None
    with scratch:
        args = WorkerArgs(
            task="",
            task_folder="",
            config=to_dict(config),
            devices=("cpu",),
            engine="native",
            threads=1,
            run_dir="",
            temporary=scratch.name,
            scratch=scratch.name,
        )
        uses_gpus = needs_gpus(config)
        driver = make_check(device_checks.check_driver, args, is_needed=uses_gpus)
        if driver.status == "FAIL":
            yield "driver", driver
            return  # To count the GPUs could hang or crash this process too.
        devices = choose_devices(config, os.environ)
        backend = choose_backend(config, devices) if len(devices.names) > 1 else None
        yield "driver", driver
        physical = f"the machine's {', '.join(devices.physical)}" if devices.physical else ""
        why = f" ({physical or devices.note})" if physical or devices.note else ""
        yield "devices", Finding("ok", ", ".join(devices.names) + why)
        args = replace(args, devices=devices.names, backend=backend)
        yield from _check_devices(args)
        if uses_wandb:
            yield "W&B", make_check(host_checks.check_wandb, args, is_needed=False)


def _check_devices(args: WorkerArgs) -> Iterator[tuple[str, Finding]]:
    """Make all checks that need to know the devices, of which several workers may share one."""
    on_gpu = args.devices[0] != "cpu"
    firsts = {device: args.rank_of(args.devices.index(device)) for device in args.devices}
    yield "versions", make_check(host_checks.check_versions, args)
    yield "machine", make_check(host_checks.check_machine, args)
    yield "torch", make_check(device_checks.check_torch, args)
    yield "bytecode", make_check(host_checks.check_bytecode, args)
    yield "warp", make_check(device_checks.check_warp, args, is_needed=on_gpu)
    for device, rank in firsts.items() if on_gpu else ():
        yield device, make_check(device_checks.check_gpu, args, [rank])
    yield "all-reduce", _all_reduce(args)
    for device, rank in firsts.items():
        yield f"rendering {device}", _rendering(args, device, rank)
    yield "log root", make_check(host_checks.check_log_root, args)
    yield "ports", make_check(host_checks.check_ports, args, is_needed=len(args.devices) > 1)
    yield "host name", make_check(host_checks.check_host_name, args, is_needed=False)


def _all_reduce(args: WorkerArgs) -> Finding:
    if not args.backend:
        return Finding("ok", "one worker has no others to communicate with")
    ranks = [args.rank_of(local_rank) for local_rank in range(len(args.devices))]
    environ = {"NCCL_DEBUG": os.environ.get("NCCL_DEBUG", "WARN")}
    return make_check(device_checks.check_all_reduce, args, ranks, environ | LOOPBACK_ALONE)


def _rendering(args: WorkerArgs, device: str, rank: Rank) -> Finding:
    """Draw with MUJOCO_GL if it is set, else with EGL; on the CPU OSMesa is good enough too."""
    environ, backends = {}, ["egl", "osmesa"]
    if device != "cpu":
        index = device.removeprefix("cuda:")
        environ["MUJOCO_EGL_DEVICE_ID"] = os.environ.get("MUJOCO_EGL_DEVICE_ID", index)
        environ |= rendering_variables(os.environ)
        backends = ["egl"]
    if os.environ.get("MUJOCO_GL"):
        backends = [os.environ["MUJOCO_GL"]]
    check, each = device_checks.check_rendering, [environ | {"MUJOCO_GL": b} for b in backends]
    found = [make_check(check, args, [rank], variables, is_needed=False) for variables in each]
    return next((finding for finding in found if finding.status == "ok"), found[0])
