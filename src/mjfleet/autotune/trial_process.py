"""A child that measures for one worker, as the launching process sees it."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from mjfleet.autotune.num_envs_trial import Measured
from mjfleet.config import TrainConfig
from mjfleet.errors import UserError, WorkerError
from mjfleet.launch.agent import worker_environment
from mjfleet.launch.launch_plan import LaunchPlan, PlannedWorker
from mjfleet.launch.launcher import make_worker_args
from mjfleet.utils.parent_death import PARENT_VARIABLE
from mjfleet.worker.rank_environment import Rank

STDERR_LINES = 30
"""How much of what a child said last is shown when it fails."""


class Measurer:
    """A process that measures: the leader of a group and session of its own."""

    def __init__(self, plan: LaunchPlan, config: TrainConfig, worker: PlannedWorker) -> None:
        """Start it with the environment variables that the worker would have."""
        self.device = worker.device
        self.asked = 0
        """How many times it was to measure."""
        size, number = plan.world_size, worker.rank
        rank = Rank(rank=number, local_rank=number, world_size=size, local_world_size=size)
        request = {"job": asdict(make_worker_args(plan, config)), "rank": asdict(rank)}
        environ = os.environ | {PARENT_VARIABLE: str(os.getpid())}
        if plan.launcher != "in-process":
            places = {"RANK": number, "LOCAL_RANK": number, "WORLD_SIZE": size}
            environ |= worker_environment(plan.threads) | {k: str(v) for k, v in places.items()}
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "mjfleet.autotune.num_envs_trial", json.dumps(request)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=errors,
                start_new_session=True,
                env=environ,
            )
            self._output, self._errors = os.dup(output.fileno()), os.dup(errors.fileno())

    def end(self) -> None:
        """Kill it and all that it has started, if it has not ended."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        if self.process.stdin:
            self.process.stdin.close()
        os.close(self._output)
        os.close(self._errors)

    def ask(self, sizes: Sequence[int]) -> None:
        """Have it measure with each of these numbers of worlds; one that has ended is not asked."""
        assert self.process.stdin is not None
        self.asked += len(sizes)
        with suppress(BrokenPipeError):
            self.process.stdin.write("".join(f"{worlds}\n" for worlds in sizes).encode())
            self.process.stdin.flush()

    def lines(self) -> list[dict[str, Any]]:
        """What it has written.

        Raises:
            UserError: it has found a mistake of the user's.
        """
        whole, _, _ = _read(self._output).rpartition(b"\n")
        lines = [json.loads(line) for line in whole.splitlines()]
        if lines and "mistake" in lines[-1]:
            raise UserError(lines[-1]["mistake"])
        return lines

    def curve(self) -> tuple[Measured, ...]:
        """What it has measured: of each number of worlds the fastest."""
        best: dict[int, Measured] = {}
        for measured in (Measured(**line) for line in self.lines()[1:]):
            other = best.get(measured.worlds, measured)
            best[measured.worlds] = max(measured, other, key=lambda m: m.steps_per_second)
        return tuple(best.values())

    def has_ended(self) -> bool:
        """Whether it has ended, which is for want of memory.

        Raises:
            UserError: it has found a mistake of the user's.
            WorkerError: it has failed.
        """
        code = self.process.poll()
        if code is None:
            return False
        # The system kills who takes more memory than there is.
        if len(self.lines()) < 2 or code not in (0, -signal.SIGKILL):
            raise WorkerError(self._story())
        return True

    def _story(self) -> str:
        said = _read(self._errors).decode(errors="replace").rstrip().splitlines()
        code = self.process.returncode
        how = f"ended with code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"
        last = "\n".join(said[-STDERR_LINES:])
        return f"{last}\n--env.num-envs auto: measuring on {self.device} failed: {how}".lstrip()


def _read(file: int) -> bytes:
    """All of a file; to seek would move the place where the child writes."""
    return os.pread(file, os.fstat(file).st_size, 0)
