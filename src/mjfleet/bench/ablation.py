"""`mjfleet bench ablation`: what training loses without each trick for CPUs. In the launcher."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from mjfleet.bench.benchmark_options import Options, Setup
from mjfleet.bench.result import Result, Spread, Table, write_text
from mjfleet.bench.timed_training import train_ours
from mjfleet.config.validation import Count
from mjfleet.errors import UserError
from mjfleet.registry import discover
from mjfleet.worker.thread_limits import THRESHOLDS

TRICKS = {
    "closed-form gradients": "PPO's gradients are computed in closed form, and not by autograd",
    "learning threads": "several threads share each minibatch, and meet once",
    "sleeping threads": "OpenMP's threads sleep while they wait for each other, and do not spin",
    "kept memory": "freed memory is used again, and not given back to the system",
}
WITHOUT: dict[str, tuple[Sequence[str], dict[str, str]]] = {
    "closed-form gradients": (("--agent.algorithm.backprop", "autograd"), {}),
    "learning threads": (("--agent.algorithm.learning-threads", "1"), {}),
    "sleeping threads": ((), {"OMP_WAIT_POLICY": "ACTIVE"}),
    "kept memory": ((), dict.fromkeys(THRESHOLDS, "131072")),
}
"""The flags and environment variables with which users do without each trick."""
BEGIN, END = "<!-- mjfleet bench ablation: begin -->", "<!-- mjfleet bench ablation: end -->"
NOTES = (
    "Env steps per second, end to end, without the trick against those with all of them: medians "
    "of the pairs, with the least and the greatest. The two runs of a pair follow each other.",
)


@dataclass(frozen=True, kw_only=True)
class AblationOptions(Options):
    """Speed of training without each of the tricks that make it faster on CPUs."""

    task = "cartpole-balance"

    gpu_ids: list[int] | Literal["auto", "all"] | None = None
    """`None` (the CPU), which the tricks are for."""
    also: tuple[str, ...] = ("go1-velocity-flat",)
    """Further tasks to measure."""
    num_envs: Count = 1024
    """Environments."""
    page: str | None = None
    """Page to write the table into, between its markers, such as docs/speed.md."""


def ablation(setup: Setup, options: AblationOptions) -> Result:
    """Train with everything and without each trick in turn, and write the table into the page.

    UserError if the page has no place for the table, or there is no such task.
    """
    if options.page is not None:
        write_between_markers(Path(options.page), None)
    tasks = discover(os.environ)
    names = list(dict.fromkeys([setup.found.name, *options.also]))
    setups = {name: replace(setup, found=tasks.find(name)) for name in names}

    def measure(task: str, trick: str) -> dict[str, float]:
        flags, environ = WITHOUT[trick]
        config = setups[task].config(options.num_envs)
        usual, _ = train_ours(setups[task], config)
        without, _ = train_ours(setups[task], config, flags, environ)
        return {"with": usual["steps_per_second"], "without": without["steps_per_second"]}

    keys = [{"task": task, "trick": trick} for task in names for trick in TRICKS]
    samples = setup.rounds(keys, measure, "{task} without {trick}")
    ratios: dict[tuple[str, str], list[float]] = {}
    for s in samples:
        ratios.setdefault((s["task"], s["trick"]), []).append(s["without"] / s["with"])
    rows = [
        [trick, what, *(Spread.of(ratios[task, trick]) for task in names), options.repeats]
        for trick, what in TRICKS.items()
    ]
    table = Table("Speed without each trick", ["trick", "what it is", *names, "pairs"], rows)
    if options.page is not None:
        write_between_markers(Path(options.page), table.markdown())
    title = f"Ablation on {setup.kind}: {options.num_envs} environments"
    return Result(f"ablation-{setup.kind}", title, [table], NOTES, samples)


def write_between_markers(page: Path, text: str | None) -> None:
    """Replace what is between a page's markers; None: only raise UserError if it lacks them."""
    try:
        head, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
        _, end, tail = rest.partition(END)
    except OSError as error:
        raise UserError(f"--page {page}: {error.strerror}.") from None
    if not (begin and end):
        raise UserError(f"--page {page}: it lacks the lines {BEGIN} and {END}.")
    if text is not None:
        write_text(page, f"{head}{BEGIN}\n\n{text}\n\n{END}{tail}")
