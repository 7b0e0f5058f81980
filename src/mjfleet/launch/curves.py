"""The picture of a run's curves that its end leaves behind. Runs in the launching process."""

import logging
import os
import subprocess
import sys
from pathlib import Path

from mjfleet.errors import Stopped
from mjfleet.runs.metrics_csv import completed_iterations
from mjfleet.utils.console import in_a_line, print_line
from mjfleet.utils.parent_death import PARENT_VARIABLE
from mjfleet.worker.stop_signals import StopRequest

FEW = 10
"""A run of fewer iterations has no curves to look at."""
LONGEST_SECONDS = 15.0
"""matplotlib's first start on a machine with many fonts takes several."""

logger = logging.getLogger(__name__)


def is_for_a_person() -> bool:
    """Whether nothing of ours, such as a benchmark, has started this process. Ask it early."""
    own = str(os.getpid())
    return os.environ.get(PARENT_VARIABLE, own) == own


def draw_curves(run_dir: Path) -> None:
    """Draw what `mjfleet plot` draws. Whatever goes wrong is worth a warning; a signal ends it.

    In a process of its own: matplotlib would add to the memory of one that has just trained, and
    can be given up there.
    """
    if completed_iterations(run_dir) < FEW:
        return
    # Like a command: what lies in this folder is not imported.
    command = [sys.executable, "-P", "-m", "mjfleet.cli.dispatcher", "plot", str(run_dir)]
    try:
        with StopRequest().installed():
            drawn = subprocess.run(
                command,
                check=False,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=LONGEST_SECONDS,
            )
    except Stopped:
        return
    except subprocess.TimeoutExpired:
        _warn(f"it took longer than {LONGEST_SECONDS:g} s")
    except OSError as error:
        _warn(in_a_line(error))
    else:
        if drawn.returncode:
            _warn((drawn.stderr.strip() or f"exit code {drawn.returncode}").splitlines()[-1])
        else:
            print_line(drawn.stdout.strip())


def _warn(why: str) -> None:
    logger.warning("the run's curves were not drawn (`mjfleet plot` tries again): %s", why)
