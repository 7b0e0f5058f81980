"""Creates and reopens a run directory, and records each attempt to train. Runs in the launcher."""

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
from mjfleet.runs.checkpoint_names import INIT
from mjfleet.runs.config_yaml import (
    CONFIG_FILE,
    TEACHER,
    differences,
    placement_of,
    write_config,
)
from mjfleet.runs.git_state import git_state
from mjfleet.runs.metrics_csv import METRICS_FILE, completed_iterations
from mjfleet.runs.own_runs import add_note, id_of, note_of
from mjfleet.runs.resume_choice import Parent
from mjfleet.runs.resumed_attempt import PENDING
from mjfleet.runs.run_json import RECORD_FILE, now, read_record, write_record
from mjfleet.runs.run_lock import LOCK_FILE, REQUEUE_SECONDS, RunLock, lock_run
from mjfleet.runs.task_snapshot import FOLDER, keep, read_code
from mjfleet.utils.console import in_a_line, print_error
from mjfleet.utils.packages import stack_versions
from mjfleet.utils.safe_read import check_folder

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
    parent: Parent | None = None  # Of a run of its own.
    is_restart: bool = False


class RunDirectory:
    """The directory of a run that is about to start or to continue.

    Attributes:
        path: the directory.
        checkpoint: where training continues from; a new run has its own copy of its parent's.
        task_hash: of the task's code.
    """

    def __init__(self, path: Path, attempt: Attempt, lock: RunLock) -> None:
        """See `create` and `reopen`."""
        self.path, self._lock, self.checkpoint = path.absolute(), lock, attempt.checkpoint
        self.task_hash = ""
        self._made: list[Path] = []  # The folders that were made for this attempt, parents first.
        self._logs: Path | None = None  # That of the workers' output, if it is one of these.
        self._moved: dict[Path, Path] | None = None
        """Where the last attempt's failure files are, by where they were; None: still there."""
        self._record_before: bytes | None = None  # None: the run is new.
        self._kept_entries: dict[str, Any] = {}
        """The entries of run.json that an attempt without an iteration leaves as they are."""

    @classmethod
    def create(cls, path: Path, attempt: Attempt, log_folder: Path | None) -> Self:
        """Make the directory of a new run; --run-dir may be a folder that holds no run.

        `log_folder` is that of the workers' output.

        Raises:
            FileExistsError: another run has taken the name.
            UserError: a folder cannot be made or written.
        """
        made = make_folder(path, "--run-dir" if attempt.config.run_dir else "--log-root")
        if path not in made and not attempt.config.run_dir:
            raise FileExistsError(path)
        try:
            lock = lock_run(path, REQUEUE_SECONDS)
        except BaseException:
            remove_empty(made)
            raise
        run = cls(path, attempt, lock)
        run._made = made
        if (path / RECORD_FILE).exists():
            run.close()
            raise UserError(f"a run has begun in {path} meanwhile: start the command again.")
        run._start(attempt, log_folder)
        return run

    @classmethod
    def reopen(cls, path: Path, attempt: Attempt, log_folder: Path | None, lock: RunLock) -> Self:
        """Open the directory of a run that continues, whose lock is held.

        Raises:
            UserError: it holds a link, or cannot be written.
        """
        run = cls(path, attempt, lock)
        try:
            check_folder(path)
            run._record_before = (path / RECORD_FILE).read_bytes()
        except BaseException:
            run.close()
            raise
        run._start(attempt, log_folder)
        return run

    def discard(self) -> None:
        """Undo everything, since nothing has run: the files are as they were before."""
        if self._record_before is None:
            for path in written_in(self.path):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            (self.path / LOCK_FILE).unlink(missing_ok=True)
        else:
            (self.path / RECORD_FILE).write_bytes(self._record_before)
            shutil.rmtree(self.path / PENDING, ignore_errors=True)
            if self._moved is not None:
                for record in (self.path / "failures").glob("rank*.json"):
                    record.unlink()
                for before, aside in self._moved.items():
                    aside.replace(before)
        if self._logs:
            shutil.rmtree(self._logs, ignore_errors=True)
        remove_empty(self._made)
        self.close()

    def close(self) -> None:
        """Release the lock of the run."""
        self._lock.close()

    def end(self, status: str, **details: Any) -> None:
        """Record how this attempt ended; if that cannot be, log a warning instead.

        Args:
            status: "finished", "stopped" or "failed".
            details: more entries of the attempt, such as the cause of a failure.
        """
        done = completed_iterations(self.path)
        ended = {"status": status, "ended": now(), "iterations": done}
        if is_undone := (self.path / PENDING).exists():
            details["is_undone"] = True
        kept = self._kept_entries if is_undone else {}
        try:
            *before, last = read_record(self.path)["attempts"]
            entries = ended | kept | {"attempts": [*before, last | ended | details]}
            write_record(self.path, RECORD_FILE, **entries)
            shutil.rmtree(self.path / PENDING, ignore_errors=True)
        except (OSError, LookupError, TypeError, ValueError) as error:
            why = "the run directory is gone" if not self.path.exists() else in_a_line(error)
            logger.warning("%s does not say how the run ended: %s", self.path / RECORD_FILE, why)

    def _start(self, attempt: Attempt, log_folder: Path | None) -> None:
        """Record the attempt and make its folders, or leave everything as it was."""
        try:
            if log_folder is not None:
                self._made += (made := make_folder(log_folder, "torchrunx log directory"))
                self._logs = log_folder if log_folder in made else None
            self._record(attempt)
        except OSError as error:
            self.discard()
            raise UserError(f"{self.path}: {error.strerror}.") from None
        except BaseException:
            self.discard()
            raise

    def _record(self, attempt: Attempt) -> None:
        """Write run.json, then config.yaml and the task's code.

        Of a run that continues, all but run.json waits for the first iteration: `adopt_attempt`.
        """
        record, place, config = read_record(self.path), self.path, attempt.config
        attempts, parent, source = record.get("attempts", []), attempt.parent, attempt.checkpoint
        if self._record_before is not None:
            place = self.path / PENDING
            left_out = {"attempts"}
            if record.get("status") == "running":  # It was killed: how this attempt ends counts.
                left_out |= {"status", "ended"}
            self._kept_entries = {n: entry for n, entry in record.items() if n not in left_out}
        if parent:
            name = INIT if parent.networks_only else f"model_{parent.iteration or 0}.pt"
            self.checkpoint = self.path / "checkpoints" / name
        run_id = self._run_id(config, parent)
        # An attempt that was killed has recorded nothing.
        if attempts and attempts[-1].get("status") == "running":
            attempts[-1] |= {"status": "killed", "iterations": completed_iterations(self.path)}
        code, different = read_code(attempt.task_folder), differences(config, attempt.defaults)
        self.task_hash = code.hash
        teacher = {"named": config.teacher, "checkpoint": value_at(to_dict(config), TEACHER)}
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
            git=git_state([package, attempt.task_folder], with_diff=True),
            attempts=[*attempts, this],
        )
        shutil.rmtree(self.path / PENDING, ignore_errors=True)
        for folder in (self.path / "checkpoints", place):
            folder.mkdir(exist_ok=True)
        if parent and source and self.checkpoint:
            shutil.copyfile(source, self.checkpoint)
        self._move_failures(len(attempts))
        write_config(place / CONFIG_FILE, attempt.task, config, self.path / CONFIG_FILE)
        keep(code, self.path, place)
        add_note(self.path, run_id, placement_of(config), code.hash)

    def _run_id(self, config: TrainConfig, parent: Parent | None) -> str:
        """Return the run's id: that of a run begun here, WANDB_RUN_ID, or a new one."""
        if "wandb" not in config.agent.logger or note_of(self.path):
            return id_of(self.path)
        wanted = os.environ.get("WANDB_RUN_ID")
        if wanted and wanted != (parent and parent.id):
            return wanted
        if (self.path / RECORD_FILE).exists():
            print_error(f"W&B: a new run there, since this installation did not begin {self.path}")
        return id_of(self.path)

    def _move_failures(self, attempts: int) -> None:
        """Move the last attempt's failure files into failures/attempt_<number>."""
        folder = self.path / "failures"
        aside, self._moved = folder / f"attempt_{attempts}", {}
        for path in [path for path in folder.glob("*") if path.is_file()]:
            if not aside.exists():
                aside.mkdir()
                self._made.append(aside)
            self._moved[path] = path.replace(aside / path.name)
        if not folder.exists() and self._record_before is not None:
            self._made.append(folder)  # A worker makes it, if it fails.


