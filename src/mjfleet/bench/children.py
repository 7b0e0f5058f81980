"""Child processes that are measured: their lines with the time of each, and their memory.

Runs in the launching process. A child is the leader of a session of its own, so that Ctrl-C reaches
this process alone, which ends the child; and it dies with this process, however that ends.
"""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from mjfleet.errors import WorkerError
from mjfleet.utils.parent_death import PARENT_VARIABLE, die_with_parent

STOP_SECONDS = 3.0
"""How long a child that is asked to end may take."""
TOLD = 2000
"""Characters of a failed child's output that are shown."""


@dataclass(frozen=True)
class Finished:
    """A child that ended well."""

    lines: Sequence[tuple[float, str]]
    """What it printed, each line with the seconds since it was started."""
    seconds: float
    """From its start to its end."""
    peak_memory: int
    """Bytes: the greatest resident set of it or of any one process that it waited for."""
    errors: str
    """What it wrote to standard error."""

    def times_of(self, start: str) -> list[float]:
        """The seconds of the lines that begin so."""
        return [seconds for seconds, line in self.lines if line.startswith(start)]

    def time_of(self, text: str) -> float:
        """The seconds of the first line that holds this text."""
        return next(seconds for seconds, line in self.lines if text in line)


def run_child(
    command: Sequence[str], scratch: Path, environ: Mapping[str, str] | None = None
) -> Finished:
    """Run a command until it ends.

    Args:
        command: program and arguments.
        scratch: where it stands, and leaves its temporary files.
        environ: variables besides those of this process.

    Raises:
        WorkerError: it failed; the text holds the end of what it said.
    """
    own = {PARENT_VARIABLE: str(os.getpid()), "TMPDIR": str(scratch)}
    # Neither side is to compile in every process what it imports, wherever this runs.
    inherited = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    errors = scratch / "stderr"
    with errors.open("wb") as file:
        start = time.perf_counter()
        process = subprocess.Popen(
            command,
            cwd=scratch,
            env={**inherited, **own, **(environ or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=file,
            start_new_session=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509  This process has no other threads.
        )
        try:
            assert process.stdout is not None
            with process.stdout:
                lines = [
                    (time.perf_counter() - start, line.decode(errors="replace").rstrip("\n"))
                    for line in process.stdout
                ]
            _, status, usage = os.wait4(process.pid, 0)
            seconds = time.perf_counter() - start
            process.returncode = os.waitstatus_to_exitcode(status)
        finally:
            if process.returncode is None:
                _end(process)
    text = errors.read_text(errors="replace")
    if process.returncode:
        said = text or "\n".join(line for _, line in lines)
        how = f"ended with exit code {process.returncode}"
        raise WorkerError(f"{' '.join(command[:4])} ... {how}\n{said[-TOLD:].strip()}")
    return Finished(lines, seconds, usage.ru_maxrss * 1024, text)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Ask a child to end, then make it; what it has started ends with it."""
    try:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
