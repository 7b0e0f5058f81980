"""The definition of a sweep, and Optuna's record of its trials. Runs in the launcher.

Several machines may share the record. Each trial belongs to the sweep folder in which it began, and
is continued there and nowhere else.
"""

import json
import math
import os
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import optuna
from optuna.exceptions import DuplicatedStudyError, OptunaError
from optuna.pruners import HyperbandPruner, NopPruner, SuccessiveHalvingPruner
from optuna.samplers import CmaEsSampler, GridSampler, RandomSampler, TPESampler
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, Trial, TrialState
from sqlalchemy import URL, create_engine, event, make_url
from sqlalchemy.exc import SQLAlchemyError

from mjfleet.config import TrainConfig
from mjfleet.config.train_config import decides_learning
from mjfleet.errors import UserError
from mjfleet.registry import FoundTask
from mjfleet.runs.config_yaml import differences
from mjfleet.sweep.arguments import SweepArguments
from mjfleet.sweep.space import defaults_in, read_space
from mjfleet.utils.console import in_a_line

HALVING_FACTOR = 4
"""Successive halving keeps the best of so many trials that come as far (Li et al. 2020,
arXiv:1810.05934)."""
EVALUATIONS_PER_TRIAL = HALVING_FACTOR**2
"""Unless --eval-interval says otherwise. Trials are compared after 1/16 and 1/4 of their length."""
COMPARED_FIELDS = {"agent.max_iterations", "total_steps", "eval_interval", "eval_envs"}
"""Fields that have to be equal for results to be compared, besides those that decide learning."""
PASSWORD = re.compile(r"://.*:.*@|[?&]passw(or)?d=")  # In a database's URL.
FOLDER, CAUSE, STEPS = "folder", "cause", "environment steps"
"""Attributes of a trial: the id of its sweep folder, why it failed, the steps that it has taken."""
FIRST_BYTES = 2**20
"""More than the first line of Optuna's file of trials has."""
AGREED = "mjfleet"
"""Attribute of a study: what has to be the same on all machines."""


class PointSampler(GridSampler):
    """Chooses each point of a grid once. `begin_trial` knows when there are enough."""

    def after_trial(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
    ) -> None:
        """Do nothing: Optuna's own class would end a loop of Optuna's, and there is none."""


