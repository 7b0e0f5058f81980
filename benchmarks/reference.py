"""What a task's own settings learn, over seeds; added to the tasks in the output folder.

python benchmarks/reference.py [TASK] [flags]
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

from learning import mean_line
from mjfleet.bench.benchmark import Options, Setup, run_script
from mjfleet.bench.result import Cell, Result, Spread, Table, our_commit, show
from mjfleet.bench.timed_training import run_timed, train_timed
from mjfleet.config.train_config import decides_learning
from mjfleet.config.validation import MAX_COUNT, Count, between
from mjfleet.errors import UserError
from mjfleet.runs.config_yaml import differences
from mjfleet.tools.report.logged_run import STEPS
from mjfleet.tools.report.picture import Panel, draw
from mjfleet.utils.child_process import python_module
from mjfleet.utils.hardware_names import usable_cores

PLAY = python_module("mjfleet.cli.dispatcher", "play")
LAST = 10  # Iterations at the end of a run whose mean counts.
POINTS = 60  # Points of a curve; each is a mean over consecutive iterations.
COLUMNS = (
    *("", "million steps", "minutes", "return in training", "return of the policy"),
    *("metrics of the policy", "seeds", "CPU threads", "commit"),
)
NOTES = (
    "Medians of the seeds, with the least and the greatest. Seeds are trained one after the other, "
    "with the task's own settings. Minutes are from Enter to the end of training. Each task was "
    "added by a command of its own, such as the one above.",
    f"Curves, and the return in training, a mean over the last {LAST} iterations, are of exploring "
    "policies. The policy is that at the end, played with its mean action.",
)


@dataclass(frozen=True, kw_only=True)
class ReferenceOptions(Options):
    """What a task's own settings learn, over seeds. Adds the task to those in the output folder.

    It keeps other seeds of the task that were trained for as many steps.
    """

    iterations: Count = 500
    """Iterations of each run. All are measured: --warmup has no effect."""
    repeats: Count = 3
    """Seeds, each greater by one than the last."""
    seed: Annotated[int, between(0, MAX_COUNT)] = 1
    """The first seed."""
    episodes: Count = 64
    """Episodes of which the policy's return is the mean."""


def reference(setup: Setup, options: ReferenceOptions) -> Result:
    """Train the task with several seeds, and play each policy.

    UserError if the flags change the task's own settings, or the file in the output folder that
    this is added to holds something else.
    """
    name, folder = setup.found.name, Path(options.output)
    changed = filter(decides_learning, differences(setup.base, setup.found.defaults()))
    if flag := next(changed, None):
        flag = flag.replace("_", "-")
        raise UserError(f"--{flag}: reference runs have the task's own settings; leave it out.")
    measured_before(folder)  # Raises before anything is trained.
    seeds = iter(range(options.seed, options.seed + options.repeats))
    keys = [{"task": name}]
    measured = setup.rounds(keys, lambda task: _train(setup, options, next(seeds)), "{task}")
    again, steps = {sample["seed"] for sample in measured}, measured[0]["steps"]
    tasks: dict[str, list[Any]] = {name: measured}
    for sample in measured_before(folder):  # Read again: hours have passed.
        if sample["task"] != name or (sample["seed"] not in again and sample["steps"] == steps):
            tasks.setdefault(sample["task"], []).append(sample)
    tasks = {task: sorted(tasks[task], key=itemgetter("seed")) for task in sorted(tasks)}
    panels = [
        Panel(STEPS, f"return of {task}", {"return": mean_line([run["curve"] for run in runs])})
        for task, runs in tasks.items()
    ]
    folder.mkdir(parents=True, exist_ok=True)
    draw(folder / "reference.png", panels)
    table = Table("Reference runs", COLUMNS, [_row(task, runs) for task, runs in tasks.items()])
    samples = [run for runs in tasks.values() for run in runs]
    title = f"Reference runs on {setup.kind}"
    return Result("reference", title, [table], NOTES, samples, plots=["reference.png"])


def measured_before(folder: Path) -> list[Mapping[str, Any]]:
    """Return the runs that the file in the output folder holds."""
    file = folder / "reference.json"
    try:
        samples = json.loads(file.read_text())["samples"] if file.exists() else []
        return [sample for sample in samples if sample["curve"]]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{file} is no result of benchmarks/reference.py: {error!r}") from None


def _train(setup: Setup, options: ReferenceOptions, seed: int) -> dict[str, Any]:
    """Train with a seed and play the policy; return what the table needs."""
    config = setup.config(None, seed=seed, max_iterations=options.iterations)
    played, policy = setup.scratch / "played.json", dict[str, float]()

    def play(run: Path) -> None:
        flags = ["--resume", str(run), "--episodes", str(options.episodes), "--output", str(played)]
        run_timed([*PLAY, setup.found.name, *setup.device_flags, *flags], setup.scratch)
        figures = json.loads(played.read_text())
        policy.update((name, figure["mean"]) for name, figure in figures.items())

    rows, child = train_timed(setup.found, config, setup.scratch, look=play)
    points = [(r["total_steps"] / 1e6, r["mean_return"]) for r in rows if "mean_return" in r]
    if not points:
        raise UserError("no episode has ended; more --iterations are needed.")
    length = -(-len(points) // POINTS)
    parts = [points[at : at + length] for at in range(0, len(points), length)]
    return {
        "seed": seed,
        "steps": points[-1][0],
        "minutes": child.seconds / 60,
        "return": fmean(number for _, number in points[-LAST:]),
        "policy": policy,
        "threads": setup.base.cpu_threads or usable_cores(),
        "commit": our_commit(),
        "curve": [[part[-1][0] for part in parts], [fmean(n for _, n in part) for part in parts]],
    }


def _row(task: str, runs: Sequence[Mapping[str, Any]]) -> list[Cell]:
    known = set.intersection(*(set(run["policy"]) for run in runs))
    metrics = [key for key in runs[0]["policy"] if key.startswith("task/") and key in known]
    figures = {key: Spread.of(run["policy"][key] for run in runs) for key in ["return", *metrics]}
    shown = "; ".join(f"{key.removeprefix('task/')} {show(figures[key])}" for key in metrics)
    trained = [Spread.of(run[key] for run in runs) for key in ("steps", "minutes", "return")]
    same = (", ".join({str(run[key]): None for run in runs}) for key in ("threads", "commit"))
    return [task, *trained, figures["return"], shown or None, str(len(runs)), *same]


if __name__ == "__main__":
    run_script(ReferenceOptions, reference)
