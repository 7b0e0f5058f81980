"""Finds runs under a log root by path, by name, by a part of the name, or by `latest`."""

import difflib
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from mjfleet.errors import UserError
from mjfleet.runs.metrics_csv import METRICS_FILE
from mjfleet.runs.run_json import RECORD_FILE, read_record
from mjfleet.utils.console import in_a_line

LATEST = "latest"
ON_WANDB = "wandb:"  # What a word for a run on W&B begins with.
LISTED = 5  # Number of runs that a message names at most.
NEAR = 0.6  # Similarity of a run's name to the typed word, 0 to 1, from which it is suggested.


def runs_in(root: Path, experiment: str | None = None) -> list[Path]:
    """Return the run directories under a log root, of one experiment or all, damaged ones too."""
    folders = root.glob("*/*") if experiment is None else (root / experiment).glob("*")
    files = (RECORD_FILE, METRICS_FILE)
    return [path for path in folders if any(os.path.lexists(path / name) for name in files)]


def failure_files(run_dir: Path, pattern: str) -> list[Path]:
    """Return the files of all attempts' failures, which no link leads to, by a pattern."""
    folders = [run_dir / "failures", *(run_dir / "failures").glob("attempt_*")]
    return [p for folder in folders if not folder.is_symlink() for p in folder.glob(pattern)]


def record_of(run_dir: Path) -> dict[str, Any]:
    """Return the entries of a run's run.json.

    Raises:
        UserError: they cannot be read, or name no task. The message begins with "its run.json".
    """
    try:
        record = read_record(run_dir)
    except OSError as error:
        raise UserError(f"its {RECORD_FILE}: {error.strerror}.") from None
    except ValueError as error:
        raise UserError(f"its {RECORD_FILE}: {in_a_line(error)}.") from None
    if "task" not in record:
        raise UserError(f"its {RECORD_FILE} names no task.")
    return record


def started_at(record: dict[str, Any]) -> float:
    """Return the start of a run in seconds since the epoch, or 0 if its record has none."""
    try:
        return datetime.fromisoformat(str(record.get("started"))).timestamp()
    except (ValueError, OverflowError):
        return 0.0


def find_run(
    wanted: str,
    name: str,
    root: Path,
    experiment: str | None = None,
    task: str | None = None,
    dry_run: bool = False,
) -> Path:
    """Return the path of the run, or of the checkpoint, that a word means.

    Args:
        wanted: a path, `latest` or `<experiment>/latest` (the run that was started last), a run's
            name, its beginning, or a word in it, with the experiment in front or without, or a run
            on W&B, which is downloaded.
        name: how messages name it.
        root: the log root.
        experiment: if given, `latest` is this experiment's, and its runs take precedence.
        task: of which alone a run is downloaded; None: any.
        dry_run: whether to exit instead of downloading, see `fetch_run`.

    Raises:
        UserError: no run, or several runs, match.
    """
    if wanted.startswith(ON_WANDB):
        from mjfleet.runs.wandb_run import fetch_run  # Other words do not wait for it.

        return fetch_run(wanted, name, root, experiment, task, dry_run)
    folder, _, last = wanted.rpartition("/")
    if wanted == LATEST or (last == LATEST and not os.path.exists(wanted)):
        return _latest(name, root, Path(folder).name or experiment)
    if os.path.exists(wanted):
        return Path(wanted)
    runs = sorted(runs_in(root), key=lambda run: (run.name, run), reverse=True)
    word = re.compile(rf"(?<![^\W_]){re.escape(wanted)}(?![^\W_])")
    found = [run for run in runs if wanted in _names(run)]
    found = found or [run for run in runs if any(n.startswith(wanted) for n in _names(run))]
    found = found or [run for run in runs if any(map(word.search, _names(run)[:2]))]
    found = [run for run in found if run.parent.name == experiment] or found
    if len(found) == 1:
        return found[0]
    if found:
        more = f", and {len(found) - LISTED} more" if len(found) > LISTED else ""
        raise UserError(f"{name} fits several runs: {_listed(found)}{more}. Give more of the name.")
    beginnings = {n[: len(wanted)]: run for run in reversed(runs) for n in _names(run)}
    alike = difflib.get_close_matches(wanted, beginnings, LISTED, NEAR)
    near = list(dict.fromkeys(beginnings[beginning] for beginning in alike))
    raise UserError(
        f"{name} does not exist, and no run in {root} has a name that begins with it or has it as "
        f"a word. {f'Similar names: {_listed(near)}. ' if near else ''}"
        f"`mjfleet runs --log-root {root}` lists all."
    )


def _latest(name: str, root: Path, experiment: str | None) -> Path:
    """Return the run that was started last."""
    started = {}
    for run in runs_in(root, experiment):
        with suppress(UserError):
            started[run] = started_at(record_of(run))
    if not started:
        folder = root / experiment if experiment else root
        raise UserError(f"{name}: there is no run in {folder}.")
    return max(started, key=lambda run: (started[run], run))


def _names(run: Path) -> tuple[str, ...]:
    """Return the names of a run: alone, with its experiment, and with the log root."""
    return run.name, f"{run.parent.name}/{run.name}", str(run)


def _listed(runs: Sequence[Path]) -> str:
    return ", ".join(_names(run)[1] for run in runs[:LISTED])
