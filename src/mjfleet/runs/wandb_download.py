"""Downloads a checkpoint from Weights & Biases into a run directory. A process of its own.

What comes from there is somebody else's: only files with a run's names, of a sane size, are taken.
Its argument is a `WantedRun` as JSON, its current folder empty and on the log root's file system.
It prints its answer: what was `said`, the `run`, and the `path` to use, empty if nothing is there,
both below the log root; or an `error`.
"""

import json
import os
import re
import resource
import shutil
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import wandb
from wandb.sdk.lib.hashutil import md5_file_b64, xxh128_file_b64

from mjfleet.config import AgentConfig
from mjfleet.config.dict_conversion import value_at
from mjfleet.errors import UserError
from mjfleet.runs.checkpoint_archive import CHECKPOINT_BYTES, why_damaged
from mjfleet.runs.checkpoint_names import iteration_of
from mjfleet.runs.config_yaml import CONFIG_BYTES, CONFIG_FILE, read_config
from mjfleet.runs.run_json import RECORD_FILE, write_record
from mjfleet.runs.run_lookup import record_of, runs_in
from mjfleet.runs.wandb_run import FOLDER, WantedRun
from mjfleet.utils.console import in_a_line
from mjfleet.utils.parent_death import die_with_parent
from mjfleet.utils.safe_read import JSON_BYTES

CHECKPOINT = re.compile(r"(model_[0-9]{1,12}|best)\.pt")
LIMITS = {CONFIG_FILE: CONFIG_BYTES, RECORD_FILE: JSON_BYTES}
SECONDS = 10  # For an answer to a query.
LISTED = 5  # Names in a message.


def main() -> None:
    """Download what the argument says, and print the answer."""
    die_with_parent()
    try:
        answer = download(WantedRun(**json.loads(sys.argv[1])))
    except UserError as error:
        answer = {"error": str(error)}
    except (wandb.Error, OSError, ValueError) as error:
        answer = {"error": f"W&B: {in_a_line(error)}"}
    print(json.dumps(answer), flush=True)
    wandb.teardown()


def download(wanted: WantedRun) -> dict[str, Any]:
    """Download a checkpoint, and its run's files if they are there; return the answer."""
    files = _files(wandb.Api(timeout=SECONDS).run(wanted.path), wanted)
    (checkpoint,) = files.keys() - LIMITS
    is_run, file = RECORD_FILE in files, files[checkpoint]
    run_dir, root, experiment = Path(FOLDER, "run"), Path(wanted.log_root), wanted.experiment
    if is_run:
        for name in LIMITS:
            _get(name, files[name], run_dir)
        experiment = _experiment(run_dir, wanted.task)
        write_record(run_dir, wandb_id=wanted.run)  # Not that of another run.
    if experiment is None:
        raise UserError(
            f"{checkpoint} is there without {CONFIG_FILE}: only `train` and `play` can use it."
        )

    def answer(said: str, there: Path, is_there: bool = True) -> dict[str, Any]:
        inside = Path() if is_run and not wanted.checkpoint else Path("checkpoints", checkpoint)
        run = there.relative_to(root)
        path = str(run / inside) if is_there else ""
        return {"said": said, "run": str(run), "path": path}

    target = root / experiment / f"{wanted.run}_{Path(checkpoint).stem}"
    for there in (target, *_runs_of(wanted.run, root)):
        if _is(there / "checkpoints" / checkpoint, file):
            return answer(f"its {checkpoint} is already in", there)
    if os.path.lexists(target):
        raise UserError(f"{target} is there already, and is not it: move or remove that.")
    said = f"{checkpoint}, {file.size:,} bytes,"
    if wanted.dry_run:
        return answer(f"{said} would be downloaded into", target, is_there=False)
    _get(checkpoint, file, run_dir / "checkpoints")
    if damage := why_damaged(run_dir / "checkpoints" / checkpoint):
        raise UserError(f"its {checkpoint} is damaged or no checkpoint: {damage}.")
    target.parent.mkdir(parents=True, exist_ok=True)
    run_dir.rename(target)
    return answer(f"{said} was downloaded into", target)


