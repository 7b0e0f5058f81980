"""Logs to Weights & Biases, without waiting for its server. Runs in rank 0.

W&B waits for its server at init, at finish and at exit. Each wait is limited here.
"""

import json
import logging
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import psutil

from mjfleet.config import WandbConfig
from mjfleet.loggers.logger import Logger, Row
from mjfleet.runs.find_run import group_of
from mjfleet.runs.run_json import CONFIG_FILE, RECORD_FILE, read_record, record_to_share
from mjfleet.utils.console import in_a_line

if TYPE_CHECKING:
    from wandb import Run

INIT_SECONDS = 20.0  # How long to wait for the server before the run is recorded offline.

logger = logging.getLogger(__name__)


class WandbLogger(Logger):
    """A Weights & Biases run per run directory, which a resumed run continues.

    A run of its own that began from another one's checkpoint names that one as `parent` in its
    configuration there, with that one's id on W&B.

    Without a login or a reachable server, the run is recorded offline. Nothing asks for a login.
    """

    def __init__(
        self, run_dir: Path, wanted: WandbConfig, experiment: str, config: Mapping[str, Any]
    ) -> None:
        self._run_dir, self._wanted, self._experiment = run_dir, wanted, experiment
        self._config = dict(config)
        self._run: Run | None = None

    def open(self) -> None:
        import wandb
        from wandb.errors import CommError

        record = read_record(self._run_dir)
        if parent := record.get("parent"):
            self._config["parent"] = parent
        # At exit, W&B's telemetry would wait for a server that does not answer.
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        # Folder for copies of checkpoints until they are uploaded.
        os.environ.setdefault("WANDB_DATA_DIR", str(self._run_dir.resolve() / "wandb"))
        # With `console` on, every print would wait for W&B.
        settings = wandb.Settings(silent=True, console="off", init_timeout=INIT_SECONDS)
        own, wanted = wandb.setup(settings).settings, self._wanted
        group, name = group_of(self._run_dir), self._run_dir.name
        init: Callable[..., Run] = partial(
            wandb.init,
            project=wanted.project or own.project or self._experiment,
            entity=wanted.entity,
            group=wanted.group,
            tags=wanted.tags or None,
            notes=wanted.notes,
            name=own.run_name or (f"{group.name}/{name}" if group else name),
            dir=str(self._run_dir),
            config=self._config,
            id=record.get("id"),
            resume="allow",
            settings=settings,
        )
        is_local = (wanted.mode or own.mode) in ("offline", "dryrun", "disabled")
        why = "not logged in"
        if is_local or wandb.login(prompt=False, verify=False):
            try:
                self._run = init(mode=wanted.mode)
                return
            except CommError as error:
                why = in_a_line(error)
                _let_go()  # Otherwise W&B's process would report that the id is taken.
        later = f"`wandb sync {self._run_dir}/wandb/offline-run-*` uploads it later"
        logger.warning("W&B: recording offline, %s: %s", later, why)
        self._run = init(mode="offline")

    def write(self, row: Row) -> None:
        assert self._run
        values = {name: value for name, value in row.items() if value is not None}
        self._run.log(values, step=int(values["iteration"]))

    def video(self, path: Path, iteration: int) -> None:
        """Store a video with the newest row, since W&B accepts no earlier steps."""
        import wandb

        assert self._run
        video = wandb.Video(str(path), caption=f"after iteration {iteration}", format="mp4")
        self._run.log({"video": video}, commit=False)

    def checkpoint(self, path: Path, iteration: int) -> None:
        """Store a checkpoint as a version of an artifact, if wanted and if the file still exists.

        Its aliases are `latest` and the file's name without its extension. With config.yaml and a
        part of run.json it is all that a run directory needs elsewhere.
        """
        assert self._run
        if self._wanted.checkpoints and not self._run.disabled and path.exists():
            import wandb

            artifact = wandb.Artifact(
                f"model-{self._run.id}", type="model", metadata={"iteration": iteration}
            )
            artifact.add_file(str(path), skip_cache=True)
            if (config := self._run_dir / CONFIG_FILE).exists():
                artifact.add_file(str(config), skip_cache=True)
                with artifact.new_file(RECORD_FILE) as file:
                    json.dump(record_to_share(self._run_dir, iteration), file, indent=2)
            self._run.log_artifact(artifact, aliases=["latest", path.stem])

    def close(self, has_failed: bool) -> None:
        assert self._run
        self._run.finish(exit_code=int(has_failed))
        _let_go()

    def abandon(self) -> str:
        # It removes W&B's hook, which waits for uploads at exit, and then waits itself.
        letting_go = Thread(target=_let_go, name="W&B teardown", daemon=True)
        letting_go.start()
        letting_go.join(1)
        # W&B's own process would outlive this one, with our terminal or pipe open. All that it has
        # received is in the run directory.
        for child in psutil.Process().children():
            with suppress(psutil.NoSuchProcess):
                if child.name() == "wandb-core":
                    child.kill()
        return f"`wandb sync {self._run_dir}/wandb/*run-*` uploads what it has"


def _let_go() -> None:
    """End W&B's own process."""
    with suppress(Exception):  # A failure has been logged already.
        import wandb

        wandb.teardown()
