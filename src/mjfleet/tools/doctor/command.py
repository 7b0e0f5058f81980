"""`mjfleet doctor [flags]`: one line for each thing that training on this machine needs.

Runs in the process that the user started and imports nothing heavy; each check is a child process.
"""

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from typing import Literal

from mjfleet.config import LaunchConfig, to_dict
from mjfleet.config.flags import parse_flags
from mjfleet.config.launch_config import GpuRequest
from mjfleet.config.validation import Checked, Seconds
from mjfleet.errors import UserError
from mjfleet.launch.devices import choose_backend, choose_devices, needs_gpus
from mjfleet.tools.doctor import checks
from mjfleet.tools.doctor.checks import Finding
from mjfleet.utils.child_process import ChildProcess, python_module
from mjfleet.utils.console import print_line
from mjfleet.utils.packages import install_command
from mjfleet.utils.wait_until import wait_until
from mjfleet.worker.stop_signals import StopRequest
from mjfleet.worker.worker_args import WorkerArgs

Check = Callable[[WorkerArgs, int], Finding]
INSTALL = "`{install}` installs matching versions"
REMEDIES: dict[Check, str] = {
    checks.check_driver: "`nvidia-smi` must list the GPUs: reboot after an update of the driver; "
    "in a container, `--gpus all`. Until then --gpu-ids None uses the CPU",
    checks.check_versions: INSTALL,
    checks.check_machine: "fewer workers, or more cores (taskset, cgroup, --cpus of docker)",
    checks.check_torch: f"{INSTALL}; a GPU needs a driver for torch's CUDA version, see the line "
    "`driver`: update it, or choose a torch for an older CUDA",
    checks.check_bytecode: "in a clone, `uv sync --inexact --compile-bytecode` compiles "
    "them; PYTHONDONTWRITEBYTECODE, or a folder that cannot be written, kept Python from it",
    checks.check_warp: f"{INSTALL}; a GPU needs a driver for warp's CUDA version; WARP_CACHE_PATH "
    "names a writable folder for kernels, with 1 GiB free",
    checks.check_gpu: "`nvidia-smi` shows who uses this GPU and its compute mode: end them, or "
    "choose another by --gpu-ids",
    checks.check_all_reduce: "the loopback interface must be up (`ip link set lo up`) and "
    "unfiltered. NCCL_DEBUG=INFO says more of NCCL; try NCCL_P2P_DISABLE=1, NCCL_SHM_DISABLE=1, "
    "in a container `--shm-size=1g`, or --backend gloo; see docs/distributed.md",
    checks.check_rendering: "only videos need it. Debian: `apt install libegl1 libgl1-mesa-dri`, "
    "or libosmesa6. GPUs in a container: NVIDIA_DRIVER_CAPABILITIES=all",
    checks.check_log_root: "choose a writable folder on a fast disk with 1 GiB free by --log-root",
    checks.check_host_name: "only runs on several hosts and torchrun need it: add a line for it to "
    "/etc/hosts; torchrun on one host can do without, by its `--local-addr 127.0.0.1`",
    checks.check_wandb: "only --agent.logger wandb needs it: `wandb login`, or WANDB_API_KEY",
}
"""What the user can do if a check is not ok."""


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


def doctor(arguments: Sequence[str]) -> int:
    """Print a line for each check as it ends; return 1 if training would fail, 0 otherwise."""
    flags = vars(parse_flags(DoctorArguments, arguments, "mjfleet doctor")).copy()
    uses_wandb, timeout = flags.pop("wandb"), flags.pop("timeout")
    config = LaunchConfig(collective_timeout=timeout, **flags)
    has_failed = False
    with StopRequest().installed():
        for name, (status, found, todo) in _diagnose(config, uses_wandb):
            print_line(f"{status:<4}  {name + ':':<18}{found}")
            if todo:
                print_line(f"      to do: {todo}")
            has_failed |= status == "FAIL"
    return 1 if has_failed else 0


