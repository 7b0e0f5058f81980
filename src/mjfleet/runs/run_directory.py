"""Creates, reopens and locks a run directory, and records each attempt. Runs in the launcher."""

import fcntl
import logging
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from importlib import resources
from pathlib import Path
from typing import Any

from mjfleet.config import TrainConfig
from mjfleet.errors import UserError
from mjfleet.runs.checkpoint_names import INIT
from mjfleet.runs.config_yaml import CONFIG_FILE, differences, placement_of, write_config
from mjfleet.runs.git_state import git_state
from mjfleet.runs.metrics_csv import completed_iterations
from mjfleet.runs.own_runs import add_note, id_of, note_of
from mjfleet.runs.resumed_attempt import PENDING
from mjfleet.runs.run_json import GROUP_FILE, RECORD_FILE, now, read_record, write_record
from mjfleet.runs.task_snapshot import TaskCode, keep, read_code
from mjfleet.utils.console import in_a_line, print_error
from mjfleet.utils.packages import stack_versions
from mjfleet.utils.safe_read import check_folder

LOCK_SECONDS = 3.0
"""How long to wait for a lock: the processes of a run that has just ended may still hold it."""

logger = logging.getLogger(__name__)


class RunDirectory:
    """The directory of a run that is about to start or to continue."""

    def __init__(
        self,
        path: Path,
        config: TrainConfig,
        defaults: TrainConfig,
        argv: Sequence[str],
        plan: Mapping[str, Any],
        lock: int | None,
        log_folder: Path | None,
        log_folder_name: str,
    ) -> None:
        """Create or reopen the directory, write config.yaml and run.json, create the log folder.

        Args:
            path, config, argv: of the run; `argv` is recorded in run.json.
            defaults: the task's; run.json records where the configuration differs from them.
            plan: the launch plan, for run.json, which tells more about this attempt to train.
            lock: the lock of a run that continues; see `lock_run`.
            log_folder, log_folder_name: folder of the workers' logs, and how messages name it.

        Raises:
            FileExistsError: the folder of a new run exists already.
            UserError: a folder cannot be created or written.
        """
        self.path, self._lock, self._undo = path.absolute(), lock, ExitStack()
        self._before: dict[str, Any] = {}
        """The entries of run.json that an attempt without an iteration leaves as they are."""
        name = f"--run-dir {path}" if config.run_dir else f"--log-root {config.log_root}"
        wanted = {} if plan["goes_on"] else {path: name}
        if log_folder is not None:
            wanted[log_folder] = log_folder_name
        with ExitStack() as on_failure:
            on_failure.callback(self.discard)
            for folder, name in wanted.items():
                try:
                    make_folder(folder, self._undo)
                except OSError as error:
                    if isinstance(error, FileExistsError) and folder.is_dir():
                        raise
                    raise UserError(f"{name}: {error.strerror}.") from None
            if not plan["goes_on"]:
                self._lock = lock_run(path)
            self.checkpoint: Path | None = plan["checkpoint"]
            """Where training continues from, or takes networks; a new run has its own copy."""
            code = read_code(plan["task_folder"])
            self.task_hash = code.hash
            try:
                if plan["goes_on"]:  # Checked before anything in it is written or moved.
                    check_folder(path)
                self._record(config, differences(config, defaults), argv, plan, code)
            except OSError as error:
                raise UserError(f"{path}: {error.strerror}.") from None
            on_failure.pop_all()

    def discard(self) -> None:
        """Undo everything, since nothing has run: the files are as they were before."""
        self._undo.close()
        self.close()

    def close(self) -> None:
        """Release the lock of the run."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

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
        kept = self._before if is_undone else {}
        try:
            *before, last = read_record(self.path)["attempts"]
            entries = ended | kept | {"attempts": [*before, last | ended | details]}
            write_record(self.path, RECORD_FILE, **entries)
            shutil.rmtree(self.path / PENDING, ignore_errors=True)
        except (OSError, LookupError, TypeError, ValueError) as error:
            why = "the run directory is gone" if not self.path.exists() else in_a_line(error)
            logger.warning("%s does not say how the run ended: %s", self.path / RECORD_FILE, why)

    def _record(
        self,
        config: TrainConfig,
        different: Mapping[str, tuple[Any, Any]],
        argv: Sequence[str],
        plan: Mapping[str, Any],
        code: TaskCode,
    ) -> None:
        """Write config.yaml and run.json, and keep the task's code.

        Of a run that continues, all but run.json waits for `take_up`.
        """
        record, place = read_record(self.path), self.path
        attempts = record.get("attempts", [])
        (self.path / "checkpoints").mkdir(exist_ok=True)
        if plan["goes_on"]:
            file, place = self.path / RECORD_FILE, self.path / PENDING
            self._undo.callback(file.write_bytes, file.read_bytes())
            left_out = {"attempts"}
            if record.get("status") == "running":  # It was killed: how this attempt ends counts.
                left_out |= {"status", "ended"}
            self._before = {n: entry for n, entry in record.items() if n not in left_out}
            shutil.rmtree(place, ignore_errors=True)
            make_folder(place, self._undo)
        elif self.checkpoint:
            parent = plan["parent"]
            name = INIT if parent["networks_only"] else f"model_{parent['iteration'] or 0}.pt"
            copy = self.path / "checkpoints" / name
            self.checkpoint = Path(shutil.copyfile(self.checkpoint, copy))
        # An attempt that was killed has recorded nothing.
        if attempts and attempts[-1].get("status") == "running":
            attempts[-1] |= {"status": "killed", "iterations": completed_iterations(self.path)}
        self._move_failures(len(attempts))
        write_config(place / CONFIG_FILE, plan["task"], config, self.path / CONFIG_FILE)
        run_id = self._run_id(config, plan["parent"])
        start = {"argv": list(argv), "started": now(), "iterations": 0}
        this = start | {
            "ended": None,
            "status": "running",
            "checkpoint": self.checkpoint.name if self.checkpoint else None,
            "is_restart": plan["is_restart"],
            "code": keep(code, self.path, place),
        }
        package = Path(str(resources.files("mjfleet")))
        write_record(
            self.path,
            **({} if attempts else start | {"task": plan["task"]}),
            **({"parent": plan["parent"]} if plan["parent"] else {}),
            id=run_id,
            status="running",
            ended=None,
            seed=config.agent.seed,
            host=os.uname().nodename,
            pid=os.getpid(),
            changed={n: {"value": v, "default": d} for n, (v, d) in different.items()},
            plan={name: entry for name, entry in plan.items() if name != "parent"},
            versions=stack_versions(*config.agent.packages),
            git=git_state([package, plan["task_folder"]], with_diff=True),
            attempts=[*attempts, this],
        )
        add_note(self.path, run_id, placement_of(config), code.hash)

    def _run_id(self, config: TrainConfig, parent: Mapping[str, Any] | None) -> str:
        """Return the run's id: that of a run begun here, WANDB_RUN_ID, or a new one."""
        if "wandb" not in config.agent.logger or note_of(self.path):
            return id_of(self.path)
        wanted = os.environ.get("WANDB_RUN_ID")
        if wanted and wanted != (parent or {}).get("id"):
            return wanted
        if (self.path / RECORD_FILE).exists():
            print_error(f"W&B: a new run there, since this installation did not begin {self.path}")
        return id_of(self.path)

    def _move_failures(self, attempts: int) -> None:
        """Move the last attempt's failure files into failures/attempt_<number>."""
        folder = self.path / "failures"
        aside = folder / f"attempt_{attempts}"
        if not folder.exists():
            self._undo.callback(_remove_empty, folder)
        for path in [path for path in folder.glob("*") if path.is_file()]:
            if not aside.exists():
                aside.mkdir()
                self._undo.callback(_remove_empty, aside)
            self._undo.callback(path.replace(aside / path.name).replace, path)
        self._undo.callback(_remove_records, folder)


