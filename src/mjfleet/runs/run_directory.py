"""Enters attempts to train into a run's directory, and records how they end. In the launcher."""

import logging
import os
import shutil
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from importlib import resources
from pathlib import Path
from secrets import token_hex
from types import MappingProxyType
from typing import Any

from mjfleet.config import TrainConfig
from mjfleet.errors import UserError
from mjfleet.runs.attempts import (
    ATTEMPTS,
    PLAN_FILE,
    TOKEN,
    Attempts,
    attempts_in,
    complete,
    current_attempt,
    ended_attempts,
    folder_of,
    keep_earlier_layout,
    remove,
    write_attempts,
    write_pointer,
)
from mjfleet.runs.checkpoints import (
    CHECKPOINT_BYTES,
    FINAL,
    INIT,
    checkpoints_in,
    name_also,
    rank_files_of,
)
from mjfleet.runs.config_yaml import differences, placement_of, write_config
from mjfleet.runs.find_run import is_of_this_user, iterations_in, refuse_inside_run
from mjfleet.runs.git_state import git_state
from mjfleet.runs.metrics_csv import METRICS_FILE, completed_iterations
from mjfleet.runs.named_run import Parent, begun_with
from mjfleet.runs.own_runs import add_note, copied_from, id_of, note_of, remove_note
from mjfleet.runs.run_files import copy_files
from mjfleet.runs.run_json import (
    CONFIG_FILE,
    GROUP_FILE,
    RECORD_FILE,
    now,
    read_record,
    record_file,
    write_json,
)
from mjfleet.runs.run_lock import BRIEF_SECONDS, LOCK_FILE, REQUEUE_SECONDS, is_locked, lock_run
from mjfleet.runs.start import Chosen
from mjfleet.runs.task_snapshot import FOLDER, code_of, keep, snapshot_folder
from mjfleet.utils.atomic_write import copy_atomically
from mjfleet.utils.console import in_a_line, print_error
from mjfleet.utils.input_files import FOLDER as FILES
from mjfleet.utils.made_folders import make_folder, remove_empty
from mjfleet.utils.packages import stack_versions
from mjfleet.utils.safe_read import check_folder, open_regular

BEGUN = "a run has begun in {} meanwhile: start the command again."
WRITTEN = (
    CONFIG_FILE, "configs", ATTEMPTS, METRICS_FILE, "checkpoints", "failures", FOLDER, "torchrunx",
    FILES, "videos", "plots", "exported", "report.html", "wandb", "events.out.tfevents.*",
    ".attempt.tmp", GROUP_FILE, RECORD_FILE,
)  # fmt: skip
"""What a run, and commands about it, write into its directory beside the lock's file; names, or
patterns of them. `configs` and `.attempt.tmp` are of earlier versions. What is removed last comes
last: without run.json it is no run, without group.json no group."""

logger = logging.getLogger(__name__)


