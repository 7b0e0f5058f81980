"""`mjfleet.Run`: a training run, to look at, to wait for, and to use its policy."""

import json
import math
import signal
from html import escape
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from mjfleet.api.choose_task import as_flags, check_kinds, choose_task, new_run_dir
from mjfleet.api.command_process import CommandProcess, folder_of, is_notebook
from mjfleet.api.task_by_value import ClassTask
from mjfleet.config import TrainConfig, from_dict
from mjfleet.config.dict_conversion import plain, value_at
from mjfleet.config.validation import check_kind
from mjfleet.errors import UserError
from mjfleet.runs.checkpoints import BEST, checkpoints_in
from mjfleet.runs.find_run import find_run, group_of, name_of
from mjfleet.runs.metrics_csv import METRICS_FILE, completed_iterations, read_rows, value
from mjfleet.runs.named_run import read_run, recorded_config
from mjfleet.runs.run_json import read_record, record_file
from mjfleet.runs.run_lock import is_locked
from mjfleet.worker.failure_record import Failure, read_failures

if TYPE_CHECKING:
    import numpy as np

    from mjfleet.api.policy import Policy

SHOWN = (
    "mean_return", "mean_episode_length", "mean_reward", "action_std", "global_steps_per_second",
)  # fmt: skip
"""Columns of metrics.csv that a notebook shows."""
DIRECTORY_FIELDS = ("experiment_name", "run_name")  # Fields of the agent that name a run directory.


