"""`--env.num-envs auto`: has every worker of a plan measure, and takes the smallest answer.

Runs in the launching process, which imports nothing heavy, before anything is created.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import IO

from mjfleet.config import TrainConfig
from mjfleet.errors import UserError, WorkerError
from mjfleet.launch.agent import worker_environment
from mjfleet.launch.launcher import make_job
from mjfleet.launch.plan import LaunchPlan
from mjfleet.launch.remembered import Curves, cache_file, recall, remember
from mjfleet.tell import tell
from mjfleet.worker.job import Rank
from mjfleet.worker.stop import PARENT_VARIABLE, StopRequest
from mjfleet.worker.worlds import LARGEST, SMALLEST, Measured, choose

STDERR_LINES = 30
"""How much of what a child said last is shown when it fails."""


def find_worlds(plan: LaunchPlan, config: TrainConfig, largest: int = LARGEST) -> int:
    """The worlds of each worker: what was remembered, or else measured now, shown as a curve.

    Args:
        plan: who is to run where.
        config: the configuration, whose number of worlds is not looked at.
        largest: worlds per worker that are not exceeded.

    Raises:
        UserError: a worker found a mistake of the user's.
        WorkerError: a worker failed.
        Stopped: a signal arrived; nothing is left.
    """
    if answer := recall(plan, config):
        when, curves = answer
        what = f"as measured at {when}; to measure anew, remove {cache_file()}"
    else:
        config.with_worlds(SMALLEST)  # A mistake in the numbers is told at once.
        curves = _measure(plan, config, largest)
        kept = remember(plan, config, curves)
        what = f"remembered in {cache_file()}" if kept else "not remembered: no folder for it"
    tell(f"{table(curves)}\n{smallest(curves)} worlds per worker, {what}")
    return smallest(curves)


def smallest(curves: Curves) -> int:
    """The answer that suits every worker."""
    return min(choose(curve) for curve in curves)


def table(curves: Curves) -> str:
    """Steps per second of all workers together, and the memory of the one that has least left."""
    rows = [("worlds per worker", "steps/s", "memory")]
    for same in zip(*curves, strict=False):  # A worker may have had enough before the others.
        speed = sum(measured.steps_per_second for measured in same)
        memory = max(measured.memory for measured in same)
        rows.append((str(same[0].worlds), f"{speed:,.0f}", f"{memory:.0%}"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.rjust, row, widths)) for row in rows)


def _measure(plan: LaunchPlan, config: TrainConfig, largest: int) -> Curves:
    """Let all workers measure at the same time: they share the machine."""
    job, alone = make_job(plan, config), plan.launcher == "in-process"
    with StopRequest().installed(), ExitStack() as stack:
        children = []
        for index, worker in enumerate(plan.workers):
            size = plan.world_size
            rank = Rank(rank=index, local_rank=index, world_size=size, local_world_size=size)
            request = {"job": asdict(job), "rank": asdict(rank), "largest": largest}
            files = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(2)]
            places = {"RANK": index, "LOCAL_RANK": index, "WORLD_SIZE": size}
            own = worker_environment(plan.threads) | {k: str(v) for k, v in places.items()}
            process = subprocess.Popen(
                [sys.executable, "-m", "mjfleet.worker.worlds", json.dumps(request)],
                stdin=subprocess.DEVNULL,
                stdout=files[0],
                stderr=files[1],
                start_new_session=True,
                env=os.environ | ({} if alone else own) | {PARENT_VARIABLE: str(os.getpid())},
            )
            children.append(_Child(worker.device, process, *files))
            stack.callback(children[-1].end)
        devices = ", ".join(worker.device for worker in plan.workers)
        tell(f"--env.num-envs auto: measuring how many worlds train fastest on {devices}")
        _wait(children, config.hang_timeout)
        return tuple(child.curve() for child in children)


@dataclass(frozen=True)
class _Child:
    """A process that measures: the leader of a group and session of its own."""

    device: str
    process: "subprocess.Popen[bytes]"
    output: IO[bytes]
    errors: IO[bytes]

    def end(self) -> None:
        """Kill it and all that it has started, if it has not ended."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def curve(self) -> tuple[Measured, ...]:
        """What it has measured, once it has ended."""
        self.output.seek(0)
        lines = [json.loads(line) for line in self.output.read().splitlines()]
        if lines and "mistake" in lines[-1]:
            raise UserError(lines[-1]["mistake"])
        # The system kills who takes more memory than there is.
        if not lines or self.process.returncode not in (0, -signal.SIGKILL):
            raise WorkerError(self._story())
        return tuple(Measured(**line) for line in lines)

    def _story(self) -> str:
        self.errors.seek(0)
        said = self.errors.read().decode(errors="replace").rstrip().splitlines()
        code = self.process.returncode
        how = f"ended with code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"
        last = "\n".join(said[-STDERR_LINES:])
        return f"{last}\n--env.num-envs auto: measuring on {self.device} failed: {how}".lstrip()


def _wait(children: Sequence[_Child], patience: float) -> None:
    """Until all have ended.

    Raises:
        UserError: one has found a mistake of the user's.
        WorkerError: one has failed, or all were silent for `patience` seconds, 0 for ever.
    """
    said, since = 0, time.monotonic()
    while None in (codes := [child.process.poll() for child in children]):
        for child, code in zip(children, codes, strict=True):
            if code not in (None, 0, -signal.SIGKILL):
                child.curve()  # Says why.
        written = sum(os.fstat(child.output.fileno()).st_size for child in children)
        if written != said:
            said, since = written, time.monotonic()
        if patience and time.monotonic() - since > patience:
            raise WorkerError(
                f"--env.num-envs auto: measured nothing for {patience:g} s (--hang-timeout)"
            )
        time.sleep(0.02)
