"""Creates and reopens a run directory, and records each attempt to train. Runs in the launcher."""

import json
import logging
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Self

from mjfleet.config import TrainConfig, to_dict
from mjfleet.config.dict_conversion import value_at
from mjfleet.errors import UserError
from mjfleet.runs.checkpoints import INIT
from mjfleet.runs.config_yaml import CONFIG_FILE, TEACHER, differences, placement_of, write_config
from mjfleet.runs.git_state import git_state
from mjfleet.runs.metrics_csv import METRICS_FILE, completed_iterations
from mjfleet.runs.own_runs import add_note, id_of, note_of, remove_note
from mjfleet.runs.resume_choice import Parent
from mjfleet.runs.resumed_attempt import PENDING
from mjfleet.runs.run_json import RECORD_FILE, now, read_record, write_record
from mjfleet.runs.run_lock import LOCK_FILE, REQUEUE_SECONDS, RunLock, is_locked, lock_run
from mjfleet.runs.task_snapshot import FOLDER, TaskCode, keep, read_code
from mjfleet.utils.console import in_a_line, print_error
from mjfleet.utils.packages import stack_versions
from mjfleet.utils.safe_read import check_folder

BEGUN = "a run has begun in {} meanwhile: start the command again."
WRITTEN = (
    CONFIG_FILE, "configs", METRICS_FILE, "checkpoints", "failures", FOLDER, "torchrunx", "videos",
    "plots", "exported", "report.html", "wandb", "events.out.tfevents.*", PENDING, RECORD_FILE,
)  # fmt: skip
"""What a run, and commands about it, write into its directory beside the lock's file; names, or
patterns of them. What is removed last comes last: without run.json it is no run."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """An attempt to train, which is about to start."""

    task: str
    task_folder: Path
    config: TrainConfig
    defaults: TrainConfig  # The task's; run.json says where the configuration differs from them.
    argv: Sequence[str]
    plan: Mapping[str, Any]  # The launch plan, as run.json records it.
    checkpoint: Path | None  # Where training continues from, or takes networks; None: it begins.
    parent: Parent | None = None  # The run that this one has forked from.
    is_restart: bool = False


class _LogsExistError(FileExistsError):
    """The log folder of this second is that of another attempt, perhaps of another run."""


class RunDirectory:
    """The directory of a run that is about to start or to continue.

    Attributes:
        path: the directory.
        checkpoint: where training continues from; a new run has its own copy of its parent's.
        copied: the file of the parent that `checkpoint` is a copy of.
        task_hash: of the task's code.
    """

    def __init__(
        self, path: Path, attempt: Attempt, lock: RunLock, made: list[Path], before: bytes | None
    ) -> None:
        """See `create` and `reopen`; `before` is the content of run.json, None of a new run."""
        self.path, self._lock, self.checkpoint = path.absolute(), lock, attempt.checkpoint
        self.copied = attempt.checkpoint
        self.task_hash = ""
        self._made = made  # The folders that were made for this attempt, parents last.
        self._logs: Path | None = None  # That of the workers' output, if it is one of these.
        self._before, self._has_moved_failures = before, False
        self._is_locked_first = before is None  # Whether the lock's file is of this attempt.

    @classmethod
    def create(cls, path: Path, attempt: Attempt, log_folder: Path | None) -> Self:
        """Make the directory of a new run; --run-dir may be a folder that holds no run.

        `log_folder` is that of the workers' output. UserError if a folder cannot be made or
        written, FileExistsError if another run has taken the name, or that of the log folder.
        """
        made = make_folder(path, "--run-dir" if attempt.config.run_dir else "--log-root")
        if path not in made and not attempt.config.run_dir:
            raise FileExistsError(path)
        try:
            lock = lock_run(path, REQUEUE_SECONDS)
            if (path / RECORD_FILE).exists():
                lock.close()
                raise UserError(BEGUN.format(path))
        except BaseException:
            remove_empty(made)
            raise
        run = cls(path, attempt, lock, made, before=None)
        run._start(attempt, log_folder)
        return run

    @classmethod
    def reopen(
        cls, path: Path, attempt: Attempt, log_folder: Path | None, lock: RunLock | None
    ) -> Self:
        """Open the directory of a run that continues, and lock it unless its `lock` is held.

        UserError if it holds a link, or cannot be locked or written; FileExistsError, with the lock
        still held, if another attempt has taken the log folder.
        """
        check_folder(path)
        before = (path / RECORD_FILE).read_bytes()
        run = cls(path, attempt, lock or lock_run(path), [], before)
        run._is_locked_first = lock is None
        run._start(attempt, log_folder)
        return run

    def discard(self) -> None:
        """Undo everything, since nothing has run.

        Failure records of earlier attempts stay in their folders, `failures/attempt_<n>`.
        """
        if self._before is None:
            remove_note(self.path)
            for path in written_in(self.path):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        else:
            (self.path / RECORD_FILE).write_bytes(self._before)
            shutil.rmtree(self.path / PENDING, ignore_errors=True)
            if self._has_moved_failures:
                for record in (self.path / "failures").glob("rank*.json"):
                    record.unlink()
        if self._logs:
            shutil.rmtree(self._logs, ignore_errors=True)
        if self._is_locked_first:
            (self.path / LOCK_FILE).unlink(missing_ok=True)
        self._lock.close()
        remove_empty([self.path / "failures", *self._made])

    def close(self) -> None:
        """Release the lock of the run."""
        self._lock.close()

    def end(self, status: str, **details: Any) -> None:
        """Record how this attempt ended; if that cannot be, log a warning instead.

        `status` is "finished", "stopped" or "failed"; `details` are more entries of the attempt.
        """
        ended: dict[str, Any] = {"status": status, "ended": now()}
        try:
            ended["iterations"] = completed_iterations(self.path)
        except OSError as error:
            logger.warning("%s: the iterations are not known: %s", METRICS_FILE, error.strerror)
        kept: dict[str, Any] = {}
        if self._before is not None and (self.path / PENDING).exists():
            details["is_undone"] = True
            kept = json.loads(self._before)
            if kept.get("status") == "running":  # It was killed: how this attempt ends counts.
                kept |= ended
        try:
            *before, last = read_record(self.path)["attempts"]
            entries = ended | kept | {"attempts": [*before, last | ended | details]}
            write_record(self.path, RECORD_FILE, **entries)
            shutil.rmtree(self.path / PENDING, ignore_errors=True)
        except (OSError, LookupError, TypeError, ValueError) as error:
            file = self.path / RECORD_FILE
            why = in_a_line(error) if file.exists() else "it is gone"
            logger.warning("%s does not say how the run ended: %s", file, why)

    def _start(self, attempt: Attempt, log_folder: Path | None) -> None:
        """Record the attempt and make its folders, or leave everything as it was.

        FileExistsError if the log folder is another attempt's.
        """
        try:
            if log_folder is not None:
                made = make_folder(log_folder, "torchrunx log directory")
                self._made = [*made, *self._made]
                self._logs = log_folder if log_folder in made else None
                if self._logs is None:
                    raise _LogsExistError(log_folder)
            self._write(attempt, read_code(attempt.task_folder))
        except _LogsExistError:
            if self._is_locked_first:  # Otherwise the caller's lock is kept for the next name.
                self.discard()
            raise
        except OSError as error:
            self.discard()
            raise UserError(f"{self.path}: {error.strerror}.") from None
        except BaseException:
            self.discard()
            raise

    def _write(self, attempt: Attempt, code: TaskCode) -> None:
        """Write run.json, then config.yaml and the task's code.

        Where a run continues, `adopt_attempt` writes all but run.json after the first iteration.
        """
        place = self.path if self._before is None else self.path / PENDING
        record, config, parent = read_record(self.path), attempt.config, attempt.parent
        attempts, run_id = record.get("attempts", []), self._run_id(config, parent)
        self.task_hash = code.hash
        if parent:
            name = INIT if parent.networks_only else f"model_{parent.iteration or 0}.pt"
            self.checkpoint = self.path / "checkpoints" / name
        # An attempt that was killed has recorded nothing.
        if attempts and attempts[-1].get("status") == "running":
            attempts[-1] |= {"status": "killed", "iterations": completed_iterations(self.path)}
        teacher = {"named": config.teacher, "checkpoint": value_at(to_dict(config), TEACHER)}
        different = differences(config, attempt.defaults)
        start = {"argv": list(attempt.argv), "started": now(), "iterations": 0}
        this = start | {
            "ended": None,
            "status": "running",
            "checkpoint": self.checkpoint.name if self.checkpoint else None,
            "is_restart": attempt.is_restart,
            "code": {"hash": code.hash, "left_out": list(code.left_out)},
        }
        package = Path(str(resources.files("mjfleet")))
        write_record(
            self.path,
            RECORD_FILE,
            **({} if attempts else start),
            **({"parent": asdict(parent)} if parent else {}),
            **({"teacher": teacher} if config.teacher else {}),
            id=run_id,
            task=attempt.task,
            status="running",
            ended=None,
            seed=config.agent.seed,
            host=os.uname().nodename,
            pid=os.getpid(),
            changed={n: {"value": v, "default": d} for n, (v, d) in different.items()},
            plan=attempt.plan,
            versions=stack_versions(*config.agent.packages),
            git=git_state([package, attempt.task_folder]),
            attempts=[*attempts, this],
        )
        shutil.rmtree(self.path / PENDING, ignore_errors=True)
        for folder in (self.path / "checkpoints", place):
            folder.mkdir(exist_ok=True)
        if parent and attempt.checkpoint and self.checkpoint:
            shutil.copyfile(attempt.checkpoint, self.checkpoint)
        failures = self.path / "failures"
        for path in [path for path in failures.glob("*") if path.is_file()]:
            aside = failures / f"attempt_{len(attempts)}"
            aside.mkdir(exist_ok=True)
            path.replace(aside / path.name)
        self._has_moved_failures = True
        write_config(place / CONFIG_FILE, attempt.task, config, self.path / CONFIG_FILE)
        keep(code, self.path, place)
        add_note(self.path, run_id, placement_of(config), code.hash)

    def _run_id(self, config: TrainConfig, parent: Parent | None) -> str:
        """Return the run's id: that of a run begun here, WANDB_RUN_ID, or a new one."""
        wanted = os.environ.get("WANDB_RUN_ID")
        if "wandb" in config.agent.logger and not note_of(self.path):
            if wanted and wanted != (parent and parent.id):
                return wanted
            if (self.path / RECORD_FILE).exists():
                print_error(f"W&B: a new run, since this installation did not begin {self.path}")
        return id_of(self.path)