def _files(run: Any, wanted: WantedRun) -> dict[str, Any]:
    """Return the files that there are of a checkpoint, by their names.

    They are those of a version of mjfleet's artifact, or a file of the run, as rsl_rl uploads it.
    """
    own = [one for one in run.logged_artifacts() if one.name.startswith(f"model-{wanted.run}:")]
    if own:
        own.sort(key=lambda version: int(version.version.removeprefix("v")))
        offered = {alias: version for version in own for alias in version.aliases}
    else:
        every = run.files(pattern="model_%.pt")
        uploaded = [one for one in every if CHECKPOINT.fullmatch(one.name)]
        uploaded.sort(key=lambda file: iteration_of(Path(file.name)) or 0)
        offered = {Path(file.name).stem: file for file in uploaded}
    names = [name for name in offered if CHECKPOINT.fullmatch(f"{name}.pt")]
    if not names:
        raise UserError("the run has no checkpoint there; --agent.wandb.checkpoints uploads them.")
    newest = [name for name in names if name != "best"] or names
    if (name := wanted.checkpoint or newest[-1]) not in names:
        raise UserError(f"the run has no {name} there; its newest: {', '.join(names[-LISTED:])}.")
    if not own:
        _check({offered[name].name: offered[name]})
        return {offered[name].name: offered[name]}
    _check(offered[name].manifest.entries)
    return {file: offered[name].get_entry(file) for file in offered[name].manifest.entries}


def _check(files: Mapping[str, Any]) -> None:
    """Refuse files that are not those of a run, or of an insane size."""
    checkpoints = [name for name in files if CHECKPOINT.fullmatch(name)]
    if len(checkpoints) != 1 or {*files} - {*checkpoints} not in ({*LIMITS}, set()):
        raise UserError(
            f"it holds {', '.join(map(repr, [*files][:LISTED]))} there; it must hold a checkpoint, "
            f"model_<n>.pt or best.pt, alone or with {' and '.join(LIMITS)}."
        )
    for name, file in files.items():
        if getattr(file, "ref", None) is not None or file.size is None:
            raise UserError(f"its {name} is a reference to a file elsewhere.")
        most = min(LIMITS.get(name, CHECKPOINT_BYTES), shutil.disk_usage(".").free)
        if file.size > most:
            raise UserError(f"its {name} has {file.size:,} bytes; {most:,} are allowed or free.")


def _get(name: str, file: Any, folder: Path) -> None:
    """Download a file, of no more bytes than were announced, into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        # W&B's own files are to fit, too.
        process.rlimit(resource.RLIMIT_FSIZE, (file.size + 2**20, resource.RLIM_INFINITY))
    file.download(str(folder), **({"skip_cache": True} if hasattr(file, "digest") else {}))
    if not _is(folder / name, file):
        raise UserError(f"its {name} has not arrived as it is recorded there.")


def _is(path: Path, file: Any) -> bool:
    """Return whether a file here is the one that is there."""
    if path.is_symlink() or not path.is_file() or path.stat().st_size != file.size:
        return False
    digest = getattr(file, "digest", None)
    return digest is None or digest in (md5_file_b64(path), xxh128_file_b64(path))


def _experiment(run_dir: Path, task: str | None) -> str:
    """Return the experiment of a run by its files; refuse that of another task."""
    its_task = record_of(run_dir)["task"]
    if task not in (None, its_task):
        raise UserError(f"it is a run of the task {its_task}, not of {task}.")
    config = read_config(str(run_dir / CONFIG_FILE), CONFIG_FILE)
    name = value_at(config, "agent.experiment_name")
    return AgentConfig(experiment_name=name or its_task).experiment_name  # It checks the name.


def _runs_of(run_id: str, root: Path) -> list[Path]:
    """Return the run directories here that are the same run on W&B."""
    found = []
    for run_dir in runs_in(root):
        with suppress(UserError):  # It is damaged.
            if record_of(run_dir).get("wandb_id") == run_id:
                found.append(run_dir)
    return found


if __name__ == "__main__":
    main()