def written_in(folder: Path) -> list[Path]:
    """Return what a run, or a command about it, has written into its directory."""
    return [path for name in WRITTEN for path in sorted(folder.glob(name))]


def refuse_written(folder: Path) -> None:
    """Raise UserError if a folder in which a run is to begin holds what one writes, or a link."""
    check_folder(folder)
    if found := [path.name for path in written_in(folder)]:
        raise UserError(
            f"--run-dir {folder}: it has no {RECORD_FILE}, so it holds no run, but "
            f"{', '.join(found)}, which a run would write. Name another folder, or move these away."
        )


def make_folder(folder: Path, name: str) -> list[Path]:
    """Make a folder and its parents, unless it is there; return those that are new.

    Raises:
        UserError: it cannot be made. The message calls it `name`.
    """
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    made = list[Path]()
    for path in reversed(missing):
        try:
            path.mkdir()
        except FileExistsError:
            continue  # Another process has made it meanwhile.
        except OSError as error:
            remove_empty(made)
            raise UserError(f"{name} {folder}: {error.strerror}.") from None
        made.append(path)
    if not folder.is_dir():
        raise UserError(f"{name} {folder}: it is no folder.")
    return made


def remove_empty(folders: Sequence[Path]) -> None:
    """Remove folders, of which parents come first, that hold nothing."""
    for folder in reversed(folders):
        with suppress(OSError):
            folder.rmdir()
