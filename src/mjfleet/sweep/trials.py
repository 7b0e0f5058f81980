"""Trains the trials of a sweep, prunes them, and records their results. Runs in the launcher.

A trial is an ordinary run, whose metrics are read from its directory.
"""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import fmean

from optuna.trial import Trial, TrialState

from mjfleet.config.flags import as_words
from mjfleet.errors import UserError
from mjfleet.groups.device_shares import Share
from mjfleet.groups.group_folder import GroupFolder
from mjfleet.groups.run_queue import Member, MemberProcess, Members, run_members
from mjfleet.launch.planned_run import FAILED
from mjfleet.runs.metrics_csv import METRICS_FILE, completed_iterations, read_rows, value
from mjfleet.sweep.results import END_WORDS, short_values, summary, write_results
from mjfleet.sweep.study import CAUSE, STEPS, Study
from mjfleet.utils.console import print_line

FAILURES_IN_A_ROW = 5
"""After so many failed trials the sweep stops: the cause is not their values."""
MOST_STARTS = 4
"""How often a trial is started, if something kills it each time, before it counts as failed."""
FAULTS = ("", "Killed", "Agent", "Lost", "Hang", "Exited")
"""Kinds of failures that are not due to a trial's values. "": the whole run was killed."""


def run_trials(group: GroupFolder, study: Study, shares: Sequence[Share]) -> int:
    """Train until there are enough trials on all machines; return the exit code.

    Raises:
        UserError: runs never log the metric, or the storage fails. All processes have ended.
    """
    print_line(f"sweep: {group.path}")
    trials = Trials(study, group.path)
    try:
        signal = run_members(group, study.config, shares, trials)
    except UnknownMetricError:
        if group.is_new:
            study.discard()
            group.discard()
        raise
    write_results(study, group.path)  # Trials of other machines may have ended since.
    print_line(summary(study, group.path))
    if trials.is_hopeless:
        print_line(f"stopped after {FAILURES_IN_A_ROW} failed trials in a row: {trials.cause}")
    is_open = trials.is_hopeless or signal is not None or bool(study.unfinished())
    if is_open:
        print_line(f"resume with: mjfleet sweep --resume {group.path}")
    is_done = not is_open and study.best() is not None
    group.end("stopped" if signal else "finished" if is_done else "failed")
    return 128 + signal if signal else 0 if is_done else FAILED


class UnknownMetricError(UserError):
    """Runs never log the metric."""


@dataclass
class TrialRun:
    """A trial that trains."""

    trial: Trial
    last_step: int = 0  # Of the values that the study knows.
    iterations: int = 0  # That were complete when the metrics were read last.
    starts: int = 0
    is_pruned: bool = False


class Trials(Members):
    """The trials of one sweep folder, as a run queue asks for them."""

    def __init__(self, study: Study, folder: Path) -> None:
        super().__init__([])
        self._study, self._folder = study, folder
        self._unfinished = [TrialRun(trial, step) for trial, step in study.unfinished()]
        self._running: dict[str, TrialRun] = {}
        self._failures = 0  # In a row.
        self.cause = ""
        """Why the last trial that failed did so."""

    @property
    def is_hopeless(self) -> bool:
        """Whether so many trials have failed in a row that no more begin."""
        return self._failures >= FAILURES_IN_A_ROW

    def next_member(self) -> Member | None:
        """Return a trial that has not ended, then new ones until there are enough."""
        if self.is_hopeless:
            return None
        if self._unfinished:
            one = self._unfinished.pop(0)
        elif trial := self._study.begin_trial():
            one = TrialRun(trial)
        else:
            return None
        one.starts += 1
        name = f"trial_{one.trial.number}"
        self._running[name] = one
        values = one.trial.params.items()
        return Member(name, tuple(word for value in values for word in as_words(*value)))

    def look(self, running: Sequence[MemberProcess]) -> None:
        """Report new values of the metric, and stop the trials that the pruner gives up."""
        for process in running:
            one = self._running[process.member.name]
            iterations = completed_iterations(process.run_dir)
            if one.is_pruned or iterations == one.iterations:
                continue
            one.iterations = iterations
            self._report(one, process.run_dir)
            # The last value is a result, and that of the defaults is what others compare with.
            may_prune = 0 < one.last_step < self._study.budget
            may_prune &= one.trial.params != self._study.defaults
            if may_prune and one.trial.should_prune():
                one.is_pruned = True
                self._end(one, process.run_dir, TrialState.PRUNED)
                process.stop()

    def ended(self, process: MemberProcess) -> None:
        """Record the result of a trial; begin it again if it was killed."""
        one, run_dir = self._running.pop(process.member.name), process.run_dir
        if one.is_pruned:
            return
        is_fault = process.kind in FAULTS and one.starts < MOST_STARTS
        if process.status == "finished":
            if (result := self._report(one, run_dir, is_over=True)) is None:
                cause = f"it has no value of {self._study.metric}"
                self._end(one, run_dir, TrialState.FAIL, cause=cause)
            else:
                self._end(one, run_dir, TrialState.COMPLETE, result)
        elif process.status == "stopped" or (process.status == "failed" and is_fault):
            why = process.cause or process.status
            print_line(f"trial {one.trial.number} has not ended: {why}")
            self._unfinished.append(one)
        else:
            self._end(one, run_dir, TrialState.FAIL, cause=process.cause)

    def _report(self, one: TrialRun, run_dir: Path, is_over: bool = False) -> float | None:
        """Report the metric's mean over each new interval; return that of the last one, if any.

        An interval counts once it is complete, the last one also if the run `is_over`.

        Raises:
            UnknownMetricError: runs never log the metric.
        """
        study, mean = self._study, None
        columns, rows = read_rows(run_dir / METRICS_FILE)
        is_logged_rarely = study.metric.startswith("eval/") and one.iterations < study.interval
        if rows and study.metric not in columns and not is_logged_rarely:
            near = difflib.get_close_matches(study.metric, columns, n=3, cutoff=0.5) or columns
            raise UnknownMetricError(
                f"--metric {study.metric}: runs of {study.task} never log it. They log "
                f"{', '.join(near)}."
            )
        for _, some in groupby(rows, lambda row: (int(row["iteration"]) - 1) // study.interval):
            *_, last = interval = [*some]
            is_complete = int(last["iteration"]) % study.interval == 0
            numbers = [n for row in interval if (n := value(row, study.metric)) is not None]
            if numbers and (is_complete or is_over):
                mean, step = fmean(numbers), int(value(last, study.along) or 0)
                if step > one.last_step:
                    one.last_step = step
                    one.trial.report(mean, step)
        return mean

    def _end(
        self,
        one: TrialRun,
        run_dir: Path,
        state: TrialState,
        result: float | None = None,
        cause: str = "",
    ) -> None:
        """Record how a trial has ended, and print it."""
        trial, study = one.trial, self._study
        _, rows = read_rows(run_dir / METRICS_FILE)
        trial.set_user_attr(STEPS, int(value(rows[-1], "total_steps") or 0) if rows else 0)
        trial.set_user_attr(CAUSE, cause)
        study.record.tell(trial, result, state)
        self._failures = self._failures + 1 if state == TrialState.FAIL else 0
        self.cause = cause or self.cause
        how = cause or f"at {study.along} {one.last_step}"
        if result is not None:
            how = f"{study.metric} {result:.4g}"
        print_line(f"trial {trial.number} {END_WORDS[state]}: {how} ({short_values(trial.params)})")
        write_results(study, self._folder)