class RunDirectory:
    """The directory of a run or a group in which an attempt is about to start.

    Attributes:
        checkpoint: where training continues from; a new run has its own copy of its parent's.
        copied: the file of the parent that `checkpoint` is a copy of.
        token: the attempt's random name, which its checkpoints hold.
        task_hash: of the task's code.
    """

    def __init__(
        self,
        path: Path,
        chosen: Chosen,
        entries: Mapping[str, Any],
        logs: Path | None = None,
        placement: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """Enter an attempt into the run's directory where it starts, or that of a new run.

        The folder of a new run is made; --run-dir may be one that holds no run. `entries` are what
        run.json records besides: the launch plan, or a group's `kind`, whose members train in
        directories of their own. `logs` is the folder of the workers' output, `placement` more for
        the note.

        Raises:
            UserError: a folder cannot be made or written, holds a link, or is locked.
            FileExistsError: another run has taken a name that is not typed, or that of the logs; a
                `lock` of `chosen` is still held.
        """
        self.path, self.checkpoint, self.copied = path.absolute(), chosen.start.checkpoint, None
        self.task_hash, self.token, self._is_new = "", token_hex(8), chosen.start.run_dir is None
        self._is_group = "kind" in entries
        self._file = self.path / (GROUP_FILE if self._is_group else RECORD_FILE)
        self._log: LauncherLog | None = None
        with ExitStack() as undo:
            self._undo = undo
            if self._is_new:
                is_typed = bool(chosen.config.run_dir)
                made = make_folder(path, "--run-dir" if is_typed else "--log-root")
                undo.callback(remove_empty, made)
                if path not in made and not is_typed:
                    raise FileExistsError(path)
            check_run_folder(path)
            if logs is not None:
                made = make_folder(logs, "torchrunx log directory")
                undo.callback(remove_empty, made)
                if logs not in made:
                    raise FileExistsError(logs)
                undo.callback(shutil.rmtree, logs, ignore_errors=True)
            patience = REQUEUE_SECONDS if self._is_new else BRIEF_SECONDS
            self._lock = chosen.lock or lock_run(path, patience)
            undo.callback(self.close)
            if self._is_new and record_file(path).exists():
                raise UserError(BEGUN.format(path))
            if chosen.lock is None:
                undo.callback((self.path / LOCK_FILE).unlink, missing_ok=True)
            try:
                self._enter(chosen, entries, placement)
            except OSError as error:
                file = error.filename2 or error.filename or self.path
                raise UserError(f"{file}: {error.strerror}.") from None
            self._undo = undo.pop_all()

    def leave(self) -> None:
        """Undo the attempt, since nothing has run; a new run is removed completely."""
        self._undo.close()

    def close(self) -> None:
        """Release the lock of the run."""
        if self._log:
            logging.getLogger().removeHandler(self._log)
            with suppress(OSError):  # A full disk does not hold what was not written yet.
                self._log.close()
        self._lock.close()

    def end(self, status: str, **details: Any) -> None:
        """Record how this attempt ended; if that cannot be, log a warning instead.

        `status` is "finished", "stopped" or "failed"; `details` are more entries of the attempt.
        """
        iterations = dict[str, int]()
        try:
            iterations["iterations"] = iterations_in(self.path)
        except OSError as error:
            logger.warning("%s: the iterations are not known: %s", METRICS_FILE, error.strerror)
        try:
            *before, last = attempts = attempts_in(self.path)
            if current_attempt(self.path, attempts)[0] != len(attempts):
                details["is_undone"] = True
            this = {**last, "status": status, "ended": now(), **iterations, **details}
            write_attempts(self.path, [*before, this])
        except (OSError, LookupError, TypeError, ValueError, UserError) as error:
            why = in_a_line(error) if self._file.exists() else "it is gone"
            logger.warning("%s does not say how the run ended: %s", self._file, why)

    def _enter(
        self, chosen: Chosen, entries: Mapping[str, Any], placement: Mapping[str, Any]
    ) -> None:
        """Write the attempt's folder, then run.json, then what else it needs."""
        found, config, start = chosen.found, chosen.config, chosen.start
        path, parent, code = self.path, start.parent, code_of(found, config)
        self.task_hash = code.hash
        if self._is_new:
            self._undo.callback(self._remove)
        else:
            complete(path)
            keep_earlier_layout(path)
        attempts = ended_attempts(path)
        for record in [record for record in (path / "failures").glob("*") if record.is_file()]:
            aside = path / "failures" / f"attempt_{len(attempts)}"
            aside.mkdir(exist_ok=True)
            record.replace(aside / record.name)
        if parent and not self._is_group:
            name = INIT if parent.networks_only else f"model_{parent.iteration or 0}.pt"
            self.copied, self.checkpoint = self.checkpoint, path / "checkpoints" / name
        package, record = Path(str(resources.files("mjfleet"))), read_record(path)
        different = differences(config, found.defaults())
        plan = {
            **begun_with(record, config, parent),
            "id": id_of(path) if self._is_group else self._run_id(config, parent),
            "task": found.name,
            "seed": config.agent.seed,
            "host": os.uname().nodename,
            "pid": os.getpid(),
            "changed": {n: {"value": v, "default": d} for n, (v, d) in different.items()},
            **entries,
            "versions": stack_versions(*config.agent.packages),
            "git": git_state([package, found.folder]),
        }
        this = {
            "argv": list(chosen.argv),
            "started": now(),
            "iterations": 0,
            "ended": None,
            "status": "running",
            "checkpoint": self.checkpoint.name if self.checkpoint else None,
            "is_restart": start.is_restart,
            "code": {"hash": code.hash, "left_out": list(code.left_out)},
        }
        if not self._is_group:
            this[TOKEN] = self.token
        folder = folder_of(path, len(attempts) + 1)
        if not self._is_new:
            self._undo.callback(self._take_back, folder, attempts)
        shutil.rmtree(folder, ignore_errors=True)  # One that was killed may have left it.
        folder.mkdir(parents=True)
        write_json(folder / PLAN_FILE, plan)
        write_config(folder / CONFIG_FILE, found.name, config, path / CONFIG_FILE)
        write_attempts(path, [*attempts, this], plan, self._file)
        self._log = LauncherLog(folder / "launcher.log", encoding="utf-8", delay=True)
        logging.getLogger().addHandler(self._log)
        if self._is_group:
            complete(path)
        else:
            (path / "checkpoints").mkdir(exist_ok=True)
            keep(code, path)
            copy_files(found, config, path, start.base)
        if self.copied and self.checkpoint:
            beside = [] if self.checkpoint.name == INIT else rank_files_of(self.copied)
            copies = {x: self.checkpoint.parent / x.name for x in beside}
            copies[self.copied] = self.checkpoint  # The last one: with it the run can continue.
            for source, copy in copies.items():
                with open_regular(source, CHECKPOINT_BYTES) as original:
                    copy_atomically(original, copy)
        if self._is_new and not self._is_group:
            write_pointer(path, 1, parent.iteration or 0 if parent else 0)
            complete(path)
        add_note(path, plan["id"], {**placement_of(config), **placement}, code.hash)

    def _remove(self) -> None:
        """Remove what a new run has written."""
        remove_note(self.path)
        for path in written_in(self.path):
            remove(path)

    def _take_back(self, folder: Path, before: Attempts) -> None:
        """Leave the run as it was with the attempts `before` that of a folder."""
        if self.task_hash not in [(entry.get("code") or {}).get("hash") for entry in before]:
            shutil.rmtree(snapshot_folder(self.path, self.task_hash), ignore_errors=True)
        is_earlier = not (self._is_group or any(TOKEN in entry for entry in before))
        shutil.rmtree(folder.parent if is_earlier else folder, ignore_errors=True)
        for record in (self.path / "failures").glob("rank*.json"):
            record.unlink()
        remove_empty([self.path / "failures"])
        if len(attempts_in(self.path)) > len(before):  # Last: the rest may have filled the disk.
            write_attempts(self.path, before)

    def _run_id(self, config: TrainConfig, parent: Parent | None) -> str:
        """Return the run's id: that of a run begun here, WANDB_RUN_ID, or a new one."""
        wanted, other = os.environ.get("WANDB_RUN_ID"), copied_from(self.path)
        if "wandb" in config.agent.logger and (other or not note_of(self.path)):
            if wanted and wanted != (parent and parent.id):
                return wanted
            if (self.path / RECORD_FILE).exists():
                why = f"it is a copy of {other}" if other else "this installation did not begin it"
                print_error(f"W&B: a new run in {self.path}: {why}")
        return id_of(self.path)


class LauncherLog(logging.FileHandler):
    """Writes the launcher's warnings into the attempt's folder, too."""

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError):
            super().emit(record)
        if logging.lastResort and logging.getLogger().handlers == [self]:
            logging.lastResort.handle(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Continue without the file if the disk is full or its folder is gone."""


def finish_complete(run_dir: Path) -> None:
    """Record a run as finished if it was killed, or failed, after its last iteration."""
    check_run_folder(run_dir)
    complete(run_dir)
    attempts, folder = ended_attempts(run_dir), run_dir / "checkpoints"
    if read_record(run_dir).get("status") != "finished":
        entry = attempts[current_attempt(run_dir, attempts)[0] - 1] if attempts else {}
        done = {"status": "finished", "iterations": completed_iterations(run_dir)}
        entry |= done | {"ended": entry.get("ended") or now()}
        write_attempts(run_dir, attempts)
    newest, final = checkpoints_in(folder)[-1:], folder / FINAL
    if newest and not (final.exists() and final.samefile(newest[0])):
        name_also(newest[0], final)


def check_run_folder(folder: Path) -> None:
    """Raise UserError for a link in a run's folder; checkpoints may be one to this user's folder.

    See `check_folder`.
    """
    checkpoints = folder / "checkpoints"
    is_link = checkpoints.is_symlink()
    if is_link and not (checkpoints.is_dir() and is_of_this_user(checkpoints)):
        raise UserError(f"{checkpoints} is a symbolic link, which must lead to a folder of yours.")
    check_folder(folder, checkpoints if is_link else None)
    if is_link:
        check_folder(checkpoints)


def written_in(folder: Path) -> list[Path]:
    """Return what a run, or a command about it, has written into its directory."""
    return [path for name in WRITTEN for path in sorted(folder.glob(name))]


def refuse_written(folder: Path) -> None:
    """Raise UserError if no run can begin in a folder: it is inside another run, or holds what one
    writes, or a link."""
    refuse_inside_run(folder, f"--run-dir {folder} is")
    check_run_folder(folder)
    # A link for checkpoints may be empty. A killed process may have left an empty folder for logs,
    # and the folder of an attempt that run.json does not list yet.
    found = [path.name for path in written_in(folder) if not _is_empty(path)]
    if found and found != [ATTEMPTS]:
        if is_locked(folder):
            raise UserError(BEGUN.format(folder))
        raise UserError(
            f"--run-dir {folder}: it has no {RECORD_FILE}, so it holds no run, but "
            f"{', '.join(found)}, which a run would write. Name another folder, or move these away."
        )


def _is_empty(path: Path) -> bool:
    """Return whether a path is a folder without files."""
    return path.is_dir() and all(inside.is_dir() for inside in path.rglob("*"))
