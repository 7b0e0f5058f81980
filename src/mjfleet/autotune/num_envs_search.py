"""`--env.num-envs auto`: doubles the number of environments per worker while training gets faster.

Runs in the launching process, which imports nothing heavy, before anything is created.
"""

import hashlib
import json
import os
import select
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from signal import SIGKILL
from typing import Any

from platformdirs import user_cache_path

from mjfleet.autotune.num_envs_trial import TrialResult
from mjfleet.errors import UserError, WorkerError
from mjfleet.runs.run_json import now
from mjfleet.utils.atomic_write import digests, write_atomically
from mjfleet.utils.child_process import ChildProcess, python_module
from mjfleet.utils.console import print_line
from mjfleet.utils.hardware_names import usable_cores
from mjfleet.utils.packages import stack_versions
from mjfleet.worker.stop_signals import StopRequest
from mjfleet.worker.thread_limits import thread_variables
from mjfleet.worker.worker_args import WorkerArgs

SMALLEST, LARGEST = 256, 1 << 20  # Environments per worker that are tried first, and at most.
BUDGET_SECONDS = 60.0  # For all trials but the first, which may have to compile kernels.
GAIN = 1.05  # Twice as many environments are worth it where throughput grows by this factor.
FULL = 0.85  # Share of the memory in use at which too little is left for anything else.
STDERR_LINES = 30  # How many of a failed trial's last lines are shown.
IRRELEVANT = (
    "seed", "max_iterations", "save_interval", "init_at_random_ep_len", "experiment_name",
    "run_name", "logger", "wandb",
)  # fmt: skip
"""Fields of AgentConfig on which throughput does not depend."""

Curve = Sequence[TrialResult]
"""The results of one worker: some number of environments, twice as many, and so on; not empty."""


@dataclass(frozen=True)
class Answer:
    """The curves of all workers, and when they were measured."""

    when: str
    curves: Sequence[Curve]

    @property
    def num_envs(self) -> int:
        """The number of environments per worker that suits every worker."""
        return min(map(choose, self.curves))

    def table(self) -> str:
        """Format the throughput of all workers, and the memory of the one that has least left."""
        rows = [("worlds per worker", "steps/s", "memory")]
        for results in zip(*self.curves, strict=False):  # A worker may have ended earlier.
            speed = sum(result.steps_per_second for result in results)
            memory = max(result.memory for result in results)
            rows.append((str(results[0].num_envs), f"{speed:,.0f}", f"{memory:.0%}"))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join("  ".join(map(str.rjust, row, widths)) for row in rows)


def find_num_envs(
    args: WorkerArgs,
    device_names: Sequence[str],
    largest: int = LARGEST,
    say: Callable[[str], object] = print_line,
) -> int:
    """Return the number of environments per worker: as measured earlier, or measured now.

    What `args` says of that number is ignored; `device_names` are the models of the devices of all
    workers that measure on this host. `say` receives lines for the user.

    Raises:
        UserError: a trial found a mistake of the user's.
        WorkerError: a trial failed.
        Stopped: a signal arrived; nothing is left.
    """
    if answer := recall(args, device_names):
        note = f"as measured at {answer.when}; to measure anew, remove {cache_file()}"
    else:
        answer = Answer(now(), _measure(args, largest, say))
        kept = remember(args, device_names, answer)
        note = f"remembered in {cache_file()}" if kept else "not remembered: no folder for it"
    say(f"{answer.table()}\n{answer.num_envs} worlds per worker, {note}")
    return answer.num_envs


def choose(curve: Curve) -> int:
    """Return the number of environments up to which every doubling was worth it."""
    chosen = curve[0]
    for before, after in pairwise(curve):
        if after.memory >= FULL or after.steps_per_second < GAIN * before.steps_per_second:
            break
        chosen = after
    return chosen.num_envs


def is_done(curve: Curve) -> bool:
    """Return whether twice as many environments gain nothing or would fill the memory."""
    expected = curve[-1].memory
    if len(curve) > 1:  # The last doubling added this much; the next one adds twice that.
        expected += 2 * max(0.0, curve[-1].memory - curve[-2].memory)
    return choose(curve) != curve[-1].num_envs or expected >= FULL


def cache_file() -> Path:
    """Return the file in which answers are kept."""
    return user_cache_path("mjfleet") / "num_envs.json"


def recall(args: WorkerArgs, device_names: Sequence[str]) -> Answer | None:
    """Return what was measured here for the same training, if the file can be read."""
    try:
        entry = _read_cache()[_key(args, device_names)]
        curves = [[TrialResult(**result) for result in curve] for curve in entry["curves"]]
    except (KeyError, TypeError):
        return None
    return Answer(entry["when"], curves) if curves and all(curves) else None


