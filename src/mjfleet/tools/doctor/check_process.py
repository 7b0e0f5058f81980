"""The child process of `mjfleet doctor` that makes one check, since a check may crash or hang.

python -m mjfleet.tools.doctor.check_process <name> <WorkerArgs and Rank as JSON>
"""

import json
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict

from mjfleet.tools.doctor import device_checks, host_checks
from mjfleet.tools.doctor.host_checks import Finding
from mjfleet.utils.parent_death import die_with_parent
from mjfleet.worker.rank_environment import Rank
from mjfleet.worker.worker_args import WorkerArgs

INSTALL = "`uv sync` installs matching versions"
CHECKS: dict[str, tuple[Callable[[WorkerArgs, Rank], Finding], str]] = {
    "driver": (
        device_checks.check_driver,
        "`nvidia-smi` must list the GPUs; after an update of the driver, reboot. In a container: "
        "`--gpus all`. Until then --gpu-ids None uses the CPU",
    ),
    "versions": (host_checks.check_versions, INSTALL),
    "machine": (
        host_checks.check_machine,
        "fewer workers, or more cores (taskset, cgroup, --cpus of docker)",
    ),
    "torch": (
        device_checks.check_torch,
        f"{INSTALL}; a GPU needs a driver that supports the CUDA version that torch was built for, "
        "see the line `driver`: update it, or choose a torch for an older CUDA",
    ),
    "bytecode": (
        host_checks.check_bytecode,
        "`uv sync --compile-bytecode` compiles them; PYTHONDONTWRITEBYTECODE, or a folder that "
        "cannot be written, kept Python from it",
    ),
    "warp": (
        device_checks.check_warp,
        f"{INSTALL}; a GPU needs a driver at least as new as warp's CUDA version; WARP_CACHE_PATH "
        "names a folder for kernels, which must be writable and have 1 GiB free",
    ),
    "gpu": (
        device_checks.check_gpu,
        "`nvidia-smi` shows who uses this GPU and its compute mode: end them, or choose another by "
        "--gpu-ids",
    ),
    "all-reduce": (
        device_checks.check_all_reduce,
        "the loopback interface must be up and unfiltered (`ip link set lo up`). NCCL: "
        "NCCL_DEBUG=INFO says more, then try NCCL_P2P_DISABLE=1, NCCL_SHM_DISABLE=1, in a "
        "container `--shm-size=1g`; --backend gloo tells whether NCCL is at fault; "
        "docs/distributed.md has more",
    ),
    "rendering": (
        device_checks.check_rendering,
        "only videos need it. Debian: `apt install libegl1 libgl1-mesa-dri`, or `apt install "
        "libosmesa6` for MUJOCO_GL=osmesa. GPUs in a container: NVIDIA_DRIVER_CAPABILITIES=all",
    ),
    "log root": (
        host_checks.check_log_root,
        "choose another folder by --log-root: writable, on a disk with 1 GiB free",
    ),
    "ports": (
        host_checks.check_ports,
        "the loopback interface must be up (`ip link set lo up`) and without a firewall",
    ),
    "host name": (
        host_checks.check_host_name,
        "only runs on several hosts need it: add a line for it to /etc/hosts",
    ),
    "W&B": (
        host_checks.check_wandb,
        "only --agent.logger wandb needs it: `wandb login`, or WANDB_API_KEY",
    ),
}
"""The checks by name, each with what the user can do if it fails."""


def main(name: str, request: str) -> None:
    """Make a check, write its finding to standard output as JSON, and exit; 1 if it is FAIL."""
    die_with_parent()
    output = os.dup(1)
    os.dup2(2, 1)  # Keeps what libraries print out of the JSON.
    args, rank = json.loads(request)
    try:
        finding = CHECKS[name][0](WorkerArgs(**args), Rank(**rank))
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
