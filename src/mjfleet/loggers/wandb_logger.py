"""The Weights & Biases sink.

W&B may ask a server that never answers, at init, at finish and at the end of the process.
"""

import logging
import os
import signal
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from mjfleet.config import WandbConfig
from mjfleet.loggers.logger import Row
from mjfleet.runs.run_json import read_record, write_record
from mjfleet.utils.console import in_a_line

if TYPE_CHECKING:
    from wandb import Run

INIT_SECONDS = 20.0
"""How long the server may take to answer before the run is recorded offline."""

logger = logging.getLogger(__name__)


class WandbSink:
    """A Weights & Biases run, the same one whenever its run directory is resumed.

    Without a login, or where the server cannot be reached, it is recorded offline; nothing ever
    asks for a login.
    """

    def __init__(
        self, run_dir: Path, wanted: WandbConfig, experiment: str, config: Mapping[str, Any]
    ) -> None:
        self._run_dir = run_dir
        self._wanted = wanted
        self._experiment = experiment
        self._config = dict(config)
        self._run: Run | None = None

    def open(self) -> None:
        """Start the run, or go on with it."""
        # Chosen here and not by W&B: it must be known before the server has answered.
        known = read_record(self._run_dir).get("wandb_id") or os.environ.get("WANDB_RUN_ID")
        run_id = known or uuid.uuid4().hex[:16]
        write_record(self._run_dir, wandb_id=run_id)
        # W&B's telemetry has a hook of its own at exit, which would wait for a server that does
        # not answer, and which nothing takes back.
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        # Copies of checkpoints, until they are uploaded.
        os.environ.setdefault("WANDB_DATA_DIR", str(self._run_dir.resolve() / "wandb"))
        self._run = self._start(run_id)

    def _start(self, run_id: str) -> "Run":
        import wandb
        from wandb.errors import CommError

        # `console`: copying the terminal's output to W&B would let every print wait for it.
        settings = wandb.Settings(silent=True, console="off", init_timeout=INIT_SECONDS)
        own, wanted = wandb.setup(settings).settings, self._wanted
        options: dict[str, Any] = {
            "project": wanted.project or own.project or self._experiment,
            "entity": wanted.entity,
            "group": wanted.group,
            "tags": wanted.tags or None,
            "notes": wanted.notes,
            "name": own.run_name or self._run_dir.name,
            "dir": str(self._run_dir),
            "config": self._config,
            "id": run_id,
            "resume": "allow",
            "settings": settings,
        }
        mode = wanted.mode or own.mode
        later = f"`wandb sync {self._run_dir}/wandb/offline-run-*` uploads it later"
        if mode in ("offline", "dryrun", "disabled") or wandb.login(prompt=False, verify=False):
            try:
                return wandb.init(mode=wanted.mode, **options)
            except CommError as error:
                logger.warning("W&B: recording offline, %s: %s", later, in_a_line(error))
                _let_go()  # W&B's process would call the id taken.
        else:
            logger.warning("W&B: not logged in, recording offline; %s", later)
        return wandb.init(mode="offline", **options)

    def write(self, row: Row) -> None:
        """Store a row."""
        assert self._run
        values = {name: value for name, value in row.items() if value is not None}
        self._run.log(values, step=int(values["iteration"]))

    def video(self, path: Path, iteration: int) -> None:
        """Store a video with the newest row: W&B takes nothing for steps that have passed."""
        import wandb

        assert self._run
        video = wandb.Video(str(path), caption=f"after iteration {iteration}", format="mp4")
        self._run.log({"video": video}, commit=False)

    def checkpoint(self, path: Path, iteration: int) -> None:
        """Store a checkpoint as a version of an artifact, if that is wanted and it is still there.

        Its aliases are `latest` and the file's name without its ending.
        """
        assert self._run
        if not self._wanted.checkpoints or self._run.disabled or not path.exists():
            return
        import wandb

        metadata = {"iteration": iteration}
        artifact = wandb.Artifact(f"model-{self._run.id}", type="model", metadata=metadata)
        artifact.add_file(str(path), skip_cache=True)
        self._run.log_artifact(artifact, aliases=["latest", path.stem])

    def close(self, has_failed: bool) -> None:
        """Upload the rest."""
        assert self._run
        self._run.finish(exit_code=int(has_failed))
        _let_go()

    def abandon(self) -> str:
        """Let go without waiting; returns how to upload the rest."""
        # Once the hook is taken back, this waits for uploads as well: in a thread, for which the
        # process does not wait.
        letting_go = Thread(target=_let_go, name="W&B teardown", daemon=True)
        letting_go.start()
        letting_go.join(1)
        _end_service()
        if self._run:
            return f"`wandb sync {self._run_dir}/wandb/*run-*` uploads the rest"
        return "it had not started, and has none of the metrics"


def _let_go() -> None:
    """End W&B's own process, and take back its hook that at exit waits for uploads."""
    # Data that can be saved is saved by now; why the rest cannot has had its warning.
    with suppress(Exception):
        import wandb

        wandb.teardown()


def _end_service() -> None:
    """Kill W&B's own process, which would go on trying after us, with our terminal or pipe open.

    It is a child of this process; what it was given by now is in the run directory.
    """
    has_ended = FileNotFoundError, ProcessLookupError  # A thread or process, while we look.
    pids: list[str] = []
    for children in Path("/proc/self/task").glob("*/children"):
        with suppress(*has_ended):
            pids += children.read_text().split()
    for pid in pids:
        with suppress(*has_ended):
            if Path(f"/proc/{pid}/comm").read_text().strip() == "wandb-core":
                os.kill(int(pid), signal.SIGKILL)