def remember(args: WorkerArgs, device_names: Sequence[str], answer: Answer) -> bool:
    """Keep an answer, if possible; a damaged file is replaced."""
    entry = {"task": args.task, **asdict(answer)}
    text = json.dumps(_read_cache() | {_key(args, device_names): entry}, indent=1) + "\n"
    try:
        cache_file().parent.mkdir(parents=True, exist_ok=True)
        write_atomically(cache_file(), lambda file: file.write(text.encode()))
    except OSError:
        return False
    return True


def _read_cache() -> dict[str, Any]:
    try:
        entries = json.loads(cache_file().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return entries if isinstance(entries, dict) else {}


def _key(args: WorkerArgs, device_names: Sequence[str]) -> str:
    """Return a digest of everything that throughput depends on."""
    env, agent = args.config["env"].items(), args.config["agent"].items()
    everything = {
        "task": args.task,
        "files": digests(Path(args.task_folder)),
        "env": {name: value for name, value in env if name != "num_envs"},
        "agent": {name: value for name, value in agent if name not in IRRELEVANT},
        "engine": args.engine,
        "devices": list(device_names),
        "cores": usable_cores(),
        "threads": args.threads,
        "versions": stack_versions(),
    }
    return hashlib.sha256(json.dumps(everything).encode()).hexdigest()


def _measure(args: WorkerArgs, largest: int, say: Callable[[str], object]) -> list[Curve]:
    """Have all workers train with the same number at the same time: they share the machine."""
    with StopRequest().installed(), ExitStack() as stack:
        trials = [stack.enter_context(_Trials(args, place)) for place in range(len(args.devices))]
        devices = ", ".join(args.devices)
        say(f"--env.num-envs auto: measuring how many worlds train fastest on {devices}")
        for trial in trials:
            trial.receive()
        num_envs, deadline = SMALLEST, float("inf")
        while num_envs <= largest:
            # Where a doubling seems to gain nothing, the machine may have been busy: try again.
            for number in (num_envs, num_envs // 2, num_envs):
                for trial in trials:
                    trial.ask(number)
                if not all(trial.receive() for trial in trials):
                    return [trial.curve for trial in trials]
                if all(choose(trial.curve) == num_envs for trial in trials):
                    break
            if num_envs == SMALLEST:
                deadline = time.monotonic() + BUDGET_SECONDS
            num_envs *= 2
            steps = 3 * num_envs * args.config["agent"]["num_steps_per_env"]
            curves = [trial.curve for trial in trials]
            expected = steps / min(curve[-1].steps_per_second for curve in curves)
            # The smallest answer counts: when one worker is done, the others need not go on.
            if any(map(is_done, curves)) or time.monotonic() + expected > deadline:
                break
        return [trial.curve for trial in trials]


class _Trials(ChildProcess):
    """The trials of one worker, see num_envs_trial.py."""

    def __init__(self, args: WorkerArgs, place: int) -> None:
        """Start the process with the environment variables that the worker will have."""
        self._device, self._patience = args.devices[place], args.config["hang_timeout"] or None
        self._best: dict[int, TrialResult] = {}
        rank, variables = args.rank_of(place), {}
        if rank.world_size > 1:
            places = {"RANK": place, "LOCAL_RANK": place, "WORLD_SIZE": rank.world_size}
            variables = thread_variables(args.threads) | {k: str(v) for k, v in places.items()}
        request = json.dumps([asdict(args), asdict(rank)])
        command = python_module("mjfleet.autotune.num_envs_trial", request)
        super().__init__(command, environ=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    @property
    def curve(self) -> Curve:
        """The fastest result for each number of environments."""
        return list(self._best.values())

    def ask(self, num_envs: int) -> None:
        """Have it train with a number of environments."""
        assert self.stdin
        with suppress(BrokenPipeError):  # It has ended, as `receive` finds.
            os.write(self.stdin.fileno(), b"%d\n" % num_envs)

    def receive(self) -> bool:
        """Wait until it is ready or has trained; return False if it ended for want of memory.

        Raises:
            UserError: it has found a mistake of the user's.
            WorkerError: it has failed otherwise, or was silent for the hang time-out.
        """
        assert self.stdout
        if not select.select([self.stdout], [], [], self._patience)[0]:
            waited = f"{self._patience:g} s (--hang-timeout)"
            raise WorkerError(f"--env.num-envs auto: measured nothing for {waited}")
        if line := self.stdout.readline():
            told = json.loads(line)
            if "mistake" in told:
                raise UserError(told["mistake"])
            if told:
                new = TrialResult(**told)
                old = self._best.get(new.num_envs, new)
                self._best[new.num_envs] = max(old, new, key=lambda one: one.steps_per_second)
            return True
        if self.wait() in (0, -SIGKILL) and self._best:  # Linux kills for want of memory.
            return False
        last = "\n".join(self.errors().rstrip().splitlines()[-STDERR_LINES:])
        failed = f"--env.num-envs auto: measuring on {self._device} failed"
        raise WorkerError(f"{last}\n{failed}: {self.how_it_ended()}".lstrip())
