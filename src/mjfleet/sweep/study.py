"""The study of a sweep: Optuna's record of all trials, in a file or a database. In the launcher.

Several machines may work on one study. Each trial belongs to the sweep folder in which it began,
from the moment it exists, so that a trial is taken up again there and nowhere else.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, IntegrityError, SQLAlchemyError

from mjfleet.errors import UserError
from mjfleet.groups.group_record import GroupRecord
from mjfleet.sweep.definition import Definition
from mjfleet.utils.console import in_a_line

STUDY_FILE = "study.db"
FOLDER, SURPLUS, PRUNED, CAUSE = "folder", "surplus", "pruned at", "cause"
STEPS = "environment steps"
"""Attributes of a trial: the id of its sweep folder, whether there were enough trials without it,
where it was pruned, why it failed, and how many steps it has taken."""
AGREED = "mjfleet"
"""Attribute of a study: what has to be the same on all machines."""


class Study:
    """A study, as one sweep folder sees it; created if it does not exist.

    `storage` is a database's URL or a file; None: STUDY_FILE in the folder. `folder_id`, a random
    word, marks the trials of this folder.

    Raises:
        UserError: the storage cannot be used, or its study of that name is another sweep.
    """

    def __init__(
        self, storage: str | None, group: GroupRecord, folder_id: str, definition: Definition,
        name: str,
    ) -> None:  # fmt: skip
        self.definition, self._folder_id = definition, folder_id
        self._place = storage or f"sqlite:///{group.folder.resolve() / STUDY_FILE}"
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        way = "maximize" if definition.is_greater_better else "minimize"
        with self.explained():
            self._storage = _open_storage(self._place)
            if group.members and name not in optuna.get_all_study_names(self._storage):
                raise UserError(f"--storage: the sweep {name} of {group.folder} is in another one.")
            self.optuna = optuna.create_study(
                storage=self._storage, study_name=name, direction=way, load_if_exists=True,
                sampler=definition.sampler, pruner=definition.pruner,
            )  # fmt: skip
            self._id = self._storage.get_study_id_from_name(name)
            if not self.optuna.get_trials(deepcopy=False) and AGREED not in self.optuna.user_attrs:
                self.optuna.set_user_attr(AGREED, definition.agreed)
            theirs, ours = self.optuna.user_attrs.get(AGREED, {}), definition.agreed
        if changed := [key for key in theirs | ours if theirs.get(key) != ours.get(key)]:
            one, other = (side.get(changed[0], "as it is by default") for side in (theirs, ours))
            raise UserError(
                f"the sweep {name} has begun with {changed[0]} {one}, not {other}: its trials "
                "could not be compared. Another --agent.run-name begins another sweep."
            )

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Turn what the storage raises into a UserError."""
        try:
            yield
        except (optuna.exceptions.OptunaError, SQLAlchemyError, OSError, ImportError) as error:
            place = without_password(self._place)
            raise UserError(f"--storage {place}: {in_a_line(error)}") from None

    def trials(self) -> list[FrozenTrial]:
        """Return the trials of all machines."""
        every = self.optuna.get_trials(deepcopy=False)
        return [trial for trial in every if SURPLUS not in trial.user_attrs]

    def under_way(self) -> list[FrozenTrial]:
        """Return the trials of this folder that have not ended."""
        own = [t for t in self.trials() if t.user_attrs.get(FOLDER) == self._folder_id]
        return [trial for trial in own if not trial.state.is_finished()]

    def best(self) -> FrozenTrial | None:
        """Return the trial with the best result of those that trained to their end."""
        is_any = any(trial.state == TrialState.COMPLETE for trial in self.trials())
        return self.optuna.best_trial if is_any else None

    @property
    def is_full(self) -> bool:
        """Whether enough trials have begun on all machines."""
        return len(self.trials()) >= self.definition.most

    def go_on(self, number: int | None) -> Trial | None:
        """Return a trial of this folder with all its values, a new one for None.

        None: there are enough without it, if another machine began the last at the same moment.
        """
        if number is None:
            new = create_trial(state=TrialState.RUNNING, user_attrs={FOLDER: self._folder_id})
            trial_id = self._storage.create_new_trial(self._id, new)
            number = self._storage.get_trial_number_from_id(trial_id)
        trial_id = self._storage.get_trial_id_from_study_id_trial_number(self._id, number)
        place = sum(trial.number < number for trial in self.trials())
        if place >= self.definition.most:
            self._storage.set_trial_user_attr(trial_id, SURPLUS, True)
            self.optuna.tell(number, state=TrialState.FAIL)
            return None
        # As Study.enqueue_trial has it, and before anything can be chosen otherwise.
        given = self.definition.given(place)
        self._storage.set_trial_system_attr(trial_id, "fixed_params", given)
        trial = Trial(self.optuna, trial_id)
        for name, distribution in self.definition.space.items():
            match distribution:
                case CategoricalDistribution():
                    trial.suggest_categorical(name, distribution.choices)
                case IntDistribution(low=low, high=high, step=step, log=log):
                    trial.suggest_int(name, low, high, step=step, log=log)
                case FloatDistribution(low=low, high=high, step=step, log=log):
                    trial.suggest_float(name, low, high, step=step, log=log)
        return trial


def without_password(storage: str) -> str:
    """Return a database's URL as it may be shown and kept; a file's name as it is.

    Raises:
        UserError: the URL cannot be understood, so that nobody knows what in it is a password.
    """
    if "://" not in storage:
        return storage
    try:
        url = make_url(storage)
        names_user = url.username is not None
        if storage.count("@") > names_user and (names_user or url.host):
            raise ValueError("part of the password would count as the host")
    except (ArgumentError, ValueError):
        raise UserError(
            "--storage: it must be a database's URL, dialect://user:password@host/database, or a "
            "file. In its parts write %40, %3A and %2F for @, : and /."
        ) from None
    hidden = [name for name in url.query if "pass" in name.lower()]
    if url.password is None and not hidden:
        return storage
    return url.difference_update_query(hidden).render_as_string()


def _open_storage(place: str) -> BaseStorage:
    if "://" not in place:
        return JournalStorage(JournalFileBackend(place))
    while True:
        try:
            return RDBStorage(place, engine_kwargs={"pool_pre_ping": True})
        except SQLAlchemyError as error:
            # Another machine creates the tables of a new database at the same moment.
            if not isinstance(error, IntegrityError) and "already exists" not in str(error):
                raise
