"""Turns --total-steps into a number of iterations. Runs in the launcher."""

import math
from dataclasses import replace

from mjfleet.launch.launch_plan import LaunchPlan
from mjfleet.runs.checkpoints import counted
from mjfleet.runs.metrics_csv import METRICS_FILE, read_rows, value
from mjfleet.runs.start import Start


def limit_steps(plan: LaunchPlan, start: Start) -> LaunchPlan:
    """Return the plan with the iterations that reach --total-steps, which must be set.

    Steps and iterations before the checkpoint of `start` count.
    """
    total, iteration_steps = plan.config.total_steps, plan.steps_per_iteration
    assert total is not None
    iterations = steps = 0
    if start.checkpoint and start.iteration:
        iterations, steps = start.iteration, counted(start.checkpoint, "total_steps") or 0
        if not steps:  # Checkpoints of earlier versions do not say it.
            metrics = start.checkpoint.absolute().parent.parent / METRICS_FILE
            rows = read_rows(metrics, iterations)[1]
            steps = int(
                (value(rows[-1], "total_steps") if rows else None) or iterations * iteration_steps
            )
    iterations += max(0, math.ceil((total - steps) / iteration_steps))
    agent = replace(plan.config.agent, max_iterations=iterations)
    note = f"--total-steps {total}: {iterations} iterations, of {iteration_steps} steps each"
    config = replace(plan.config, agent=agent)
    return replace(plan, config=config, notes=(*plan.notes, note))
