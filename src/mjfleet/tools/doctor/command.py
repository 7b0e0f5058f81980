"""`mjfleet doctor [flags]`: whether this machine can train, one line for each thing it takes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import tyro

from mjfleet.cli.flags import PARSERS, STYLE
from mjfleet.config import LaunchConfig
from mjfleet.config.train_config import GpuRequest
from mjfleet.config.validation import above, check
from mjfleet.errors import Stopped
from mjfleet.tools.doctor.run_checks import diagnose
from mjfleet.utils.console import print_line
from mjfleet.worker.stop_signals import StopRequest


@dataclass(frozen=True, kw_only=True)
class DoctorArguments:
    """Check what training on these devices needs, and say what to do where it is missing."""

    flags: ClassVar[str] = ""

    gpu_ids: GpuRequest = "auto"
    """`auto` (GPU 0, else the CPU), `all`, `None` (the CPU), or indices of visible GPUs."""
    cpu_workers: int | None = None
    """Workers on the CPU; `None`: one, where no GPU is used."""
    backend: Literal["auto", "nccl", "gloo"] = "auto"
    """How workers talk to each other; `auto`: nccl on GPUs, gloo on the CPU."""
    log_root: str = "logs"
    """Folder under which run directories would be made."""
    timeout: float = 60.0
    """Seconds after which a check that does not answer has failed."""

    def __post_init__(self) -> None:
        check(self, timeout=above(0))
        self.launch_config()

    def launch_config(self) -> LaunchConfig:
        """The same flags of a training run, checked by its rules."""
        return LaunchConfig(
            gpu_ids=self.gpu_ids,
            cpu_workers=self.cpu_workers,
            backend=self.backend,
            log_root=self.log_root,
            collective_timeout=self.timeout,
        )


def doctor(arguments: Sequence[str]) -> int:
    """Print a line for each check as it ends; 1 if anything that training needs failed."""
    parsed = tyro.cli(
        DoctorArguments, args=arguments, prog="mjfleet doctor", config=STYLE, registry=PARSERS
    )
    failed = False
    try:
        with StopRequest().installed():
            for name, finding in diagnose(parsed.launch_config()):
                print_line(f"{finding.status:<4}  {name + ':':<18}{finding.found}")
                if finding.todo:
                    print_line(f"      to do: {finding.todo}")
                failed |= finding.status == "FAIL"
    except Stopped as stopped:
        return 128 + stopped.signal_number
    return 1 if failed else 0