class Study:
    """A sweep, as its flags describe it; after `open` it has trials. UserError for a bad value."""

    record: optuna.Study

    def __init__(
        self, wanted: SweepArguments, found: FoundTask, config: TrainConfig, workers: int = 1
    ) -> None:
        """Describe a sweep whose trials have that many workers each."""
        if PASSWORD.search(wanted.storage or ""):
            raise UserError(
                "--storage: leave the password out; drivers read it from PGPASSWORD, ~/.pgpass, or "
                "`?read_default_file=` (MySQL)."
            )
        self.task = found.name
        self.space, self.typed = read_space(wanted.try_, config)
        self.metric, _, direction = wanted.metric.partition(":")
        if direction not in ("", "max", "min") or not self.metric:
            raise UserError(f"--metric {wanted.metric}: it must be NAME, NAME:max or NAME:min.")
        self.direction = StudyDirection.MINIMIZE if direction == "min" else StudyDirection.MAXIMIZE
        iterations = config.agent.max_iterations
        if config.total_steps:
            envs = config.total_envs or workers * config.env.num_envs
            iterations = config.total_steps // (envs * config.agent.num_steps_per_env)
        self.interval = config.eval_interval or max(1, iterations // EVALUATIONS_PER_TRIAL)
        """Iterations whose mean is one value of the metric."""
        self.along = "total_steps" if config.total_steps else "iteration"
        self.budget = config.total_steps or config.agent.max_iterations
        """How far a trial trains, by the column `along`."""
        save_interval = min(config.agent.save_interval, self.interval)
        self.config = replace(
            config,
            agent=replace(config.agent, save_interval=save_interval),
            eval_interval=self.interval if self.metric[:5] == "eval/" else config.eval_interval,
            keep_checkpoints=config.keep_checkpoints or 2,
        )
        self.name = "/".join(filter(None, (config.agent.experiment_name, config.agent.run_name)))
        self.defaults = defaults_in(self.space, config)
        """The configuration's own values, for the first trial; {} if the space lacks some."""
        self.most = wanted.trials
        if wanted.sampler == "grid":
            lists = {name: getattr(values, "choices", ()) for name, values in self.space.items()}
            if not all(lists.values()):
                raise UserError("--sampler grid: --try must have lists such as a,b, not ranges.")
            self._sampler = PointSampler(lists)
            self.defaults, self.most = {}, min(self.most, math.prod(map(len, lists.values())))
        else:
            numbers = [one for one in self.space.values() if hasattr(one, "low")]
            if wanted.sampler == "cmaes" and not numbers:
                raise UserError("--sampler cmaes: --try must have a range; lists vary at random.")
            samplers = {"tpe": TPESampler, "random": RandomSampler, "cmaes": CmaEsSampler}
            self._sampler = samplers[wanted.sampler]()
        # The first evaluation follows shortly after.
        first, factor = max(1, self.budget // (EVALUATIONS_PER_TRIAL + 1)), HALVING_FACTOR
        self._pruner = {
            "halving": SuccessiveHalvingPruner(first, reduction_factor=factor),
            "hyperband": HyperbandPruner(first, self.budget, reduction_factor=factor),
            "none": NopPruner(),
        }[wanted.pruner]
        self._agreed = {name: getattr(wanted, name) for name in ("metric", "sampler", "pruner")}
        self._agreed |= {f"try {name}": typed for name, typed in self.typed.items()}
        self._agreed |= {"task": self.task}
        for name, (value, _) in differences(self.config, found.defaults()).items():
            if name in COMPARED_FIELDS or decides_learning(name):
                self._agreed[name] = value

    def open(self, place: str, folder_id: str, is_new: bool) -> None:
        """Begin or continue Optuna's record in a file or a database, named by its URL.

        `folder_id` marks the trials of one folder. UserError if the place cannot be used, the study
        of that name is another sweep, or it is not there although it is not new.
        """
        self._folder_id = folder_id
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        try:
            self._storage = _open_storage(place)
            if not is_new and self.name not in optuna.get_all_study_names(self._storage):
                raise UserError(
                    f"--storage {place} does not have the sweep {self.name}: give where it is."
                )
            how = {"storage": self._storage, "sampler": self._sampler, "pruner": self._pruner}
            try:
                self.record = optuna.create_study(
                    study_name=self.name, direction=self.direction, **how
                )
                if self.defaults:
                    self.record.enqueue_trial(self.defaults)
            except DuplicatedStudyError:  # One machine has created it, and that one alone.
                self.record = optuna.load_study(study_name=self.name, **how)
        except (OptunaError, SQLAlchemyError, ImportError) as error:
            raise UserError(f"--storage {place}: {in_a_line(error)}") from None
        agreed = self.record.user_attrs.get(AGREED)
        if agreed is None:
            self.record.set_user_attr(AGREED, agreed := self._agreed)
        if wrong := [n for n in agreed | self._agreed if agreed.get(n) != self._agreed.get(n)]:
            raise UserError(
                f"the sweep {self.name} has begun with another {wrong[0]}: trials could not be "
                "compared. Another --agent.run-name begins another sweep."
            )

    def trials(self) -> list[FrozenTrial]:
        """Return the trials of all machines."""
        return [t for t in self.record.get_trials(deepcopy=False) if FOLDER in t.user_attrs]

    def unfinished(self) -> list[tuple[Trial, int]]:
        """Return the trials of this folder that have not ended, and the last step of each."""
        study_id = self._storage.get_study_id_from_name(self.name)
        find_id = self._storage.get_trial_id_from_study_id_trial_number
        return [
            (Trial(self.record, find_id(study_id, trial.number)), trial.last_step or 0)
            for trial in self.trials()
            if trial.user_attrs[FOLDER] == self._folder_id and trial.state == TrialState.RUNNING
        ]

    def best(self) -> FrozenTrial | None:
        """Return the trial with the best result of those that trained to their end."""
        is_any = any(trial.state == TrialState.COMPLETE for trial in self.trials())
        return self.record.best_trial if is_any else None

    def begin_trial(self) -> Trial | None:
        """Return a new trial with all its values, or None if there are enough on all machines."""
        if len(self.trials()) >= self.most:
            return None
        trial = self.record.ask({**self.space})
        trial.set_user_attr(FOLDER, self._folder_id)
        return trial


def check_storage(place: str) -> None:
    """Raise UserError if there is no such place for a record of trials. Nothing is created.

    `place` is as for `Study.open`.
    """
    try:
        url = make_url(place) if "://" in place else None
        if url and url.get_backend_name() != "sqlite":
            create_engine(url).connect().close()
            return
    except (SQLAlchemyError, ImportError, ValueError) as error:
        raise UserError(f"--storage {place}: {in_a_line(error)}") from None
    if url and url.database in (None, "", ":memory:"):
        raise UserError(f"--storage {place}: name a file, as in sqlite:////scratch/sweep.db.")
    path = Path((url and url.database) or place)
    if not url and path.exists() and not (path.is_file() and _is_journal(path)):
        raise UserError(f"--storage {place}: it is something else, and no record of trials.")
    folder = path.absolute().parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        why = "cannot be written" if folder.is_dir() else "is not there"
        raise UserError(f"--storage {place}: its folder {folder} {why}.")


def place_in(folder: Path) -> str:
    """Return the place of the record in a sweep's own folder."""
    database = str(folder.resolve() / "study.db")
    return URL.create("sqlite", database=database).render_as_string()


def _is_journal(path: Path) -> bool:
    """Return whether a file is empty, or begins as one into which Optuna writes trials."""
    with path.open("rb") as file:
        first = file.readline(FIRST_BYTES)
    try:
        return not first or "op_code" in dict(json.loads(first))
    except (ValueError, TypeError):
        return False


def _open_storage(place: str) -> BaseStorage:
    if "://" not in place:
        return JournalStorage(JournalFileBackend(place))
    options = {"pool_pre_ping": True}  # Servers close connections that are idle for hours.
    template = place.replace("{", "{{").replace("}", "}}")
    try:
        storage = RDBStorage(template, options)
    except SQLAlchemyError:
        time.sleep(1.0)  # Another machine may just be creating the tables of a new database.
        storage = RDBStorage(template, options)
    if storage.engine.name == "sqlite":
        # It locks only what writes: two machines would read that a trial waits, and both take it.
        event.listen(storage.engine, "begin", lambda c: c.exec_driver_sql("BEGIN IMMEDIATE"))
    return storage
