"""Makes a check of `mjfleet doctor` in child processes, since it may crash or hang: both sides.

The child is `python -m mjfleet.tools.doctor.check_process <check> <WorkerArgs and Rank as JSON>`.
Importing this imports nothing heavy.
"""

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict

from mjfleet.tools.doctor import device_checks, host_checks
from mjfleet.tools.doctor.host_checks import Finding
from mjfleet.utils.child_process import ChildProcess, python_module
from mjfleet.utils.packages import find_installation
from mjfleet.utils.parent_death import die_with_parent
from mjfleet.worker.rank_environment import Rank
from mjfleet.worker.worker_args import WorkerArgs

Check = Callable[[WorkerArgs, Rank], Finding]

INSTALL = "`{install}` installs matching versions"
REMEDIES: dict[Check, str] = {
    device_checks.check_driver: "`nvidia-smi` must list the GPUs; after an update of the driver, "
    "reboot. In a container: `--gpus all`. Until then --gpu-ids None uses the CPU",
    host_checks.check_versions: INSTALL,
    host_checks.check_machine: "fewer workers, or more cores (taskset, cgroup, --cpus of docker)",
    device_checks.check_torch: f"{INSTALL}; a GPU needs a driver that supports the CUDA version "
    "that torch was built for, see the line `driver`: update it, or choose a torch for an older "
    "CUDA",
    host_checks.check_bytecode: "`{compile}` compiles them; "
    "PYTHONDONTWRITEBYTECODE, or a folder that cannot be written, kept Python from it",
    device_checks.check_warp: f"{INSTALL}; a GPU needs a driver at least as new as warp's CUDA "
    "version; WARP_CACHE_PATH names a folder for kernels, which must be writable and have 1 GiB "
    "free",
    device_checks.check_gpu: "`nvidia-smi` shows who uses this GPU and its compute mode: end them, "
    "or choose another by --gpu-ids",
    device_checks.check_all_reduce: "the loopback interface must be up and unfiltered (`ip link "
    "set lo up`). NCCL: NCCL_DEBUG=INFO says more, then try NCCL_P2P_DISABLE=1, "
    "NCCL_SHM_DISABLE=1, in a container `--shm-size=1g`; --backend gloo tells whether NCCL is at "
    "fault; docs/distributed.md has more",
    device_checks.check_rendering: "only videos need it. Debian: `apt install libegl1 "
    "libgl1-mesa-dri`, or `apt install libosmesa6` for MUJOCO_GL=osmesa. GPUs in a container: "
    "NVIDIA_DRIVER_CAPABILITIES=all",
    host_checks.check_log_root: "choose another folder by --log-root: writable, on a disk with "
    "1 GiB free",
    host_checks.check_ports: "the loopback interface must be up (`ip link set lo up`) and without "
    "a firewall",
    host_checks.check_host_name: "only runs on several hosts and torchrun need it: add a line for "
    "it to /etc/hosts; torchrun on one host can do without, by its `--local-addr 127.0.0.1`",
    host_checks.check_wandb: "only --agent.logger wandb needs it: `wandb login`, or WANDB_API_KEY",
}
"""All checks, each with what the user can do if it fails; `_remedy` fills in the commands."""


def make_check(
    check: Check,
    args: WorkerArgs,
    ranks: Sequence[Rank] = (Rank(),),
    environ: Mapping[str, str] = {},
    is_needed: bool = True,
) -> Finding:
    """Make a check in one child process per rank; FAIL becomes a warning if it is not needed.

    The first child that fails decides, else rank 0.
    """
    timeout: float = args.config["collective_timeout"]
    with ExitStack() as stack:
        children = []
        for rank in ranks:
            request = json.dumps([asdict(args), asdict(rank)])
            command = python_module(__name__, check.__name__, request)
            variables = {"TMPDIR": args.temporary, **environ}
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
    if finding.status == "ok":
        return finding
    status = finding.status if is_needed else "warn"
    return Finding(status, finding.found, finding.todo or _remedy(check))


def _remedy(check: Check) -> str:
    """Return what the user can do, by commands that fit how mjfleet was installed."""
    installation = find_installation()
    commands = {"install": installation.command(), "compile": installation.command(compiles=True)}
    return REMEDIES[check].format(**commands)


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


def main(name: str, request: str) -> None:
    """Make a check, write its finding to standard output as JSON, and exit; 1 if it is FAIL."""
    die_with_parent()
    output = os.dup(1)
    os.dup2(2, 1)  # Keeps what libraries print out of the JSON.
    args, rank = json.loads(request)
    (check,) = (check for check in REMEDIES if check.__name__ == name)
    try:
        finding = check(WorkerArgs(**args), Rank(**rank))
    except Exception as error:
        traceback.print_exc()
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        finding = Finding("FAIL", ": ".join([type(error).__name__, *lines[:1]]))
    os.write(output, json.dumps(asdict(finding)).encode())
    sys.stderr.flush()
    # Without cleanup: NCCL would wait for ranks that are gone, and a driver may hang.
    os._exit(1 if finding.status == "FAIL" else 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
