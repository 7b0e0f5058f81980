"""`mjfleet doctor`: which checks are made, each in children that may crash or hang.

Runs in the launching process, which imports nothing heavy.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from typing import IO

from mjfleet.config import LaunchConfig, to_dict
from mjfleet.launch.devices import Devices, select_devices
from mjfleet.launch.launch_plan import choose_backend
from mjfleet.tools.doctor.finding import Finding
from mjfleet.tools.doctor.host_checks import CHECKS, LOOPBACK
from mjfleet.utils.hardware_names import count_gpus
from mjfleet.worker.worker_args import Rank, WorkerArgs

UNKILLABLE_SECONDS = 5.0
"""How long to wait for a killed child: inside a driver that hangs, it may never end."""


def diagnose(config: LaunchConfig) -> Iterator[tuple[str, Finding]]:
    """Check what training with these flags needs; a name and a finding as soon as it is there.

    FAIL means that training would fail. `config.collective_timeout` is that of each check.

    Raises:
        UserError: the flags do not fit each other or this machine.
    """
    try:
        scratch = tempfile.TemporaryDirectory(prefix="mjfleet-")
    except OSError as error:
        yield "temporary files", Finding("FAIL", str(error), "TMPDIR names a folder for them")
        return
    with scratch:
        on_cpu = config.gpu_ids is None or config.cpu_workers is not None
        job = _job(config, Devices((), ()))
        driver = _look("driver", job, scratch.name, needed=not on_cpu)
        if driver.status != "ok":
            yield "driver", driver
            if driver.status == "FAIL":
                return  # To count the GPUs would hang or crash in this process as well.
        devices = select_devices(
            config.gpu_ids,
            os.environ,
            0 if on_cpu else count_gpus(),
            cpu_workers=config.cpu_workers,
            shared=config.backend == "gloo",
        )
        job = _job(config, devices)
        if driver.status == "ok":
            yield "driver", driver
        why = f" ({devices.note})" if devices.note else ""
        if devices.physical:
            why = f" (the machine's {', '.join(devices.physical)})"
        yield "devices", Finding("ok", ", ".join(job.devices) + why)
        yield from _check_devices(job, scratch.name)


def _check_devices(job: WorkerArgs, scratch: str) -> Iterator[tuple[str, Finding]]:
    """All that is to be known once the devices are."""
    on_gpu, several = job.devices[0] != "cpu", len(job.devices) > 1
    places = [Rank(local_rank=job.devices.index(name)) for name in dict.fromkeys(job.devices)]
    for name in ("versions", "machine", "torch", "bytecode"):
        yield name, _look(name, job, scratch)
    yield "warp", _look("warp", job, scratch, needed=on_gpu)
    if on_gpu:
        for place in places:
            yield job.devices[place.local_rank], _look("gpu", job, scratch, [place])
    yield "all-reduce", _all_reduce(job, scratch)
    for place in places:
        name = f"rendering {job.devices[place.local_rank]}"
        yield name, _rendering(job, scratch, place)
    yield "log root", _look("log root", job, scratch)
    yield "ports", _look("ports", job, scratch, needed=several)
    for name in ("host name", "W&B"):
        yield name, _look(name, job, scratch, needed=False)


def _job(config: LaunchConfig, devices: Devices) -> WorkerArgs:
    """What the children need to know: a job without a task."""
    names = devices.names
    return WorkerArgs(
        task="",
        task_folder="",
        config=to_dict(config),
        devices=names,
        engine="warp" if devices.indices else "native",
        threads=1,
        run_dir="",
        backend=choose_backend(config, devices) if len(names) > 1 else None,
    )


def _all_reduce(job: WorkerArgs, scratch: str) -> Finding:
    if job.backend is None:
        return Finding("ok", "one worker has nobody to talk to")
    size = len(job.devices)
    ranks = [
        Rank(rank=number, local_rank=number, world_size=size, local_world_size=size)
        for number in range(size)
    ]
    with socket.create_server((LOOPBACK, 0)) as free:
        port = free.getsockname()[1]
    environ = {
        "MASTER_PORT": str(port),
        # As the workers of a run have it.
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
        "NCCL_DEBUG": os.environ.get("NCCL_DEBUG", "WARN"),
    }
    return _look("all-reduce", job, scratch, ranks, environ=environ)


def _rendering(job: WorkerArgs, scratch: str, place: Rank) -> Finding:
    """By EGL on a GPU; on the CPU OSMesa will do as well. MUJOCO_GL, where it is set, decides."""
    device = job.devices[place.local_rank]
    environ = {}
    if device != "cpu":
        own = device.removeprefix("cuda:")
        environ["MUJOCO_EGL_DEVICE_ID"] = os.environ.get("MUJOCO_EGL_DEVICE_ID", own)
    kinds = ["egl", "osmesa"] if device == "cpu" else ["egl"]
    findings = []
    for kind in [os.environ["MUJOCO_GL"]] if os.environ.get("MUJOCO_GL") else kinds:
        environ["MUJOCO_GL"] = kind
        findings.append(_look("rendering", job, scratch, [place], needed=False, environ=environ))
        if findings[-1].status == "ok":
            return findings[-1]
    return findings[0]


@dataclass(frozen=True)
class _Child:
    """A process that makes a check: the leader of a group and session of its own."""

    process: "subprocess.Popen[bytes]"
    output: IO[bytes]
    errors: IO[bytes]

    def exit_code(self) -> int | None:
        """None: it still runs. It is not reaped, which would free its group's number."""
        look = os.WEXITED | os.WNOHANG | os.WNOWAIT
        state = os.waitid(os.P_PID, self.process.pid, look)
        if state is None:
            return None
        return state.si_status if state.si_code == os.CLD_EXITED else -state.si_status

    def end(self) -> None:
        """Kill it and all that it has started."""
        os.killpg(self.process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(UNKILLABLE_SECONDS)

    def finding(self, exit_code: int | None, timeout: float) -> Finding:
        """What it has found, or how it ended instead."""
        self.output.seek(0)
        if text := self.output.read():
            return Finding(**json.loads(text))
        self.errors.seek(0)
        lines = self.errors.read().decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        if exit_code is None:
            how = f"no answer within {timeout:g} s (--timeout)"
        elif exit_code < 0:
            how = f"ended by {signal.Signals(-exit_code).name}"
        else:
            how = f"ended with exit code {exit_code}"
        return Finding("FAIL", f"{how}; it said last: {last[:300]}" if last else how)


def _look(
    name: str,
    job: WorkerArgs,
    scratch: str,
    ranks: Sequence[Rank] = (Rank(),),
    *,
    needed: bool = True,
    environ: Mapping[str, str] | None = None,
) -> Finding:
    """Make a check in a child for each rank, until all are done or one fails.

    Args:
        name: of CHECKS.
        job: what the children need to know.
        scratch: the children's folder for temporary files, removed in the end.
        ranks: who they are.
        needed: whether training needs it; else a failure is a warning.
        environ: environment variables that they need besides.
    """
    timeout: float = job.config["collective_timeout"]
    children: list[_Child] = []
    with ExitStack() as stack:
        for rank in ranks:
            request = json.dumps({"job": asdict(job), "rank": asdict(rank)})
            files = [stack.enter_context(tempfile.TemporaryFile(dir=scratch)) for _ in range(2)]
            process = subprocess.Popen(
                [sys.executable, "-m", "mjfleet.tools.doctor.host_checks", name, request],
                stdin=subprocess.DEVNULL,
                stdout=files[0],
                stderr=files[1],
                start_new_session=True,
                env={**os.environ, **(environ or {}), "TMPDIR": scratch},
            )
            children.append(_Child(process, *files))
            stack.callback(children[-1].end)
        child, exit_code = _wait(children, time.monotonic() + timeout)
        finding = child.finding(exit_code, timeout)
    if finding.status != "ok" and not finding.todo:
        finding = replace(finding, todo=CHECKS[name].todo)
    return replace(finding, status="warn") if finding.status == "FAIL" and not needed else finding


def _wait(children: Sequence[_Child], deadline: float) -> tuple[_Child, int | None]:
    """The child that speaks for all, with its exit code: the first that fails, else rank 0's."""
    while True:
        codes = [child.exit_code() for child in children]
        if failed := [code for code in codes if code]:
            # A signal's code is negative: who was killed is told before who lost the connection.
            return children[codes.index(min(failed))], min(failed)
        if None not in codes:
            return children[0], 0
        if time.monotonic() > deadline:
            return children[codes.index(None)], None
        time.sleep(0.02)
