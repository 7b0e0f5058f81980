"""A run's directory: made or opened again, locked, its record kept, given back if nothing ran."""

import logging
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any

from mjfleet.config import TrainConfig
from mjfleet.errors import UserError
from mjfleet.launch.launch_plan import LaunchPlan
from mjfleet.runs.config_yaml import CONFIG_FILE, write_config
from mjfleet.runs.resume_choice import lock_run
from mjfleet.runs.run_json import (
    METRICS_FILE,
    RECORD_FILE,
    git_state,
    now,
    read_record,
    write_record,
)
from mjfleet.utils.packages import stack_versions
from mjfleet.worker.failure_record import Failure

logger = logging.getLogger(__name__)


class RunDir:
    """The directory of a run that is about to begin, or to go on."""

    def __init__(
        self, plan: LaunchPlan, config: TrainConfig, argv: Sequence[str], lock: int | None
    ) -> None:
        """Make it, or open it again, with config.yaml and run.json, and the folder of the logs.

        Args:
            plan: names it.
            config: is written into it.
            argv: is recorded.
            lock: its lock, where it goes on; see `lock_run`.

        Raises:
            FileExistsError: a run of that name exists, and is not to go on.
            UserError: a folder cannot be made or written.
        """
        self.path = plan.run_dir
        self._lock = lock
        wanted = {} if plan.goes_on else {plan.run_dir: f"--log-root {config.log_root}"}
        log_file = plan.workers[0].log_file
        if log_file is not None:
            source = plan.torchrunx_log_dir_source
            wanted[log_file.parent] = f"torchrunx log directory {plan.torchrunx_log_dir} ({source})"
        self._own: list[Path] = []
        self._around = [p for f in wanted for p in (f, *f.parents) if not p.exists()]
        self._before: dict[str, bytes] = {}
        self._moved: dict[Path, Path] = {}
        self._failures_are_own = not plan.goes_on
        if plan.goes_on:
            files = (CONFIG_FILE, RECORD_FILE)
            self._before = {name: (self.path / name).read_bytes() for name in files}
        for folder, what in wanted.items():
            try:
                folder.mkdir(parents=True)
                self._own.append(folder)
            except OSError as error:
                self.discard()
                if isinstance(error, FileExistsError) and folder.is_dir():
                    raise
                raise UserError(f"{what}: {error.strerror}.") from None
        if not plan.goes_on:
            self._lock = lock_run(self.path)
        try:
            self._write(plan, config, argv)
        except OSError as error:
            self.discard()
            raise UserError(f"{self.path}: {error.strerror}.") from None

    def discard(self) -> None:
        """Leave everything as it was before: nothing has run."""
        for name, content in self._before.items():
            (self.path / name).write_bytes(content)
        if self._failures_are_own:
            for record in self.path.glob("failures/rank*.json"):
                record.unlink()
        for path, aside in self._moved.items():
            aside.replace(path)
        for folder in self._own:
            shutil.rmtree(folder, ignore_errors=True)
        for folder in (*{aside.parent for aside in self._moved.values()}, *self._around):
            with suppress(OSError):  # It was never made, or somebody has put something into it.
                folder.rmdir()
        self.close()

    def close(self) -> None:
        """Let others go on with the run."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def end(
        self, status: str, failure: Failure | None = None, is_asked_to_stop: bool = False
    ) -> None:
        """Record how this attempt has ended; on a full disk, warn that it is not recorded."""
        *before, last = read_record(self.path)["attempts"]
        done = completed_iterations(self.path)
        last |= {"ended": now(), "status": status, "iterations": done}
        if failure:
            last |= {"cause": failure.summary, "kind": failure.kind, "iteration": failure.iteration}
            last |= {"is_asked_to_stop": is_asked_to_stop}
        ended = {"status": status, "ended": now(), "iterations": done}
        try:
            write_record(self.path, **ended, attempts=[*before, last])
        except OSError as error:
            logger.warning("%s could not be written: %s", self.path / RECORD_FILE, error.strerror)

    def _write(self, plan: LaunchPlan, config: TrainConfig, argv: Sequence[str]) -> None:
        (self.path / "checkpoints").mkdir(exist_ok=True)
        before = read_record(self.path).get("attempts", [])
        if before and before[-1]["status"] == "running":  # It could not say how it ended.
            before[-1] |= {"status": "killed", "iterations": completed_iterations(self.path)}
        self._keep_failures(len(before))
        self._failures_are_own = True
        write_config(self.path / CONFIG_FILE, plan.task, config)
        attempt = {
            "argv": list(argv),
            "started": now(),
            "ended": None,
            "status": "running",
            "checkpoint": plan.checkpoint.name if plan.checkpoint else None,
            "is_restart": plan.is_restart,
            "iterations": 0,
        }
        package = Path(str(resources.files("mjfleet")))
        first = {"argv": list(argv), "task": plan.task, "started": now(), "iterations": 0}
        write_record(
            self.path,
            **({} if before else first),
            status="running",
            ended=None,
            seed=plan.seed,
            host=os.uname().nodename,
            pid=os.getpid(),
            plan=_plain(asdict(plan)),
            versions=stack_versions(*config.agent.packages),
            git=git_state([package, plan.task_folder]),
            attempts=[*before, attempt],
        )

    def _keep_failures(self, attempts: int) -> None:
        """Move what the last attempt left out of the way of what may come."""
        folder = self.path / "failures"
        aside = folder / f"attempt_{attempts}"
        for path in [path for path in folder.glob("*") if path.is_file()]:
            aside.mkdir(exist_ok=True)
            self._moved[path] = path.replace(aside / path.name)


def completed_iterations(run_dir: Path) -> int:
    """Iterations that metrics.csv tells of."""
    try:
        *_, last = (run_dir / METRICS_FILE).read_text().splitlines()
    except (FileNotFoundError, ValueError):
        return 0
    number = last.partition(",")[0]
    return int(number) if number.isdecimal() else 0


def _plain(value: Any) -> Any:
    """Paths as text, all the way down."""
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value
