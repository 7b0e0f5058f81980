"""The Weights & Biases sink: a queue, and a thread that does everything that may take long.

W&B may ask a server that never answers, at init, at finish and at the end of the process. Rank 0
puts rows into the queue and never waits, except at the end, and there not for long.
"""

import logging
import os
import signal
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from mjfleet.report.file_sinks import Row
from mjfleet.report.record import read_record, write_record
from mjfleet.tell import in_a_line

if TYPE_CHECKING:
    from wandb import Run

INIT_SECONDS = 30.0
"""How long the server may take to answer before the run is recorded offline."""
START_SECONDS = 10.0
"""How long `close` waits for a start that training has not left enough time for."""
FINISH_SECONDS = 30.0
"""How long `close` waits, once started, for the rest to be uploaded."""

logger = logging.getLogger(__name__)


class WandbSink:
    """A Weights & Biases run, the same one whenever its run directory is resumed.

    Without a login, or where the server cannot be reached, it is recorded offline; nothing ever
    asks for a login. What fails in the thread is raised by the next `write`, or by `close`.
    """

    def __init__(self, run_dir: Path, project: str, config: Mapping[str, Any]) -> None:
        # Chosen here and not by W&B: only the main thread may write run.json, and it must be
        # known before the server has answered.
        run_id = read_record(run_dir).get("wandb_id") or uuid.uuid4().hex[:16]
        write_record(run_dir, wandb_id=run_id)
        self._run_dir = run_dir
        self._options = {
            "project": os.environ.get("WANDB_PROJECT", project),
            "name": run_dir.name,
            "dir": str(run_dir),
            "config": dict(config),
            "id": run_id,
            "resume": "allow",
        }
        self._rows: SimpleQueue[Row | None] = SimpleQueue()
        self._started = Event()
        self._error: Exception | None = None
        self._thread = Thread(target=self._work, name="wandb", daemon=True)
        self._thread.start()

    def write(self, row: Row) -> None:
        """Hand a row to the thread.

        Raises:
            Exception: what ended the thread.
        """
        if self._error:
            raise self._error
        self._rows.put(dict(row))

    def close(self) -> None:
        """Let the thread finish, for a limited time.

        Raises:
            TimeoutError: not all of it was uploaded in that time.
            Exception: what ended the thread.
        """
        self._rows.put(None)
        started = self._started.wait(START_SECONDS)
        if started:
            self._thread.join(FINISH_SECONDS)
        if self._thread.is_alive():
            # Once the hook is taken back, this waits for uploads as well: in a thread, for which
            # the process does not wait.
            letting_go = Thread(target=_let_go, name="wandb teardown", daemon=True)
            letting_go.start()
            letting_go.join(1)
            _end_service()
            if started:
                rest = f"`wandb sync {self._run_dir}/wandb/run-*` uploads the rest"
            else:
                rest = "it has none of the metrics"
            raise TimeoutError(f"the server does not answer; {rest}")
        if self._error:
            raise self._error

    def _work(self) -> None:
        try:
            run = self._start()
            self._started.set()
            while row := self._rows.get():
                values = {name: value for name, value in row.items() if value is not None}
                run.log(values, step=int(values["iteration"]))
            run.finish()
        except Exception as error:  # The main thread makes this one warning of whatever it is.
            self._error = error
        finally:
            self._started.set()
            _let_go()

    def _start(self) -> "Run":
        # W&B's telemetry has a hook of its own at exit, which would wait for a server that does
        # not answer, and which nothing takes back.
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb
        from wandb.errors import CommError

        # `console`: copying the terminal's output to W&B would let every print wait for it.
        settings = wandb.Settings(silent=True, console="off", init_timeout=INIT_SECONDS)
        mode = wandb.setup(settings).settings.mode
        later = f"`wandb sync {self._run_dir}/wandb/offline-run-*` uploads it later"
        if mode in ("offline", "dryrun", "disabled") or wandb.login(prompt=False, verify=False):
            try:
                return wandb.init(settings=settings, **self._options)
            except CommError as error:
                logger.warning("W&B: recording offline, %s: %s", later, in_a_line(error))
                _let_go()  # W&B's process would call the id taken.
        else:
            logger.warning("W&B: not logged in, recording offline; %s", later)
        return wandb.init(mode="offline", settings=settings, **self._options)


def _let_go() -> None:
    """End W&B's own process, and take back its hook that at exit waits for uploads."""
    import wandb

    # Data that can be saved is saved by now; why the rest cannot has had its warning.
    with suppress(Exception):
        wandb.teardown()


def _end_service() -> None:
    """Kill W&B's own process, which would go on trying after us, with our terminal or pipe open.

    It is a child of this process; what it was given by now is in the run directory.
    """
    for children in Path("/proc/self/task").glob("*/children"):
        for pid in children.read_text().split():
            if Path(f"/proc/{pid}/comm").read_text().strip() == "wandb-core":
                os.kill(int(pid), signal.SIGKILL)
