"""What `--version` after any command prints. Runs in the process that the user started."""

import sys
from collections.abc import Sequence

from mjfleet.cli.run_command import run_command
from mjfleet.utils.hardware_names import count_gpus, cpu_name, gpu_name
from mjfleet.utils.packages import stack_versions


def main() -> None:
    """Print versions and devices, whatever the command is."""
    sys.exit(run_command(_print_versions, ()))


def _print_versions(_: Sequence[str]) -> int:
    """Print the versions of mjfleet and of what it stands on, and this machine's devices."""
    for name, version in stack_versions().items():
        print(name, version)
    print("CPU", cpu_name())
    for number in range(count_gpus()):
        print(f"GPU {number}", gpu_name(str(number)))
    return 0