def _diagnose(config: LaunchConfig, uses_wandb: bool) -> Iterator[tuple[str, Finding]]:
    """Make all checks and yield each line with its name; FAIL: training would fail."""
    try:
        scratch = tempfile.TemporaryDirectory(prefix="mjfleet-")
    except OSError as error:
        raise UserError(f"temporary files: {error}; set TMPDIR to a writable folder.") from None
    with scratch as folder:
        args = WorkerArgs(
            task="", task_folder="", config=to_dict(config), devices=("cpu",), engine="native",
            threads=1, run_dir="", temporary=folder, scratch=folder,
        )  # fmt: skip
        driver = _make(checks.check_driver, args, is_needed=needs_gpus(config))
        if driver.status == "FAIL":
            yield "driver", driver
            return  # To count the GPUs could hang or crash this process too.
        devices = choose_devices(config, os.environ)
        several, on_gpu = len(devices.names) > 1, bool(devices.indices)
        backend = choose_backend(config, devices) if several else None
        args = replace(args, devices=devices.names, backend=backend)
        yield "driver", driver
        why = f"the machine's {', '.join(devices.physical)}" if on_gpu else devices.note
        names = ", ".join(devices.names)
        yield "devices", Finding("ok", f"{names} ({why})" if why else names)
        yield "versions", _make(checks.check_versions, args)
        yield "machine", _make(checks.check_machine, args)
        yield "torch", _make(checks.check_torch, args)
        yield "bytecode", _make(checks.check_bytecode, args)
        yield "warp", _make(checks.check_warp, args, is_needed=on_gpu)
        # Several workers may share a device.
        firsts = {device: devices.names.index(device) for device in devices.names}
        for device, index in firsts.items() if on_gpu else ():
            yield device, _make(checks.check_gpu, args, [index])
        alone = Finding("ok", "one worker has no others to communicate with")
        everyone = range(len(devices.names))
        yield "all-reduce", _make(checks.check_all_reduce, args, everyone) if several else alone
        for device, index in firsts.items():
            yield f"rendering {device}", _rendering(args, index)
        yield "log root", _make(checks.check_log_root, args)
        yield "host name", _make(checks.check_host_name, args, is_needed=False)
        if uses_wandb:
            yield "W&B", _make(checks.check_wandb, args, is_needed=False)


def _rendering(args: WorkerArgs, index: int) -> Finding:
    """Draw as videos do: with MUJOCO_GL if it is set, else with EGL, else with OSMesa."""
    chosen = os.environ.get("MUJOCO_GL")
    found: list[Finding] = []
    for backend in [chosen] if chosen else ["egl", "osmesa"]:
        found.append(_make(checks.check_rendering, args, [index], backend, is_needed=False))
        if found[-1].status == "ok":
            return found[-1]
    return found[0]


def _make(
    check: Check,
    args: WorkerArgs,
    indices: Sequence[int] = (0,),
    mujoco_gl: str | None = None,
    is_needed: bool = True,
) -> Finding:
    """Make a check in one process for each local rank; FAIL becomes a warning if it is not needed.

    The first process that fails decides, else that of the first rank.
    """
    timeout: float = args.config["collective_timeout"]
    environ = {"TMPDIR": args.temporary} | ({"MUJOCO_GL": mujoco_gl} if mujoco_gl else {})
    request = checks.__name__, check.__name__, json.dumps(asdict(args))
    with ExitStack() as stack:
        children = [
            stack.enter_context(ChildProcess(python_module(*request, str(i)), environ=environ))
            for i in indices
        ]

        def has_ended() -> bool:
            codes = [child.exit_code() for child in children]
            return any(codes) or None not in codes

        wait_until(has_ended, timeout)
        codes = [child.exit_code() for child in children]
        # A signal's code is negative: it comes before peers that only lost the connection.
        worst = min(filter(None, codes), default=None if None in codes else 0)
        child = children[codes.index(worst)]
        if text := child.output():
            finding = Finding(*json.loads(text))
        else:
            late = f"no answer within {timeout:g} s (--timeout)"
            lines = [line.strip() for line in child.errors().splitlines() if line.strip()]
            last = f"; its last output: {lines[-1][:300]}" if lines else ""
            finding = Finding("FAIL", (late if worst is None else child.how_it_ended()) + last)
    if finding.status == "ok":
        return finding
    todo = REMEDIES[check].format(install=install_command())
    return Finding(finding.status if is_needed else "warn", finding.found, todo)
