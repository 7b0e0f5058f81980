"""What a sweep records of its trials, for `mjfleet report`."""

from pathlib import Path

import optuna
from optuna.trial import TrialState

from mjfleet.registry import discover
from mjfleet.runs.run_json import read_record
from mjfleet.sweep.arguments import SweepArguments
from mjfleet.sweep.study import Study, place_in
from mjfleet.sweep.trials import Trials, write_results

RATE, DIMS = "agent.algorithm.learning_rate", "agent.actor.hidden_dims"


def test_trials_are_recorded_the_best_first_with_the_importance_of_fields(tmp_path: Path) -> None:
    found = discover({}).find("cartpole-balance")
    tried = (f"{DIMS}=[64,64],[128,128]", f"{RATE}=1e-4..1e-2:log")
    study = Study(SweepArguments(try_=tried, metric="task/error:min"), found, found.defaults())
    study.open(f"sqlite:///{tmp_path}/study.db", "here", is_new=True)
    for number in range(6):
        params = {DIMS: ("[64, 64]", "[128, 128]")[number % 2], RATE: 1e-3 * (number + 1)}
        trial = optuna.create_trial(
            value=None if number == 5 else 10.0 - number,
            state=TrialState.FAIL if number == 5 else TrialState.COMPLETE,
            params=params,
            distributions={**study.space},
            user_attrs={"cause": "a fault", "environment steps": 100 * number, "folder": "here"},
        )
        study.record.add_trial(trial)
    (tmp_path / "group.json").write_text('{"task": "cartpole-balance"}')
    write_results(study, tmp_path)
    results = read_record(tmp_path)["results"]
    first, last = results["trials"][0], results["trials"][-1]
    assert (results["metric"], results["best"]) == ("task/error", first["number"])
    assert [trial["value"] for trial in results["trials"]] == [6.0, 7.0, 8.0, 9.0, 10.0, None]
    assert (first["steps"], last["status"]) == (400, "failed")
    rate = results["fields"][RATE]
    assert (rate["tried"], rate["best"], rate["default"]) == ("1e-4..1e-2:log", 5e-3, 1e-3)
    assert sum(field["importance"] for field in results["fields"].values()) == 1
    assert "learning_rate: 0.005" in (tmp_path / "best.yaml").read_text()


def test_a_trial_whose_metrics_cannot_be_read_has_failed_and_the_sweep_continues(
    tmp_path: Path,
) -> None:
    found = discover({}).find("cartpole-balance")
    study = Study(SweepArguments(try_=(f"{RATE}=1e-4..1e-2",)), found, found.defaults())
    study.open(place_in(tmp_path), "here", is_new=True)
    (tmp_path / "group.json").write_text('{"task": "cartpole-balance"}')
    run = Trials(study, tmp_path).next_trial()
    assert run
    run.run_dir = tmp_path / run.name
    (run.run_dir / "metrics.csv").mkdir(parents=True)
    trials = Trials(study, tmp_path)
    trials.look([run])
    run.status = "finished"
    trials.ended(run)
    (trial,) = read_record(tmp_path)["results"]["trials"]
    assert (trial["status"], trial["cause"]) == ("failed", "it has no value of eval/return")
