"""Trains the trials of a sweep, prunes them, and records their results. Runs in the launcher.

A trial is an ordinary run, whose metrics are read from its directory.
"""

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import groupby
from pathlib import Path
from statistics import fmean

import optuna
from optuna.exceptions import OptunaError, UpdateFinishedTrialError
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.study import StudyDirection
from optuna.trial import Trial, TrialState, create_trial
from sqlalchemy.exc import SQLAlchemyError

from mjfleet.config import TrainConfig
from mjfleet.config.flags import as_words
from mjfleet.config.unused_fields import unused_fields
from mjfleet.errors import UserError, WorkerError
from mjfleet.groups.device_shares import Share
from mjfleet.groups.run_queue import Member, run_members
from mjfleet.launch.planned_run import FAILED
from mjfleet.registry import FoundTask
from mjfleet.runs.config_yaml import write_config
from mjfleet.runs.metrics_csv import METRICS_FILE, read_rows, value
from mjfleet.runs.run_directory import RunDirectory
from mjfleet.runs.run_json import write_record
from mjfleet.sweep.space import with_values
from mjfleet.sweep.study import CAUSE, STEPS, Study
from mjfleet.utils.console import in_a_line, print_line

FAILURES_IN_A_ROW = 5
"""After so many failed trials the sweep stops: the cause is not their values."""
MOST_STARTS = 4
"""How often a trial is started, if something kills it each time, before it counts as failed."""

END_WORDS = {
    TrialState.COMPLETE: "finished", TrialState.PRUNED: "pruned", TrialState.FAIL: "failed",
    TrialState.RUNNING: "running", TrialState.WAITING: "waiting",
}  # fmt: skip
FEWEST_RESULTS = 4
"""Trials with a result from which importance is computed."""


def run_trials(
    found: FoundTask, folder: Path, attempt: RunDirectory, study: Study, shares: Sequence[Share]
) -> int:
    """Train until there are enough trials on all machines; return the exit code.

    UserError if runs never log the metric, WorkerError if the study cannot be used any more, as on
    a full disk: all processes have ended.
    """
    print_line(f"sweep: {folder}")
    path = shlex.quote(str(folder))
    try:
        trials = Trials(study, folder)
        steps = trials.next_trial, trials.ended, trials.look
        signal = run_members(found, study.config, folder, shares, *steps)
        write_results(study, folder)  # Trials of other machines may have ended since.
        best, unfinished = study.best(), study.unfinished()
    except UserError:
        attempt.end("failed")
        raise
    except (OptunaError, SQLAlchemyError, OSError) as error:
        why = in_a_line(error.__cause__ or error)
        attempt.end("failed", cause=why)
        raise WorkerError(f"the sweep has stopped: {why}\nmjfleet sweep --resume {path}") from error
    if best:
        file = shlex.quote(f"{folder}/best.yaml")
        print_line(f"best: {study.metric} {best.value:.4g} by train --config {file}")
    if is_hopeless := trials.failures >= FAILURES_IN_A_ROW:
        print_line(f"stopped after {FAILURES_IN_A_ROW} failed trials in a row: {trials.cause}")
    is_open = is_hopeless or signal is not None or bool(unfinished)
    print_line(f"mjfleet {'sweep --resume' if is_open else 'report'} {path}")
    is_done = not is_open and best is not None
    attempt.end("stopped" if signal else "finished" if is_done else "failed")
    return 128 + signal if signal else 0 if is_done else FAILED


class TrialRun(Member):
    def __init__(self, trial: Trial, config: TrainConfig, last_step: int = 0) -> None:
        """Take a trial, and the configuration that it changes.

        Values without effect beside the trial's others, which `train` refuses, are no flags.
        """
        tried = dict(trial.params)
        with suppress(UserError):  # If the values do not fit each other, `train` says so.
            for field in unused_fields(with_values(config, tried).agent, trial.params):
                del tried[field.name]
        flags = [word for value in tried.items() for word in as_words(*value)]
        super().__init__(f"trial_{trial.number}", flags)
        self.trial = trial
        self.last_step = last_step  # The last step that the study has a value of.
        self.read_iterations = 0  # That were complete when the metrics were read last.
        self.starts = 0
        self.is_over = False  # In the study; its process may still end.

    def rows(self) -> tuple[list[str], list[dict[str, str]]]:
        """Return the columns and rows of its metrics; none while its file cannot be read."""
        with suppress(OSError):
            return read_rows(self.run_dir / METRICS_FILE)
        return [], []


