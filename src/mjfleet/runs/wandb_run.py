"""Finds a run on Weights & Biases by its address there. Runs in the process that the user started.

The download is a process of its own (wandb_download.py): it can be ended when the server does not
answer, and this process never imports wandb.
"""

import json
import os
import re
import sys
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from mjfleet.errors import UserError
from mjfleet.utils.child_process import ChildProcess, python_module
from mjfleet.utils.console import print_line
from mjfleet.utils.packages import need_extra
from mjfleet.utils.safe_read import bytes_in

WORD = re.compile(
    r"wandb:(?P<path>[^/:]+/[^/:]+/(?P<run>\w[\w.-]*))(:(?P<checkpoint>best|model_\d{1,12}))?",
    re.ASCII,
)
FOLDER = "new"  # Where the download writes, in the folder in which it runs.
STALL_SECONDS = 30.0  # For which the server may send nothing.


@dataclass(frozen=True, kw_only=True)
class WantedRun:
    """What to download, and where to."""

    path: str  # Entity, project and the run's id, with slashes between them.
    run: str  # The run's id alone.
    checkpoint: str | None  # `best` or `model_<n>`; None: the newest.
    log_root: str
    experiment: str | None  # For a checkpoint without a configuration; None: none is wanted.
    task: str | None  # The only one that is wanted; None: any.
    dry_run: bool


def fetch_run(
    word: str, name: str, log_root: Path, experiment: str | None, task: str | None, dry_run: bool
) -> Path:
    """Return the path of a run, or a checkpoint, on W&B; download it unless it is there already.

    It becomes a run directory, <log root>/<experiment>/<its id>_<checkpoint>, whole or not at all.

    Args:
        word: `wandb:<entity>/<project>/<run>`, and `:model_<n>` or `:best` after it.
        name: how messages name it.
        log_root, experiment, task: see `WantedRun`.
        dry_run: whether only to say what would be downloaded, and to exit then.

    Raises:
        UserError: the word is none of these, or the run cannot be had. Nothing is left behind.
    """
    if not (parts := WORD.fullmatch(word)):
        raise UserError(
            f"{name} must be wandb:<entity>/<project>/<run>, where <run> is the id at the end of "
            "the run's address; `:model_<n>` or `:best` after it name a checkpoint."
        )
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise UserError(
            f"{name}: only a process of its own downloads, not each of {os.environ['WORLD_SIZE']} "
            f"workers. `play <task> --resume {word}` downloads it too; then name its directory."
        )
    need_extra("wandb", word, ["wandb"])
    root = log_root.absolute()
    rest = {"experiment": experiment, "task": task, "dry_run": dry_run}
    wanted = WantedRun(**parts.groupdict(), log_root=str(root), **rest)
    there = next(folder for folder in (root, *root.parents) if folder.exists())
    with TemporaryDirectory(prefix=".mjfleet-", dir=None if dry_run else there) as folder:
        answer = _ask(wanted, Path(folder))
    if error := answer.get("error"):
        raise UserError(f"{name}: {error}")
    print_line(f"{word}: {answer['said']} {log_root / answer['run']}")
    if not answer["path"]:
        sys.exit()
    return log_root / answer["path"]


def _ask(wanted: WantedRun, folder: Path) -> dict[str, str]:
    """Return the answer of the process that downloads, which works in a folder."""
    (folder / FOLDER).mkdir()
    names = ("WANDB_CACHE_DIR", "WANDB_DATA_DIR", "WANDB_DIR")
    environ: dict[str, str | None] = dict.fromkeys(names, str(folder))
    environ |= {"WANDB_SILENT": "true", "WANDB_ERROR_REPORTING": "false"}
    environ["WANDB_SERVICE"] = None
    command = python_module("mjfleet.runs.wandb_download", json.dumps(asdict(wanted)))
    with ExitStack() as stack:
        # W&B's own temporary files; the path of a socket among them must be short.
        environ["TMPDIR"] = stack.enter_context(TemporaryDirectory())
        child = stack.enter_context(ChildProcess(command, environ=environ, cwd=folder))
        stack.callback(_kill_descendants, child.pid)
        received = 0
        while child.wait(STALL_SECONDS) is None:
            before, received = received, bytes_in(folder / FOLDER)
            if received == before:
                return {"error": f"W&B's server has sent nothing for {STALL_SECONDS:g} seconds."}
        if child.exit_code():
            last = child.errors().strip().rpartition("\n")[2]
            return {"error": f"the download {child.how_it_ended()}: {last}"}
        return json.loads(child.output().splitlines()[-1])


def _kill_descendants(pid: int) -> None:
    """Kill W&B's own process, which has a session of its own."""
    with suppress(psutil.NoSuchProcess):
        for process in psutil.Process(pid).children(recursive=True):
            process.kill()