def make_folder(folder: Path, undo: ExitStack) -> None:
    """Make a folder and its parents, which `undo` removes; OSError if it exists or cannot be."""
    for parent in reversed(folder.parents):
        if not parent.exists():
            parent.mkdir(exist_ok=True)
            undo.callback(_remove_empty, parent)
    folder.mkdir()
    undo.callback(shutil.rmtree, folder, ignore_errors=True)


def lock_run(run_dir: Path) -> int | None:
    """Lock a run directory or a group's, so that no other process continues it meanwhile.

    Returns a descriptor to close at the end, or None on a file system without such locks. UserError
    if another process holds the lock, or has removed the directory.
    """
    lock = os.open(run_dir, os.O_RDONLY)
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if run_dir.exists():
                return lock
            os.close(lock)
            raise UserError(f"{run_dir} has been removed meanwhile.")
        except BlockingIOError:
            if time.monotonic() < deadline:
                time.sleep(0.1)
                continue
            os.close(lock)
            record = read_record(run_dir) or read_record(run_dir, GROUP_FILE)
            pid, host = map(record.get, ("pid", "host"))
            raise UserError(
                f"{run_dir} is being trained by process {pid} on {host}. Stop it first."
            ) from None
        except OSError:
            os.close(lock)
            return None


def is_locked(run_dir: Path) -> bool:
    """Return whether a process has locked a run; also True on a file system without locks."""
    lock = os.open(run_dir, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(lock)
    return False


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):  # Another process has put a file into it.
        folder.rmdir()


def _remove_records(folder: Path) -> None:
    for record in folder.glob("rank*.json"):
        record.unlink()
