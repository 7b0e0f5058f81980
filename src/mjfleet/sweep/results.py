"""What came of a sweep: the best configuration, a summary, and a page. Runs in the launcher."""

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.trial import FrozenTrial, TrialState, create_trial

from mjfleet.config import TrainConfig
from mjfleet.runs.config_yaml import write_config
from mjfleet.sweep.space import Distribution, with_values
from mjfleet.sweep.study import CAUSE, STEPS, Study
from mjfleet.tools.report.page_file import write_page

BEST_FILE = "best.yaml"
PAGE_FILE = "sweep.html"
END_WORDS = {
    TrialState.COMPLETE: "finished", TrialState.PRUNED: "pruned", TrialState.FAIL: "failed",
    TrialState.RUNNING: "under way", TrialState.WAITING: "waiting",
}  # fmt: skip
FEWEST = 4
"""Trials with a result from which importance is computed."""


def write_best(study: Study, folder: Path, config: TrainConfig) -> None:
    """Write the configuration of the best trial, as `train --config` reads it."""
    if best := study.best():
        config = with_values(config, best.params)
        config = replace(config, agent=replace(config.agent, run_name="best"))
        write_config(folder / BEST_FILE, study.definition.task, config)


def ended_trials(study: Study) -> list[FrozenTrial]:
    """Return the trials that have ended with a result; a pruned trial's is its last value."""
    return [t for t in study.trials() if t.state.is_finished() and t.value is not None]


def importance(study: Study) -> dict[str, float]:
    """Return how much each field decides whether a trial is among the best tenth; in all 1.

    By PED-ANOVA (Watanabe et al. 2023, arXiv:2304.10255). Pruned trials count with their last
    value: those that were not are few. Nothing is returned for too few trials.
    """
    seen = optuna.create_study(direction=study.optuna.direction)
    for one in ended_trials(study):
        given = {"params": one.params, "distributions": one.distributions}
        seen.add_trial(create_trial(value=one.value, **given))
    if len(seen.trials) < FEWEST:
        return {}
    evaluator = PedAnovaImportanceEvaluator(evaluate_on_local=False)
    return get_param_importances(seen, evaluator=evaluator)


def text_of(value: Any) -> str:
    """Return a value in short: numbers have four digits."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def short_values(values: Mapping[str, Any]) -> str:
    """Return values in a line, with the last part of each name."""
    return ", ".join(f"{n.rpartition('.')[2]} {text_of(v)}" for n, v in values.items())


def counts(study: Study) -> str:
    """Return how many trials have ended in which way, and the steps that they have taken."""
    states = [END_WORDS[trial.state] for trial in study.trials()]
    ends = ", ".join(f"{states.count(word)} {word}" for word in dict.fromkeys(states))
    return f"{ends}; {sum(t.user_attrs.get(STEPS, 0) for t in study.trials()):,} environment steps"


def summary(study: Study, folder: Path) -> str:
    """Return the results in a few lines."""
    lines = [f"{len(study.trials())} trials: {counts(study)}"]
    if best := study.best():
        lines.append(f"best: trial {best.number}, {study.definition.metric} {best.value:.4g}")
        lines += [f"  --{name} {value}" for name, value in best.params.items()]
        lines.append(f"train --config {folder / BEST_FILE}")
    if shares := importance(study):
        lines.append(f"importance: {short_values(shares)}")
    return "\n".join(lines)


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
        "axes": {name: _axis(one) for name, one in definition.space.items()},
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
        places = (place for place, _ in points)
        along[name] = list(accumulate(places, lambda a, b: max(b, math.nextafter(a, math.inf))))
        columns[name] = [value for _, value in points]
    return {"along": along, "columns": columns}


def _axis(one: Distribution) -> dict[str, Any]:
    """Return the ends of a field's axis on the page, for page.js; of a list, its values too."""
    if isinstance(one, CategoricalDistribution):
        names = json.dumps([text_of(value) for value in one.choices])
        return {"data-low": -0.5, "data-high": len(one.choices) - 0.5, "data-choices": names}
    return {"data-low": one.low, "data-high": one.high, "data-log": 1 if one.log else None}


def _place(one: Distribution, value: Any) -> float:
    """Return where a value stands on an axis; of a list, its number in it."""
    return one.choices.index(value) if isinstance(one, CategoricalDistribution) else value
