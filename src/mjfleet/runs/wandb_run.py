"""Downloads a run from Weights & Biases by its address there. Runs in the process of the user."""

import os
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mjfleet.errors import UserError
from mjfleet.runs.checkpoint_archive import CHECKPOINT_BYTES, why_damaged
from mjfleet.runs.checkpoint_names import iteration_of
from mjfleet.runs.config_yaml import CONFIG_FILE
from mjfleet.runs.own_runs import add_note
from mjfleet.runs.run_json import RECORD_FILE, read_record, write_record
from mjfleet.utils.console import in_a_line, print_line

WORD = re.compile(
    r"wandb:(?P<path>[^/:]+/(?P<project>\w[\w.-]*)/(?P<run>\w[\w.-]*))"
    r"(:(?P<checkpoint>best|model_\d{1,12}))?",
    re.ASCII,
)
CHECKPOINT = re.compile(r"(model_[0-9]{1,12}|best)\.pt")
SECONDS = 10  # For an answer to a query.


def fetch_run(word: str, name: str, log_root: Path, task: str | None, dry_run: bool) -> Path:
    """Return the path of a run, or a checkpoint, on W&B; download it unless it is there already.

    It becomes a run directory, <log root>/<project>/<its id>_<checkpoint>, whole or not at all.

    Args:
        word: `wandb:<entity>/<project>/<run>`, and `:model_<n>` or `:best` after it.
        name: how messages name it.
        log_root: the folder of run directories.
        task: the only one that is wanted; None: any.
        dry_run: whether to say what would be downloaded, and to exit then.

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
    # W&B's reports of its own errors would wait for a server that does not answer.
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    import wandb

    try:
        run = wandb.Api(timeout=SECONDS).run(parts["path"])
        files = _files(run, parts["run"], parts["checkpoint"])
        checkpoint, is_run = next(iter(files)), RECORD_FILE in files
        target = log_root / parts["project"] / f"{parts['run']}_{Path(checkpoint).stem}"
        is_there = os.path.lexists(target)
        what = "is there" if is_there else "would be downloaded" if dry_run else "was downloaded"
        if not is_there and not dry_run:
            near = next(folder for folder in target.absolute().parents if folder.exists())
            with TemporaryDirectory(prefix=".mjfleet-", dir=near) as folder:
                run_dir = Path(folder, "run")
                _download(files, run_dir, checkpoint, task)
                if is_run:
                    write_record(run_dir, id=parts["run"])
                target.parent.mkdir(parents=True, exist_ok=True)
                run_dir.rename(target)
            add_note(target, parts["run"], {})  # By its address the user has named the W&B run.
    except UserError as error:
        raise UserError(f"{name}: {error}") from None
    except (wandb.Error, OSError, ValueError) as error:
        raise UserError(f"{name}: W&B: {in_a_line(error)}") from None
    finally:
        wandb.teardown()  # It ends W&B's own process.
    print_line(f"{word}: {checkpoint} {what}: {target}")
    if dry_run and not is_there:
        raise SystemExit
    return target if is_run and not parts["checkpoint"] else target / "checkpoints" / checkpoint


def _files(run: Any, run_id: str, wanted: str | None) -> dict[str, Any]:
    """Return the files of a checkpoint on W&B by their names, itself first.

    They are those of a version of mjfleet's artifact, or a file of the run, as rsl_rl uploads it.
    """
    own = [one for one in run.logged_artifacts() if one.name.startswith(f"model-{run_id}:")]
    own.sort(key=lambda version: int(version.version.removeprefix("v")))
    offered = {alias: version for version in own for alias in version.aliases}
    if not own:
        uploaded = [f for f in run.files(pattern="model_%.pt") if CHECKPOINT.fullmatch(f.name)]
        uploaded.sort(key=lambda file: iteration_of(Path(file.name)) or 0)
        offered = {Path(file.name).stem: file for file in uploaded}
    names = [name for name in offered if CHECKPOINT.fullmatch(f"{name}.pt")]
    if not names:
        raise UserError("the run has no checkpoint there; --agent.wandb.checkpoints uploads them.")
    name = wanted or sorted(names, key="best".__ne__)[-1]
    if name not in names:
        raise UserError(f"the run has no {name} there; its newest: {', '.join(names[-5:])}.")
    if not own:
        return {f"{name}.pt": offered[name]}
    there, files = offered[name].manifest.entries, (f"{name}.pt", CONFIG_FILE, RECORD_FILE)
    if files[0] not in there:
        raise UserError(f"its version {name} does not hold {files[0]}.")
    return {file: offered[name].get_entry(file) for file in files if file in there}


def _download(files: dict[str, Any], run_dir: Path, checkpoint: str, task: str | None) -> None:
    """Download a run directory's files, the checkpoint last.

    Raises:
        UserError: a file is too large, the run is of another task, or the checkpoint is damaged.
    """
    for name in reversed(files):
        if getattr(files[name], "ref", None) or not 0 < files[name].size <= CHECKPOINT_BYTES:
            raise UserError(f"its {name} is a reference to a file elsewhere, empty or too large.")
        if name == checkpoint and RECORD_FILE in files:
            its = read_record(run_dir).get("task")
            if task not in (None, its):
                raise UserError(f"it is a run of the task {its}, not of {task}.")
        folder = run_dir / "checkpoints" if name == checkpoint else run_dir
        folder.mkdir(parents=True, exist_ok=True)
        files[name].download(str(folder))
    if damage := why_damaged(run_dir / "checkpoints" / checkpoint):
        raise UserError(f"its {checkpoint} is damaged or no checkpoint: {damage}.")
