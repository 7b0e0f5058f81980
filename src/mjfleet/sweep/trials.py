"""Trains the trials of a sweep: begins, prunes and takes them up again, records what they reach.

Runs in the launcher. A trial is an ordinary run; what it has logged is read from its directory.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from optuna.trial import Trial, TrialState

from mjfleet.cli.flag_table import as_flag
from mjfleet.config import TrainConfig
from mjfleet.errors import UserError
from mjfleet.groups.device_shares import Share
from mjfleet.groups.group_record import GroupRecord
from mjfleet.groups.run_queue import Ending, Member, RunningMember, run_members
from mjfleet.launch.planned_run import FAILED
from mjfleet.runs.config_yaml import placement_flags
from mjfleet.runs.metrics_csv import METRICS_FILE, completed_iterations, read_rows, value
from mjfleet.runs.run_json import read_record
from mjfleet.sweep.definition import Definition
from mjfleet.sweep.results import END_WORDS, short_values, summary, write_results
from mjfleet.sweep.space import with_values
from mjfleet.sweep.study import CAUSE, PRUNED, STEPS, Study
from mjfleet.utils.console import print_line

TIMES = 3
"""How often a trial that was killed is taken up again at once; from then on, by --resume only."""
FIRST_FAILURES = 3
"""Give up if so many runs have ended and all have failed: their values are not the cause."""
NOT_ITS_FAULT = ("Killed", "Agent", "Lost", "Hang", "Exited")
"""Kinds of failures after which a trial is taken up again. After an exception it has failed."""


@dataclass
class UnderWay:
    """A trial that trains."""

    trial: Trial
    run_dir: Path
    step: int | None  # The last one whose value the study knows.
    iterations: int = -1  # In metrics.csv, when it was last read.


class Outcome(NamedTuple):
    """How a trial has ended."""

    state: TrialState
    result: float | None = None
    cause: str = ""  # Why it failed.


def run_trials(
    group: GroupRecord, study: Study, config: TrainConfig, shares: Sequence[Share]
) -> int:
    """Train until there are enough trials on all machines; return the exit code.

    Raises:
        UserError: the study's storage fails. Trials under way have been stopped.
    """
    print_line(f"sweep's folder: {group.folder}")
    trials = Trials(group, study, config)
    begin = "--config", str(group.config_file), *placement_flags(config)
    signal = run_members(group.folder, group.task, shares, trials, begin)
    if trials.trouble:
        raise trials.trouble
    write_results(study, group.folder, config)  # Other machines' trials may have ended since.
    print_line(summary(study, group.folder))
    if is_open := bool(signal is not None or study.under_way()):
        print_line(f"to go on: mjfleet sweep --resume {group.folder}")
    is_done = not is_open and study.best() is not None
    group.end("stopped" if signal else "finished" if is_done else "failed")
    return 128 + signal if signal else 0 if is_done else FAILED


class Trials:
    """The trials of one sweep folder, which share a configuration, as a run queue asks for them."""

    def __init__(self, group: GroupRecord, study: Study, config: TrainConfig) -> None:
        self._group, self._study, self._config = group, study, config
        self._to_take_up = [(trial.number, trial.last_step) for trial in study.under_way()]
        self._times: Counter[int] = Counter()  # How often a trial was killed.
        self._under_way: dict[str, UnderWay] = {}
        self._ends: list[TrialState] = []  # Of runs of this process.
        self.trouble: UserError | None = None
        """Why the study could not be written."""

    def next_member(self) -> Member | None:
        """Return a trial that has not ended, then new ones as long as there are to be more."""
        is_hopeless = len(self._ends) >= FIRST_FAILURES and {*self._ends} == {TrialState.FAIL}
        with self._study.explained():
            while not (self.trouble or is_hopeless):
                number, step = self._to_take_up.pop(0) if self._to_take_up else (None, None)
                if number is None and self._study.is_full:
                    return None
                if (trial := self._study.go_on(number)) is None:
                    continue  # Another machine has begun the last one.
                name = f"trial_{trial.number}"
                one = UnderWay(trial, self._group.folder / name, step)
                try:
                    with_values(self._config, trial.params)
                    outcome = _outcome(one, self._study.definition)
                except UserError as error:
                    outcome = Outcome(TrialState.FAIL, cause=str(error))
                if outcome:  # Its end was not recorded.
                    self._note_end(one, outcome)
                    continue
                self._under_way[name] = one
                self._group.note(name, status="running")
                return Member(name, tuple(as_flag(*param) for param in trial.params.items()))
        return None

    def look(self, running: Sequence[RunningMember]) -> None:
        """Report new values of the metric, and stop the trials that the pruner gives up."""
        with self._study.explained():
            for member in running:
                one = self._under_way[member.member.name]
                done = completed_iterations(one.run_dir)
                if done == one.iterations or PRUNED in one.trial.user_attrs:
                    continue
                one.iterations = done
                if self._report(one):
                    one.trial.set_user_attr(PRUNED, one.step)
                    member.stop()

    def ended(self, member: Member, ending: Ending) -> None:
        """Record the result of a trial, unless it was stopped or killed."""
        one = self._under_way.pop(member.name)
        outcome = _outcome(one, self._study.definition)
        if ending.is_mistake and not one.run_dir.exists():
            outcome = Outcome(TrialState.FAIL, cause=ending.message)
        try:
            with self._study.explained():
                if outcome:
                    self._note_end(one, outcome)
                    self._ends.append(outcome.state)
                    return
        except UserError as error:
            self.trouble = error
        print_line(f"trial {one.trial.number} has not ended: {ending.message or ending.status}")
        self._group.note(member.name, status="stopped")
        self._times[one.trial.number] += 1
        if self._times[one.trial.number] <= TIMES:
            self._to_take_up.append((one.trial.number, one.step))

    def _report(self, one: UnderWay, is_over: bool = False) -> bool:
        """Report values that are new to the study; return whether the pruner gives the trial up."""
        definition, trial = self._study.definition, one.trial
        for step, metric in _values_in(one.run_dir, definition, is_over):
            if one.step is None or step > one.step:
                one.step = step
                trial.report(metric, step)
                # The last value is a result, and that of the defaults is what others compare with.
                may_prune = step < definition.budget and trial.params != definition.defaults
                if may_prune and not is_over and trial.should_prune():
                    return True
        return False

    def _note_end(self, one: UnderWay, outcome: Outcome) -> None:
        """Tell the study how a trial has ended."""
        trial, definition = one.trial, self._study.definition
        self._report(one, is_over=True)
        _, rows = read_rows(one.run_dir / METRICS_FILE)
        trial.set_user_attr(STEPS, int(value(rows[-1], "total_steps") or 0) if rows else 0)
        trial.set_user_attr(CAUSE, outcome.cause)
        self._study.optuna.tell(trial.number, outcome.result, outcome.state)
        end = END_WORDS[outcome.state]
        self._group.note(one.run_dir.name, status=end)
        how = outcome.cause or f"at {definition.along} {one.step}"
        if outcome.result is not None:
            how = f"{definition.metric} {outcome.result:.4g}"
        print_line(f"trial {trial.number} {end}: {how} ({short_values(trial.params)})")
        write_results(self._study, self._group.folder, self._config)


def _outcome(one: UnderWay, definition: Definition) -> Outcome | None:
    """Return how a trial has ended by its run directory, or None if it is to be taken up again."""
    try:
        record = read_record(one.run_dir)
    except (OSError, ValueError) as error:
        return Outcome(TrialState.FAIL, cause=f"its run.json: {error}")
    if record.get("status") == "finished":
        values = _values_in(one.run_dir, definition, is_over=True)
        if not values:
            return Outcome(TrialState.FAIL, cause=f"it never logged {definition.metric}")
        return Outcome(TrialState.COMPLETE, values[-1][1])
    if PRUNED in one.trial.user_attrs:
        return Outcome(TrialState.PRUNED)
    *_, last = record.get("attempts") or [{}]
    is_own_fault = last.get("kind") not in NOT_ITS_FAULT and not last.get("is_asked_to_stop")
    if record.get("status") == "failed" and is_own_fault:
        return Outcome(TrialState.FAIL, cause=str(last.get("cause", "?")).partition("\n")[0])
    return None


def _values_in(run_dir: Path, definition: Definition, is_over: bool) -> list[tuple[int, float]]:
    """Return the metric of a run over time: where each interval ends, and the mean over it.

    The last interval may be shorter once the run `is_over`. One without a value is left out.
    """
    _, rows = read_rows(run_dir / METRICS_FILE)
    found, some = list[tuple[int, float]](), list[float]()
    for i, row in enumerate(rows, start=1):
        if (number := value(row, definition.metric)) is not None:
            some.append(number)
        is_end = int(row["iteration"]) % definition.interval == 0 or (is_over and i == len(rows))
        if is_end and some:
            found.append((int(value(row, definition.along) or 0), fmean(some)))
            some = []
    return found
