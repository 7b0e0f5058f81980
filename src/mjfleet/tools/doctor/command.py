"""`mjfleet doctor [flags]`: one line for each thing that training on this machine needs.

Runs in the process that the user started and imports nothing heavy; each check is a child process.
"""

import json
import os
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from typing import Literal

from mjfleet.cli.flags import parse_flags
from mjfleet.config import LaunchConfig, to_dict
from mjfleet.config.launch_config import GpuRequest
from mjfleet.config.validation import Checked, Positive
from mjfleet.errors import UserError
from mjfleet.launch.devices import select_devices
from mjfleet.launch.placement import choose_backend
from mjfleet.tools.doctor.check_process import CHECKS
from mjfleet.tools.doctor.host_checks import Finding
from mjfleet.utils.child_process import ChildProcess, python_module
from mjfleet.utils.console import print_line
from mjfleet.utils.hardware_names import count_gpus
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
    timeout: Positive = 60.0
    """Seconds after which a check counts as failed."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.launch_config()

    def launch_config(self) -> LaunchConfig:
        """Return the same flags as those of a training run, checked by its rules."""
        return LaunchConfig(
            gpu_ids=self.gpu_ids,
            cpu_workers=self.cpu_workers,
            backend=self.backend,
            log_root=self.log_root,
            collective_timeout=self.timeout,
        )


def doctor(arguments: Sequence[str]) -> int:
    """Print a line for each check as it ends; return 1 if training would fail, 0 otherwise."""
    parsed = parse_flags(DoctorArguments, arguments, "mjfleet doctor")
    has_failed = False
    with StopRequest().installed():
        for name, finding in diagnose(parsed.launch_config()):
            print_line(f"{finding.status:<4}  {name + ':':<18}{finding.found}")
            if finding.todo:
                print_line(f"      to do: {finding.todo}")
            has_failed |= finding.status == "FAIL"
    return 1 if has_failed else 0


def diagnose(config: LaunchConfig) -> Iterator[tuple[str, Finding]]:
    """Make all checks for these flags and yield each finding with its name.

    FAIL means that training would fail. `config.collective_timeout` is the limit of each check.

    Raises:
        UserError: the flags do not fit each other or this machine, or TMPDIR is not writable.
    """
    try:
        scratch = tempfile.TemporaryDirectory(prefix="mjfleet-")
    except OSError as error:
        raise UserError(f"temporary files: {error}; set TMPDIR to a writable folder.") from None
    with scratch:
        on_cpu = config.gpu_ids is None or config.cpu_workers is not None
        args = WorkerArgs(
            task="",
            task_folder="",
            config=to_dict(config),
            devices=("cpu",),
            engine="native",
            threads=1,
            run_dir="",
            temporary=scratch.name,
        )
        driver = _check("driver", args, is_needed=not on_cpu)
        if driver.status == "FAIL":
            yield "driver", driver
            return  # To count the GPUs could hang or crash this process too.
        devices = select_devices(
            config.gpu_ids,
            os.environ,
            0 if on_cpu else count_gpus(),
            cpu_workers=config.cpu_workers,
            shared=config.backend == "gloo",
        )
        backend = choose_backend(config, devices) if len(devices.names) > 1 else None
        yield "driver", driver
        why = f" ({devices.note})" if devices.note else ""
        if devices.physical:
            why = f" (the machine's {', '.join(devices.physical)})"
        yield "devices", Finding("ok", ", ".join(devices.names) + why)
        yield from _check_devices(replace(args, devices=devices.names, backend=backend))


def _check_devices(args: WorkerArgs) -> Iterator[tuple[str, Finding]]:
    """Make all checks that need to know the devices, of which several workers may share one."""
    on_gpu, count = args.devices[0] != "cpu", len(args.devices)
    first_on_device = {args.devices[i]: args.rank_of(i) for i in reversed(range(count))}
    for name in ("versions", "machine", "torch", "bytecode"):
        yield name, _check(name, args)
    yield "warp", _check("warp", args, is_needed=on_gpu)
    for device in dict.fromkeys(args.devices if on_gpu else ()):
        yield device, _check("gpu", args, ranks=[first_on_device[device]])
    alone = Finding("ok", "one worker has no others to communicate with")
    yield "all-reduce", _all_reduce(args) if args.backend else alone
    for device in dict.fromkeys(args.devices):
        yield f"rendering {device}", _rendering(args, device, first_on_device[device])
    yield "log root", _check("log root", args)
    yield "ports", _check("ports", args, is_needed=count > 1)
    for name in ("host name", "W&B"):
        yield name, _check(name, args, is_needed=False)


def _all_reduce(args: WorkerArgs) -> Finding:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environ = {"MASTER_PORT": str(port), "NCCL_DEBUG": os.environ.get("NCCL_DEBUG", "WARN")}
    ranks = [args.rank_of(local_rank) for local_rank in range(len(args.devices))]
    return _check("all-reduce", args, ranks=ranks, environ=environ | LOOPBACK_ALONE)


def _rendering(args: WorkerArgs, device: str, place: Rank) -> Finding:
    """Draw with MUJOCO_GL if it is set, else with EGL; on the CPU OSMesa is good enough too."""
    environ, backends = {}, ["egl", "osmesa"]
    if device != "cpu":
        index = device.removeprefix("cuda:")
        environ["MUJOCO_EGL_DEVICE_ID"] = os.environ.get("MUJOCO_EGL_DEVICE_ID", index)
        backends = ["egl"]
    if os.environ.get("MUJOCO_GL"):
        backends = [os.environ["MUJOCO_GL"]]
    each = (_check("rendering", args, False, [place], environ | {"MUJOCO_GL": b}) for b in backends)
    first = next(each)
    return next((found for found in (first, *each) if found.status == "ok"), first)


def _check(
    name: str,
    args: WorkerArgs,
    is_needed: bool = True,
    ranks: Sequence[Rank] = (Rank(),),
    environ: Mapping[str, str] | None = None,
) -> Finding:
    """Make a check of CHECKS in one child process per rank; FAIL becomes a warning if not needed.

    The first child that fails decides, else rank 0.
    """
    timeout: float = args.config["collective_timeout"]
    variables = {"TMPDIR": args.temporary, **(environ or {})}
    with ExitStack() as stack:
        children = []
        for rank in ranks:
            request = json.dumps([asdict(args), asdict(rank)])
            command = python_module("mjfleet.tools.doctor.check_process", name, request)
            children.append(stack.enter_context(ChildProcess(command, environ=variables)))
        child = _wait_for_first_failure(children, time.monotonic() + timeout)
        if text := child.output():
            finding = Finding(**json.loads(text))
        else:
            is_late = child.exit_code() is None
            how = f"no answer within {timeout:g} s (--timeout)" if is_late else child.how_it_ended()
            lines = [line.strip() for line in child.errors().splitlines() if line.strip()]
            last = f"; its last output: {lines[-1][:300]}" if lines else ""
            finding = Finding("FAIL", how + last)
    if finding.status != "ok" and not finding.todo:
        finding = replace(finding, todo=CHECKS[name][1])
    if finding.status == "FAIL" and not is_needed:
        return replace(finding, status="warn")
    return finding


def _wait_for_first_failure(children: Sequence[ChildProcess], deadline: float) -> ChildProcess:
    """Return the first child that fails, one that is late, or, if all succeed, the first child."""
    while True:
        codes = [child.exit_code() for child in children]
        if failed := [code for code in codes if code]:
            # A signal's code is negative: it comes before peers that only lost the connection.
            return children[codes.index(min(failed))]
        if None not in codes:
            return children[0]
        if time.monotonic() > deadline:
            return children[codes.index(None)]
        time.sleep(0.02)