def record_finished(run_dir: Path) -> None:
    """Record that a run has finished whose process was killed after its last iteration."""
    record = read_record(run_dir)
    if record.get("status") == "running":
        ended = {"status": "finished", "ended": now(), "iterations": completed_iterations(run_dir)}
        *before, last = record["attempts"]
        write_record(run_dir, **ended, attempts=[*before, last | ended])


def written_in(folder: Path) -> list[Path]:
    """Return what a run, or a command about it, has written into its directory."""
    return [path for name in WRITTEN for path in sorted(folder.glob(name))]


def refuse_written(folder: Path) -> None:
    """Raise UserError if a folder in which a run is to begin holds what one writes, or a link."""
    check_folder(folder)
    if found := [path.name for path in written_in(folder)]:
        if RECORD_FILE in found or is_locked(folder):
            raise UserError(BEGUN.format(folder))
        raise UserError(
            f"--run-dir {folder}: it has no {RECORD_FILE}, so it holds no run, but "
            f"{', '.join(found)}, which a run would write. Name another folder, or move these away."
        )


def make_folder(folder: Path, name: str) -> list[Path]:
    """Make a folder and its parents, unless it is there; return those that are new, parents last.

    UserError, which calls it `name`, if it cannot be made.
    """
    made = [path for path in folder.parents if not path.exists()]
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):  # Another process may have made it meanwhile.
            folder.mkdir()
            made.insert(0, folder)
    except OSError as error:
        remove_empty(made)
        raise UserError(f"{name} {folder}: {error.strerror}.") from None
    return made


def remove_empty(folders: Sequence[Path]) -> None:
    """Remove folders, of which parents come last, that hold nothing."""
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()
