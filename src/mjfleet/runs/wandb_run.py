"""Downloads a run from Weights & Biases by its address there. Runs in the process of the user."""

import os
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mjfleet.errors import UserError
from mjfleet.runs.checkpoints import CHECKPOINT_BYTES, iteration_of, why_damaged
from mjfleet.runs.own_runs import add_note
from mjfleet.runs.run_json import CONFIG_FILE, RECORD_FILE, write_record
from mjfleet.utils.console import in_a_line, print_line

ADDRESS = re.compile(
    r"wandb:(?P<path>[^/:]+/(?P<project>\w[\w.-]*)/(?P<run>\w[\w.-]*))"
    r"(:(?P<checkpoint>best|model_\d{1,12}))?",
    re.ASCII,
)
CHECKPOINT = re.compile(r"model_[0-9]{1,12}|best")
QUERY_SECONDS = 10  # How long a query may take.


def fetch_run(wanted: str, name: str, log_root: Path) -> Path:
    """Return the path of a run, or a checkpoint, on W&B; download it unless it is there already.

    It becomes a run directory, <log root>/<project>/<its id>_<checkpoint>, whole or not at all.
    `wanted` is `wandb:<entity>/<project>/<run>`, with `:model_<n>` or `:best` after it or without;
    messages call it `name`. UserError, with nothing left behind, if it cannot be downloaded.
    """
    if not (parts := ADDRESS.fullmatch(wanted)):
        raise UserError(
            f"{name} must be wandb:<entity>/<project>/<run>, where <run> is the id at the end of "
            "the run's address; `:model_<n>` or `:best` after it name a checkpoint."
        )
    # W&B's reports of its own errors would wait for a server that does not answer.
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    import wandb

    try:
        run = wandb.Api(timeout=QUERY_SECONDS).run(parts["path"])
        files = _files(run, parts["run"], parts["checkpoint"])
        checkpoint, is_run = next(iter(files)), RECORD_FILE in files
        target = log_root / parts["project"] / f"{parts['run']}_{Path(checkpoint).stem}"
        if not (is_there := os.path.lexists(target)):
            near = next(folder for folder in target.absolute().parents if folder.exists())
            with TemporaryDirectory(prefix=".mjfleet-", dir=near) as folder:
                run_dir = Path(folder, "run")
                _download(files, run_dir, checkpoint)
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
    print_line(f"{wanted}: {checkpoint} {'is there' if is_there else 'was downloaded'}: {target}")
    return target if is_run and not parts["checkpoint"] else target / "checkpoints" / checkpoint


def _files(run: Any, run_id: str, wanted: str | None) -> dict[str, Any]:
    """Return the files of a checkpoint on W&B by their names, itself first.

    They are those of a version of mjfleet's artifact, or a file of the run, as rsl_rl uploads it.
    """
    own = [one for one in run.logged_artifacts() if one.name.startswith(f"model-{run_id}:")]
    own.sort(key=lambda version: int(version.version.removeprefix("v")))
    offered = {alias: version for version in own for alias in version.aliases}
    if not own:
        uploaded = sorted(
            run.files(pattern="model_%.pt"), key=lambda file: iteration_of(Path(file.name)) or 0
        )
        offered = {Path(file.name).stem: file for file in uploaded}
    names = [name for name in offered if CHECKPOINT.fullmatch(name)]
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


def _download(files: dict[str, Any], run_dir: Path, checkpoint: str) -> None:
    """Download a run directory's files; UserError if one is a reference, or is damaged."""
    for name, file in files.items():
        if getattr(file, "ref", None) or not 0 < file.size <= CHECKPOINT_BYTES:
            raise UserError(f"its {name} is a reference to a file elsewhere, empty or too large.")
        folder = run_dir / "checkpoints" if name == checkpoint else run_dir
        folder.mkdir(parents=True, exist_ok=True)
        file.download(str(folder))
    if damage := why_damaged(run_dir / "checkpoints" / checkpoint):
        raise UserError(f"its {checkpoint} is damaged or no checkpoint: {damage}.")
