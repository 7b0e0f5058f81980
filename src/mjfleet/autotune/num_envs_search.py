"""`--env.num-envs auto`: has every worker of a plan measure, and takes the smallest answer.

Runs in the launching process, which imports nothing heavy, before anything is created.
"""

import time
from collections.abc import Sequence
from contextlib import ExitStack

from mjfleet.autotune.num_envs_trial import choose, is_done
from mjfleet.autotune.remembered import Curves, cache_file, recall, remember
from mjfleet.autotune.trial_process import Measurer
from mjfleet.config import TrainConfig
from mjfleet.errors import WorkerError
from mjfleet.launch.launch_plan import LaunchPlan
from mjfleet.utils.console import print_line
from mjfleet.worker.stop_signals import StopRequest

SMALLEST, LARGEST = 256, 1 << 20
"""Worlds to begin with, and those that are not exceeded."""
BUDGET_SECONDS = 60.0
"""For all numbers of worlds but the first, whose kernels may have to be compiled."""


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
        config.with_num_envs(SMALLEST)  # A mistake in the numbers is told at once.
        curves = _measure(plan, config, largest)
        kept = remember(plan, config, curves)
        what = f"remembered in {cache_file()}" if kept else "not remembered: no folder for it"
    print_line(f"{table(curves)}\n{smallest(curves)} worlds per worker, {what}")
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
    """Let all workers measure the same at the same time: they share the machine."""
    with StopRequest().installed(), ExitStack() as stack:
        children: list[Measurer] = []
        for worker in plan.workers:
            children.append(Measurer(plan, config, worker))
            stack.callback(children[-1].end)
        devices = ", ".join(worker.device for worker in plan.workers)
        print_line(f"--env.num-envs auto: measuring how many worlds train fastest on {devices}")
        _wait(children, config.hang_timeout)
        worlds, deadline = SMALLEST, float("inf")
        while worlds <= largest:
            # Where twice the worlds seem to gain nothing, the machine may have been busy just then.
            for asked in ([worlds], [worlds // 2, worlds]):
                for child in children:
                    child.ask(asked)
                has_all = _wait(children, config.hang_timeout)
                curves = [child.curve() for child in children]
                if not has_all or all(choose(curve) == worlds for curve in curves):
                    break
            if not has_all:
                break
            if worlds == SMALLEST:
                deadline = time.monotonic() + BUDGET_SECONDS
            worlds *= 2
            steps = 3 * worlds * config.agent.num_steps_per_env
            expected = steps / min(curve[-1].steps_per_second for curve in curves)
            # The answer of one that is done is at most what the others would find.
            if any(map(is_done, curves)) or time.monotonic() + expected > deadline:
                break
        return tuple(child.curve() for child in children)


def _wait(children: Sequence[Measurer], patience: float) -> bool:
    """Wait until all are ready and have measured what they were asked; False: one has ended before.

    Raises:
        UserError: one has found a mistake of the user's.
        WorkerError: one has failed, or not all were done within `patience` seconds, 0 for ever.
    """
    deadline = time.monotonic() + (patience or float("inf"))
    while any(len(child.lines()) <= child.asked for child in children):
        if any(child.has_ended() for child in children):
            return False
        if time.monotonic() > deadline:
            raise WorkerError(
                f"--env.num-envs auto: measured nothing for {patience:g} s (--hang-timeout)"
            )
        time.sleep(0.02)
    return True