class Trials:
    """The trials of one sweep folder, as `run_members` asks for them."""

    def __init__(self, study: Study, folder: Path) -> None:
        self._study, self._folder = study, folder
        self._unfinished = [
            TrialRun(trial, study.config, step) for trial, step in study.unfinished()
        ]
        self.failures = 0  # In a row.
        self.cause = ""  # Why the last one failed.

    def next_trial(self) -> TrialRun | None:
        """Return a trial that has not ended, then new ones until there are enough."""
        if self.failures >= FAILURES_IN_A_ROW:
            return None
        if self._unfinished:
            run = self._unfinished.pop(0)
        elif trial := self._study.begin_trial():
            run = TrialRun(trial, self._study.config)
        else:
            return None
        run.starts += 1
        return run

    def look(self, running: Sequence[TrialRun]) -> None:
        """Report new values of the metric, and stop the trials that the pruner gives up."""
        for run in running:
            iterations = run.iterations
            if run.is_over or iterations == run.read_iterations:
                continue
            run.read_iterations = iterations
            with self._unless_ended_elsewhere(run):
                self._report(run)
                # The last value is a result, and that of the defaults is what others compare with.
                may_prune = 0 < run.last_step < self._study.budget
                may_prune &= run.trial.params != self._study.defaults
                if may_prune and run.trial.should_prune():
                    self._end(run, TrialState.PRUNED)
                    run.stop()

    def ended(self, run: TrialRun) -> None:
        """Record the result of a trial; begin it again if it was killed."""
        if run.is_over:
            return
        if run.status == "stopped" or (run.status == "killed" and run.starts < MOST_STARTS):
            print_line(f"{run.name} has not ended: {run.cause or run.status}")
            self._unfinished.append(run)
            return
        with self._unless_ended_elsewhere(run):
            if run.status != "finished":
                self._end(run, TrialState.FAIL, cause=run.cause)
            elif (result := self._report(run, is_over=True)) is None:
                self._end(run, TrialState.FAIL, cause=f"it has no value of {self._study.metric}")
            else:
                self._end(run, TrialState.COMPLETE, result)

    @contextmanager
    def _unless_ended_elsewhere(self, run: TrialRun) -> Iterator[None]:
        """Stop a run whose trial something else has ended in the study meanwhile, and say so."""
        try:
            yield
        except UpdateFinishedTrialError:
            run.is_over = True
            print_line(f"{run.name} has been ended elsewhere, and counts as it was recorded there.")
            run.stop()

    def _report(self, run: TrialRun, is_over: bool = False) -> float | None:
        """Report the metric's mean over each new interval; return that of the last one, if any.

        An interval counts once it is complete, the last one also if the run `is_over`. UserError if
        runs never log the metric.
        """
        study, mean = self._study, None
        columns, rows = run.rows()
        if study.metric not in columns and len(rows) >= study.interval:
            raise UserError(
                f"--metric {study.metric}: runs of {study.task} never log it. They log "
                f"{', '.join(columns)}."
            )
        for _, group in groupby(rows, lambda row: (int(row["iteration"]) - 1) // study.interval):
            *_, last = interval = [*group]
            is_complete = int(last["iteration"]) % study.interval == 0
            numbers = [n for row in interval if (n := value(row, study.metric)) is not None]
            if numbers and (is_complete or is_over):
                mean, step = fmean(numbers), int(value(last, study.along) or 0)
                if step > run.last_step:
                    run.last_step = step
                    run.trial.report(mean, step)
        return mean

    def _end(
        self, run: TrialRun, state: TrialState, result: float | None = None, cause: str = ""
    ) -> None:
        """Record how a trial has ended, and print it."""
        trial, study = run.trial, self._study
        _, rows = run.rows()
        trial.set_user_attr(STEPS, int(value(rows[-1], "total_steps") or 0) if rows else 0)
        trial.set_user_attr(CAUSE, cause)
        study.record.tell(trial, result, state)
        run.is_over = True
        self.failures = self.failures + 1 if state == TrialState.FAIL else 0
        self.cause = cause or self.cause
        how = cause or f"at {study.along} {run.last_step}"
        if result is not None:
            how = f"{study.metric} {result:.4g}"
        values = ", ".join(f"{name.rpartition('.')[2]} {v}" for name, v in trial.params.items())
        print_line(f"{run.name} {END_WORDS[state]}: {how} ({values})")
        write_results(study, self._folder)


def write_results(study: Study, folder: Path) -> None:
    """Write the best configuration, as `train --config` reads it, and the trials to group.json."""
    trials, best = study.trials(), study.best()
    if best:
        write_config(folder / "best.yaml", study.task, with_values(study.config, best.params))
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
    write_record(folder, results=results)


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
