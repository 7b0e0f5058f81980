"""`mjfleet doctor`: checks what training on this machine needs, each in a child process."""

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
from mjfleet.launch.devices import choose_backend, choose_devices, needs_gpus
from mjfleet.tools.doctor import checks
from mjfleet.tools.doctor.checks import Finding
from mjfleet.utils.child_process import ChildProcess, python_module
from mjfleet.utils.console import print_line
from mjfleet.utils.packages import compile_command, install_command
from mjfleet.utils.wait_until import wait_until
from mjfleet.video.render_process import BACKENDS
from mjfleet.worker.stop_signals import StopRequest
from mjfleet.worker.worker_args import WorkerArgs

Check = Callable[[WorkerArgs, int], Finding]
REMEDIES: dict[Check, str] = {
    checks.check_driver: "`nvidia-smi` must list the GPUs: reboot after an update of the driver; "
    "in a container, `--gpus all`. Until then --gpu-ids None uses the CPU",
    checks.check_bytecode: "once, as a user who may write there: `{compile}`",
    checks.check_torch: "`{install}` installs matching versions; a GPU needs a driver for torch's "
    "CUDA version, see the line `driver`",
    checks.check_warp: "`{install}` installs matching versions; WARP_CACHE_PATH names a writable "
    "folder for kernels, with 1 GiB free",
    checks.check_gpu: "`nvidia-smi` shows who uses this GPU and its compute mode, and whether its "
    "driver fits; choose another by --gpu-ids",
    checks.check_all_reduce: "the loopback interface must be up (`ip link set lo up`) and "
    "unfiltered. For NCCL see docs/distributed.md; or --backend gloo",
    checks.check_shared_memory: "in a container, `docker run --shm-size=1g` or `--ipc=host`; in a "
    "pod, a volume in memory at /dev/shm; or NCCL_SHM_DISABLE=1, which is slower",
    checks.check_rendering: "only videos need it. Debian: `apt install libegl1 libgl1-mesa-dri`, "
    "or libosmesa6, and leave MUJOCO_GL unset. GPUs in a container: NVIDIA_DRIVER_CAPABILITIES=all",
    checks.check_log_root: "choose a writable folder with 1 GiB free by --log-root",
}
"""What the user can do if a check is not ok."""


@dataclass(frozen=True, kw_only=True)
class DoctorArguments(Checked):
    """Check what training on these devices needs, and say how to supply what is missing."""

    gpu_ids: GpuRequest = "auto"
    """`auto` (GPU 0, else the CPU), `all`, `None` (the CPU), or indices of visible GPUs."""
    cpu_workers: int | None = None
    """Workers on the CPU; `None`: one, if no GPU is used."""
    backend: Literal["auto", "nccl", "gloo"] = "auto"
    """Library for communication between workers; `auto`: nccl on GPUs, gloo on the CPU."""
    log_root: str = "logs"
    """Folder in which run directories would be created."""
    timeout: Seconds = 60.0
    """Seconds after which a check counts as failed."""


def doctor(arguments: Sequence[str]) -> int:
    """Print a line for each check as it ends; return 1 if training would fail, 0 otherwise."""
    flags = vars(parse_flags(DoctorArguments, arguments, "mjfleet doctor")).copy()
    config = LaunchConfig(collective_timeout=flags.pop("timeout"), **flags)
    has_failed = False
    with StopRequest().installed():
        for name, (status, found, todo) in _diagnose(config):
            print_line(f"{status:<4}  {name + ':':<18}{found}")
            if todo:
                print_line(f"      to do: {todo}")
            has_failed |= status == "FAIL"
    return 1 if has_failed else 0


def _diagnose(config: LaunchConfig) -> Iterator[tuple[str, Finding]]:
    """Make all checks and yield each line with its name; FAIL: training would fail."""
    with tempfile.TemporaryDirectory(prefix="mjfleet-") as folder:
        args = WorkerArgs(
            task="", task_folder="", config=to_dict(config), devices=("cpu",), engine="native",
            threads=1, run_dir="", scratch=folder,
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
        why = f" ({devices.note})" if devices.note else ""
        yield "devices", Finding("ok", ", ".join(devices.names) + why)
        yield "bytecode", _make(checks.check_bytecode, args)
        yield "torch", _make(checks.check_torch, args)
        yield "warp", _make(checks.check_warp, args, is_needed=on_gpu)
        # Several workers may share a device.
        firsts = {device: devices.names.index(device) for device in devices.names}
        for device, index in firsts.items() if on_gpu else ():
            yield device, _make(checks.check_gpu, args, [index])
        if several:
            everyone = range(len(devices.names))
            if backend == "nccl":
                yield "shared memory", _make(checks.check_shared_memory, args)
            yield "all-reduce", _make(checks.check_all_reduce, args, everyone)
        chosen = os.environ.get("MUJOCO_GL")
        for device, index in firsts.items():
            finding = Finding("FAIL", "")
            for backend in [chosen] if chosen else BACKENDS:
                if finding.status != "ok":
                    finding = _make(checks.check_rendering, args, [index], backend, False)
            yield f"rendering {device}", finding
        yield "log root", _make(checks.check_log_root, args)


def _make(
    check: Check,
    args: WorkerArgs,
    indices: Sequence[int] = (0,),
    mujoco_gl: str = "",
    is_needed: bool = True,
) -> Finding:
    """Make a check in one process for each local rank; FAIL becomes a warning if it is not needed.

    The first process that fails decides, else that of the first rank.
    """
    timeout: float = args.config["collective_timeout"]
    environ = {"TMPDIR": args.scratch} | ({"MUJOCO_GL": mujoco_gl} if mujoco_gl else {})
    request = checks.__name__, check.__name__, json.dumps(asdict(args))
    with ExitStack() as stack:
        commands = [python_module(*request, str(index)) for index in indices]
        children = [stack.enter_context(ChildProcess(c, environ=environ)) for c in commands]

        def running() -> list[ChildProcess]:
            return [child for child in children if child.exit_code() is None]

        def failed() -> list[ChildProcess]:
            return [child for child in children if child.exit_code()]

        wait_until(lambda: bool(failed()) or not running(), timeout)
        # A signal's code is negative: it comes before peers that only lost the connection.
        child = min(failed() or running() or children, key=lambda child: child.exit_code() or 0)
        if text := child.output():
            finding = Finding(*json.loads(text))
        else:
            late = f"no answer within {timeout:g} s (--timeout)"
            *_, last = ["no output", *child.errors().splitlines()]
            how = late if child in running() else child.how_it_ended()
            finding = Finding("FAIL", f"{how}; its last output: {last[:300]}")
    if finding.status == "ok":
        return finding
    todo = REMEDIES[check].format(install=install_command(), compile=compile_command())
    return Finding(finding.status if is_needed else "warn", finding.found, todo)
