"""What a sweep records of its trials, for `mjfleet report`."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Barrier, BrokenBarrierError

import optuna
import pytest
from optuna.storages import RDBStorage
from optuna.trial import TrialState

from mjfleet.errors import WorkerError
from mjfleet.groups.device_shares import Share
from mjfleet.registry import discover
from mjfleet.runs.run_directory import RunDirectory
from mjfleet.runs.run_json import read_record
from mjfleet.runs.start import Chosen
from mjfleet.sweep.arguments import SweepArguments
from mjfleet.sweep.study import Study, _open_storage, place_in
from mjfleet.sweep.trials import Trials, run_trials, write_results

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


def test_two_machines_that_ask_at_the_same_moment_get_different_trials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = discover({}).find("cartpole-balance")
    arguments = SweepArguments(try_=(f"{RATE}=1e-4..1e-2",))
    machines = [Study(arguments, found, found.defaults()) for _ in range(2)]
    for study, folder in zip(machines, "ab", strict=True):
        study.open(f"sqlite:///{tmp_path}/study.db", folder, is_new=True)
    both, check = Barrier(2), RDBStorage.check_trial_is_updatable

    def check_and_wait(self: RDBStorage, trial_id: int, state: TrialState) -> None:
        """Check a trial's state, and wait for the other machine to have done so, too."""
        check(self, trial_id, state)
        with suppress(BrokenBarrierError):
            both.wait(1.0)

    monkeypatch.setattr(RDBStorage, "check_trial_is_updatable", check_and_wait)
    with ThreadPoolExecutor(2) as threads:
        begun = [*threads.map(Study.begin_trial, machines)]
    assert sorted(trial.number for trial in begun if trial) == [0, 1]
    assert [trial.user_attrs["folder"] for trial in machines[0].trials()] in (
        ["a", "b"],
        ["b", "a"],
    )


@pytest.mark.parametrize("place", ["sqlite:///{}/study.db", "{}/study.log"])
def test_the_machine_that_begins_a_sweep_alone_lets_it_try_the_defaults(
    tmp_path: Path, place: str
) -> None:
    found = discover({}).find("cartpole-balance")
    study = Study(SweepArguments(try_=(f"{RATE}=1e-4..1e-2",)), found, found.defaults())
    storage = place.format(tmp_path)
    # Another machine has just created the study, and nothing in it yet.
    record = optuna.create_study(
        storage=_open_storage(storage), study_name=study.name, direction=study.direction
    )
    study.open(storage, "here", is_new=True)
    record.enqueue_trial(study.defaults)
    assert [trial.state for trial in record.trials] == [TrialState.WAITING]
    trial = study.begin_trial()
    assert trial
    assert trial.params == study.defaults


def test_a_sweep_whose_record_is_gone_has_failed_and_says_why(tmp_path: Path) -> None:
    found = discover({}).find("cartpole-balance")
    study = Study(SweepArguments(try_=(f"{RATE}=1e-4..1e-2",)), found, found.defaults())
    chosen = Chosen(found=found, config=replace(found.defaults(), run_dir=str(tmp_path)))
    with closing(RunDirectory(tmp_path, chosen, {"kind": "sweep"})) as attempt:
        study.open(place_in(tmp_path), "here", is_new=True)
        (tmp_path / "study.db").unlink()
        with pytest.raises(WorkerError, match=r"has stopped: .*readonly.*\n.*sweep --resume /"):
            run_trials(found, tmp_path, attempt, study, [Share((), 1, 1)])
    assert read_record(tmp_path)["status"] == "failed"


def test_a_trial_that_something_else_has_ended_is_left_and_the_sweep_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = discover({}).find("cartpole-balance")
    study = Study(SweepArguments(try_=(f"{RATE}=1e-4..1e-2",)), found, found.defaults())
    study.open(place_in(tmp_path), "here", is_new=True)
    trials = Trials(study, tmp_path)
    for is_running in (True, False):
        run = trials.next_trial()
        assert run
        run.run_dir, stopped = tmp_path / run.name, list[bool]()
        run.run_dir.mkdir()
        (run.run_dir / "metrics.csv").write_text("iteration,eval/return\n900,5.0\n")
        monkeypatch.setattr(run, "stop", partial(stopped.append, True))
        study.record.tell(run.trial.number, 1.0)
        if is_running:
            trials.look([run])
            assert stopped
        run.status = "finished"
        trials.ended(run)
        (line,) = capsys.readouterr().out.splitlines()
        assert line.startswith(f"{run.name} has been ended elsewhere")
    assert [trial.value for trial in study.trials()] == [1.0, 1.0]
