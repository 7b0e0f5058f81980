"""Records the results of a sweep: the best configuration, and its table for `mjfleet report`."""

from dataclasses import replace
from pathlib import Path

import optuna
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.study import StudyDirection
from optuna.trial import TrialState, create_trial

from mjfleet.runs.config_yaml import write_config
from mjfleet.runs.run_json import GROUP_FILE, write_record
from mjfleet.sweep.space import with_values
from mjfleet.sweep.study import CAUSE, STEPS, Study

BEST_FILE = "best.yaml"
END_WORDS = {
    TrialState.COMPLETE: "finished", TrialState.PRUNED: "pruned", TrialState.FAIL: "failed",
    TrialState.RUNNING: "running", TrialState.WAITING: "waiting",
}  # fmt: skip
FEWEST_RESULTS = 4
"""Trials with a result from which importance is computed."""


def write_results(study: Study, folder: Path) -> None:
    """Write the best configuration, as `train --config` reads it, and the trials to group.json."""
    trials, best = study.trials(), study.best()
    if best:
        chosen = with_values(study.config, best.params)
        chosen = replace(chosen, agent=replace(chosen.agent, run_name="best"))
        write_config(folder / BEST_FILE, study.task, chosen)
    sign = 1 if study.direction == StudyDirection.MINIMIZE else -1
    order = TrialState.COMPLETE, TrialState.PRUNED
    trials.sort(key=lambda t: ([t.state != state for state in order], sign * (t.value or 0)))
    shares = _importance(study)
    results = {
        "metric": study.metric,
        "best": best.number if best else None,
        "fields": {
            name: {
                "tried": typed,
                "best": best.params[name] if best else None,
                "default": study.defaults.get(name),
                "importance": shares.get(name),
            }
            for name, typed in study.typed.items()
        },
        "trials": [
            {
                "number": trial.number,
                "status": END_WORDS[trial.state],
                "cause": trial.user_attrs.get(CAUSE),
                "value": trial.value,
                "steps": trial.user_attrs.get(STEPS),
                "params": trial.params,
            }
            for trial in trials
        ],
    }
    write_record(folder, GROUP_FILE, results=results)


def _importance(study: Study) -> dict[str, float]:
    """Return how much each field decides whether a trial is among the best tenth; in all 1.

    By PED-ANOVA (Watanabe et al. 2023, arXiv:2304.10255). A pruned trial counts with its last
    value, since few trials are not pruned. Nothing is returned for too few trials.
    """
    seen = optuna.create_study(direction=study.direction)
    for trial in study.trials():
        if trial.state.is_finished() and trial.value is not None:
            given = {"params": trial.params, "distributions": trial.distributions}
            seen.add_trial(create_trial(value=trial.value, **given))
    if len(seen.trials) < FEWEST_RESULTS:
        return {}
    evaluator = PedAnovaImportanceEvaluator(evaluate_on_local=False)
    return get_param_importances(seen, evaluator=evaluator)