class Run:
    """A run directory, also of a run that the command `train` has made.

    Args:
        run: the run directory, or a word that `train --resume` knows: a part of its name, `latest`.
        log_root: the folder that holds the run directories, for such a word.

    Raises:
        UserError: there is no such run.
    """

    def __init__(self, run: str | Path, log_root: str | Path = "logs") -> None:
        self.path = find_run(str(run), str(run), Path(str(log_root))).absolute()
        if self.path.is_file():
            raise UserError(f"{run} is a file, no run directory; Run.policy takes a checkpoint.")
        self._process: CommandProcess | None = None
        self._task = read_run(self.path, str(run)).task

    @classmethod
    def of_process(cls, process: CommandProcess, run_dir: Path, background: bool) -> "Run":
        """Return the run that a process trains by `train <task> ...`: at once in the background,
        otherwise after it has ended."""
        run = cls.__new__(cls)
        run.path, run._process, run._task = run_dir.absolute(), process, process.arguments[1]
        return run if background else run._shown_until_it_ends()

    def __reduce__(self) -> tuple[type, tuple[Path]]:
        return Run, (self.path,)  # Another process can look at it, but has not started it.

    def __repr__(self) -> str:
        return f"<Run {name_of(self.path)}: {self.status}, iteration {self.iteration}>"

    def _repr_html_(self) -> str:
        """Return a table for a notebook: the status, and the newest metrics."""
        _, rows = read_rows(self.path / METRICS_FILE)
        last = rows[-1] if rows else {}
        cells = {"run": self.name, "status": self.status, "iteration": last.get("iteration", "0")}
        cells |= {name: f"{v:.4g}" for name in SHOWN if (v := value(last, name)) is not None}
        lines = (f"<tr><td>{name}</td><td>{escape(v)}</td></tr>" for name, v in cells.items())
        return f"<table>{''.join(lines)}</table>"

    @property
    def name(self) -> str:
        """Experiment and name, as `mjfleet runs` shows them."""
        return name_of(self.path)

    @property
    def task(self) -> str:
        """The name of its task."""
        return self._task

    @property
    def status(self) -> str:
        """`running`, `finished`, `stopped`, `failed`, or `died` if it was killed."""
        if self.is_running:
            return "running"
        process = self._process  # If it was stopped before the run began, there is no record.
        otherwise = "stopped" if process and process.exit_code == 128 + signal.SIGINT else "failed"
        status = str(read_record(self.path).get("status", otherwise))
        return "died" if status == "running" else status

    @property
    def is_running(self) -> bool:
        """Whether a process trains it."""
        began = self._process and self._process.exit_code is None  # It may hold no lock yet.
        return bool(began) or is_locked(self.path)  # `resume` has begun another process.

    @property
    def iteration(self) -> int:
        """Iterations that are done."""
        return completed_iterations(self.path)

    @property
    def config(self) -> dict[str, Any]:
        """Its configuration, as config.yaml has it."""
        return recorded_config(self.path)

    @property
    def checkpoints(self) -> list[Path]:
        """Its checkpoints, the oldest first."""
        return checkpoints_in(self.path / "checkpoints")

    @property
    def best(self) -> Path | None:
        """The checkpoint with the greatest return in an evaluation; None: there was none."""
        path = self.path / "checkpoints" / BEST
        return path if path.exists() else None

    def metrics(self) -> "dict[str, np.ndarray]":
        """Return the columns of metrics.csv, float64, NaN where a field is empty."""
        import numpy as np

        columns, rows = read_rows(self.path / METRICS_FILE)
        return {c: np.array([float(row[c] or math.nan) for row in rows]) for c in columns}

    def frame(self) -> Any:
        """Return the metrics as a data frame of pandas or polars, whichever is installed.

        Raises:
            UserError: neither is.
        """
        installed = [name for name in ("pandas", "polars") if find_spec(name)]
        if not installed:
            raise UserError("Run.frame needs pandas or polars; Run.metrics needs neither.")
        return import_module(installed[0]).DataFrame(self.metrics())

    def wait(self, seconds: float = math.inf) -> "Run":
        """Wait until training has ended, or for so many seconds; return the run.

        Ctrl-C saves and stops it.

        Raises:
            UserError: training found a mistake; no run is left. Or it was not started here.
            TrainingError: a worker has failed, or training was killed.
        """
        process = self._own_process()
        check_kind("seconds", seconds, (int, float), "a number")
        code = process.wait(seconds)
        if code == 0 and not record_file(self.path).exists():
            raise UserError(
                f"{self.path}: nothing is left to do, so no run has begun there; "
                "max_iterations and total_steps are totals, not how many more."
            )
        if code and (code <= 128 or self.status == "died"):
            failures = read_failures(self.path)
            otherwise = process.errors or f"training ended with exit code {code}"
            raise TrainingError(self, failures[0] if failures else None, otherwise)
        return self

    def stop(self) -> "Run":
        """Save and stop after this iteration, wait for that, and return the run."""
        self._own_process().stop()
        return self.wait()

    def resume(
        self,
        task: type | None = None,
        *,
        fork: bool = False,
        background: bool = False,
        **changes: Any,
    ) -> "Run":
        """Continue training, as `train --resume` does; return the run.

        Args:
            task: the class of the run's task, if it has been changed since.
            fork: whether a run of its own begins from the newest checkpoint; `changes` may then
                decide what is learned.
            background: as for `mjfleet.train`.
            changes: as for `mjfleet.train`: `agent={"max_iterations": 500}`.

        Raises:
            UserError, TrainingError: as for `mjfleet.train`.
        """
        check_kinds(changes)
        own = None if task is None else choose_task(task, self.task, None, {})[0]
        files = own.files() if isinstance(own, ClassTask) else {}
        run_dir, made = self.path, 0
        if fork:
            log_root = self.path.parents[2 if group_of(self.path) else 1]
            names = {"experiment_name": self.path.relative_to(log_root).parts[0]}
            given = plain(changes)
            names |= {n: v for n in DIRECTORY_FIELDS if (v := value_at(given, f"agent.{n}"))}
            where = {"log_root": str(log_root), "run_dir": changes.get("run_dir")}
            run_dir, made = new_run_dir(from_dict(TrainConfig(), {**where, "agent": names}))
            changes |= {"fork": True, "run_dir": run_dir}
        folder = folder_of(files, run_dir) if files or fork else None
        command = ["train", self.task, "--resume", str(self.path), *as_flags(changes)]
        if files:
            command += ["--tasks-dir", f"{folder}/tasks"]
        process = CommandProcess(command, not background, folder, made)
        return Run.of_process(process, run_dir, background)

    def policy(self, checkpoint: str | Path | None = None, device: str = "cpu") -> "Policy":
        """Return the policy: a function from observations to mean actions, normaliser included.

        Args:
            checkpoint: a file; None: the newest.
            device: torch's name of the device.

        Raises:
            UserError: there is no such file, or no checkpoint yet; or the task's code does not fit.
        """
        from mjfleet.api.policy import Policy

        return Policy(str(self.path if checkpoint is None else checkpoint), device)

    def evaluate(
        self, episodes: int = 64, checkpoint: str | Path | None = None, **flags: Any
    ) -> dict[str, dict[str, float | None]]:
        """Play episodes with the mean action; return the numbers that `play` prints.

        Args:
            episodes: their number, rounded up to the same in each environment; there are as many as
                in training, at most 64.
            checkpoint: a file; None: the newest.
            flags: of the command `play`: `engine="native"`, `seed=2`, `env={"num_envs": 16}`.

        Returns:
            `mean`, `std`, `min` and `max` of the return, the length, each reward term and
            each of the task's metrics, by name: `result["return"]["mean"]`. None: it is not finite.

        Raises:
            UserError: the command fails; the text is what it prints.
        """
        with TemporaryDirectory(prefix="mjfleet-") as folder:
            file = Path(folder, "episodes.json")
            self._play(checkpoint, episodes=episodes, output=file, **flags)
            return json.loads(file.read_text())

    def video(
        self,
        path: str | Path | None = None,
        seconds: float = 10.0,
        checkpoint: str | Path | None = None,
        **flags: Any,
    ) -> Path:
        """Write an MP4 file of the policy's first episodes; return its path.

        Arguments and errors are as for `evaluate`; `seconds` are those of simulated time. `path`
        None: videos/policy.mp4 in the run directory.
        """
        if path is None:
            path = self.path / "videos" / "policy.mp4"
            path.parent.mkdir(exist_ok=True)
        self._play(checkpoint, video=path, video_seconds=seconds, **flags)
        return Path(path)

    def plot(self, path: str | Path | None = None, **flags: Any) -> Path:
        """Draw the curves of training into a PNG, SVG or PDF file; return its path.

        `flags` are those of `mjfleet plot`: `x="minutes"`, `columns=["mean_return"]`. UserError as
        for `evaluate`.
        """
        output = path or self.path / "plots" / "curves.png"
        self._command("plot", self.path, output=path, **flags)
        return Path(output)

    def export(
        self, path: str | Path | None = None, checkpoint: str | Path | None = None, **flags: Any
    ) -> Path:
        """Write the policy as a file that runs without mjfleet, ONNX by default; return its path.

        `flags` are those of `mjfleet export`: `format="torchscript"`. UserError as for `evaluate`.
        """
        names = {"torchscript": "policy.pt", "pretrained": f"{self.task}.pt"}
        self._command(
            "export", self.path if checkpoint is None else checkpoint, output=path, **flags
        )
        name = names.get(str(flags.get("format")), "policy.onnx")
        return Path(path) if path else self.path / "exported" / name

    def _shown_until_it_ends(self) -> "Run":
        if not is_notebook():
            return self.wait()
        from IPython.display import display

        handle: Any = display(self, display_id=True)
        self._own_process().wait(on_look=lambda: handle.update(self))
        handle.update(self)
        return self.wait()

    def _own_process(self) -> CommandProcess:
        if self._process is None:
            raise UserError(f"{self.path}: this process has not started its training.")
        return self._process

    def _play(self, checkpoint: str | Path | None, **flags: Any) -> None:
        self._command(
            "play", self.task, "--resume", self.path if checkpoint is None else checkpoint, **flags
        )

    def _command(self, *arguments: str | Path, **flags: Any) -> None:
        """Run a command of mjfleet's, quietly; UserError if it fails."""
        process = CommandProcess([*map(str, arguments), *as_flags(flags)], is_shown=False)
        code = process.wait()
        if code == 128 + signal.SIGINT:
            raise KeyboardInterrupt
        if code:
            raise UserError(f"{arguments[0]} of {self.path}: {process.errors}")


class TrainingError(Exception):
    """Training has failed. The text is what the command prints.

    Attributes:
        run: the `Run`, which can be resumed from its newest checkpoint.
        rank: the worker that failed first; None: none has recorded that.
        host: its host.
        phase: what it was doing: `build`, `collect`, `learn`, `save`, ...
        iteration: the iteration it was in, counted from 1; 0 before the first.
        kind: the class of its exception; or Killed, Exited, Hang, Lost.
        cause: that exception's message.
        traceback: of that exception, as text.
    """

    def __init__(self, run: Run, failure: Failure | None, otherwise: str) -> None:
        super().__init__(run, failure, otherwise)  # From which it is made again by pickle.
        self.run = run
        self.rank = failure and failure.rank
        self.host = failure and failure.host
        self.phase = failure and failure.phase
        self.iteration = failure and failure.iteration
        self.kind = failure and failure.kind
        self.cause = failure.message if failure else otherwise
        self.traceback = failure.traceback if failure else ""
        self._text = failure.report if failure else otherwise

    def __str__(self) -> str:
        return self._text
