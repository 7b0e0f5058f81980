"""What a sweep records of its trials, for `mjfleet report`."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.trial import TrialState

from mjfleet.config import TrainConfig
from mjfleet.runs.run_json import read_record, write_record
from mjfleet.sweep.results import write_results

RATE, DIMS = "agent.algorithm.learning-rate", "agent.actor.hidden-dims"
SPACE = {
    DIMS: CategoricalDistribution(("[64, 64]", "[128, 128]")),
    RATE: FloatDistribution(1e-4, 1e-2, log=True),
}


def test_trials_are_recorded_the_best_first_with_the_importance_of_fields(tmp_path: Path) -> None:
    study = optuna.create_study(direction="minimize")
    for number in range(6):
        params = {DIMS: SPACE[DIMS].choices[number % 2], RATE: 1e-3 * (number + 1)}
        state = TrialState.FAIL if number == 5 else TrialState.COMPLETE
        value = None if number == 5 else 10.0 - number
        trial = optuna.create_trial(
            value=value, state=state, params=params, distributions={**SPACE},
            user_attrs={"cause": "a fault", "environment steps": 100 * number},
        )  # fmt: skip
        study.add_trial(trial)
    definition = SimpleNamespace(
        task="cartpole-balance", typed=dict.fromkeys(SPACE, "typed"), metric="task/error",
        is_greater_better=False, defaults={DIMS: "[64, 64]", RATE: 1e-3},
    )  # fmt: skip
    sweep: Any = SimpleNamespace(
        definition=definition, optuna=study, trials=study.get_trials, best=lambda: study.best_trial
    )
    write_record(tmp_path, "group.json", task="cartpole-balance")
    write_results(sweep, tmp_path, TrainConfig())
    results = read_record(tmp_path, "group.json")["results"]
    assert (results["metric"], results["best"]) == ("task/error", 4)
    assert [trial["number"] for trial in results["trials"]] == [4, 3, 2, 1, 0, 5]
    first, last = results["trials"][0], results["trials"][-1]
    assert first["value"] == 6.0
    assert first["steps"] == 400
    assert (last["status"], last["value"]) == ("failed", None)
    rate = results["fields"][RATE]
    assert (rate["tried"], rate["best"], rate["default"]) == ("typed", 5e-3, 1e-3)
    assert sum(field["importance"] for field in results["fields"].values()) == 1
    assert "learning_rate: 0.005" in (tmp_path / "best.yaml").read_text()
