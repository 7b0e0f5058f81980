"""The page of a sweep, complete in one file. Runs in the launcher."""

import math
from itertools import accumulate
from pathlib import Path
from typing import Any

from optuna.distributions import CategoricalDistribution
from optuna.trial import TrialState

from mjfleet.sweep.results import BEST_FILE, END_WORDS, counts, ended_trials, importance, text_of
from mjfleet.sweep.space import Distribution
from mjfleet.sweep.study import CAUSE, STEPS, Study
from mjfleet.tools.report.page_file import write_page

PAGE_FILE = "sweep.html"


def write_sweep_page(study: Study, folder: Path) -> Path:
    """Write the page into the sweep's folder, and return its path."""
    definition, trials = study.definition, study.trials()
    sign = -1 if definition.is_greater_better else 1
    order = TrialState.COMPLETE, TrialState.PRUNED
    trials.sort(key=lambda t: ([t.state != state for state in order], sign * (t.value or 0)))
    contents = {
        "command": "sweep",
        "name": folder.name,
        "definition": definition,
        "best": study.best(),
        "best_file": folder / BEST_FILE,
        "default": next((t for t in trials if t.params == definition.defaults), None),
        "counts": counts(study),
        "importance": importance(study),
        "trials": trials,
        "end_words": END_WORDS,
        "cause": CAUSE,
        "steps": STEPS,
        "text_of": text_of,
        "entries": [_curves(study)],
    }
    write_page(folder / PAGE_FILE, PAGE_FILE, contents)
    return folder / PAGE_FILE


def _curves(study: Study) -> dict[str, Any]:
    """Return the best result so far over trials, and each field's values with their results."""
    ended, better = ended_trials(study), max if study.definition.is_greater_better else min
    steps = accumulate(trial.user_attrs.get(STEPS, 0) / 1e6 for trial in ended)
    done = [pair for pair in zip(ended, steps, strict=True) if pair[0].state == TrialState.COMPLETE]
    along: dict[str, list[Any]] = {
        "trial": [trial.number for trial, _ in done],
        "million steps": [reached for _, reached in done],
    }
    best = accumulate((trial.value or 0.0 for trial, _ in done), better)
    columns: dict[str, list[Any]] = {"best so far": list(best)}
    for name, one in study.definition.space.items():
        points = sorted((_place(one, trial.params[name]), trial.value) for trial in ended)
        # uPlot draws only points that are each to the right of the one before, be it by a hair.
        along[name] = list(accumulate((place for place, _ in points), _right_of))
        columns[name] = [value for _, value in points]
    return {"along": along, "columns": columns}


def _right_of(before: float, place: float) -> float:
    return max(place, math.nextafter(before, math.inf))


def _place(one: Distribution, value: Any) -> float:
    """Return where a value stands on an axis; of a list, its number in it."""
    return one.choices.index(value) if isinstance(one, CategoricalDistribution) else value
