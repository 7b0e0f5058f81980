"""Finds runs under a log root by path, by name, by a part of the name, or by `latest`."""

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile

from mjfleet.errors import UserError
from mjfleet.runs.metrics_csv import METRICS_FILE, completed_iterations
from mjfleet.runs.run_json import CONFIG_FILE, RECORD_FILE, is_group, record_of, started_at

LATEST = "latest"
VISIBLE_NAMES = "[!.]*"  # Skips hidden folders: runs that are being deleted.
ON_WANDB = "wandb:"  # What the name of a run on W&B begins with.
LISTED_RUNS = 5  # Number of runs that a message names at most.


def runs_in(root: Path, experiment: str | None = None) -> list[Path]:
    """Return the run directories under a log root, of one experiment or all, damaged ones too.

    The members of groups are among them.
    """
    if experiment is None:
        folders = root.glob(f"*/{VISIBLE_NAMES}")
    else:
        folders = (root / experiment).glob(VISIBLE_NAMES)
    runs = ([path] if _is_run(path) else members_of(path) for path in folders)
    return [run for group in runs for run in group]


def groups_in(root: Path) -> list[Path]:
    """Return the folders of groups of runs under a log root."""
    return [path for path in root.glob(f"*/{VISIBLE_NAMES}") if is_group(path)]


def members_of(group: Path) -> list[Path]:
    """Return the run directories of a group in the order of their numbers; of no group, none."""
    found = filter(_is_run, group.glob(VISIBLE_NAMES)) if is_group(group) else ()
    return sorted(found, key=lambda run: (len(run.name), run.name))


def group_of(run: Path) -> Path | None:
    """Return the folder of the group that a run is a member of, if it is one."""
    return run.parent if is_group(run.parent) else None


def iterations_in(folder: Path) -> int:
    """Return the iterations that a run has completed, or at most one run of a group."""
    return max(map(completed_iterations, members_of(folder) or [folder]))


def name_of(run: Path) -> str:
    """Return the experiment and name of a run or a group; a member's group is in between."""
    return "/".join(run.parts[-3 if group_of(run) else -2 :])


def is_of_this_user(folder: Path) -> bool:
    """Return whether a folder belongs to the user as whom this process writes there.

    A network file system may know this user by another number, such as root as nobody.
    """
    try:
        owner = folder.stat().st_uid
        if owner == os.geteuid():
            return True
        with TemporaryFile(dir=folder) as file:
            return os.fstat(file.fileno()).st_uid == owner
    except OSError:
        return False


def failure_files(run_dir: Path, pattern: str) -> list[Path]:
    """Return the files of all attempts' failures, which no link leads to, by a pattern."""
    folders = [run_dir / "failures", *(run_dir / "failures").glob("attempt_*")]
    return [p for folder in folders if not folder.is_symlink() for p in folder.glob(pattern)]


def find_run(
    wanted: str,
    name: str,
    root: Path,
    experiment: str | None = None,
    task: str | None = None,
    may_be_group: bool = False,
) -> Path:
    """Return the path of the run, of the checkpoint or of the group that a user means.

    Args:
        wanted: a path, `latest` or `<experiment>/latest` (the run that was started last), a run's
            name, its beginning, or a word in it, with the experiment in front or without, or a run
            on W&B, which is downloaded.
        name: how messages name it.
        experiment: if given, `latest` is this experiment's, and its runs take precedence.
        task: limits `latest` to runs of this task; None: any.
        may_be_group: whether a group may be meant. `latest` is then the group of the member that
            was started last.

    Raises:
        UserError: no run, or several runs, match.
    """
    if not wanted:  # A script's variable is empty, say; every name begins with that.
        raise UserError(f"{name.strip() or 'RUN'}: no run is named; `{LATEST}` is the newest.")
    if wanted.startswith(ON_WANDB):
        from mjfleet.runs.wandb_run import fetch_run  # Others do not wait for it.

        refuse_inside_run(root, f"--log-root {root}: a run would be")
        return fetch_run(wanted, name, root)
    folder, _, last = wanted.rpartition("/")
    if wanted == LATEST or (last == LATEST and not os.path.exists(wanted)):
        newest = _latest(name, root, Path(folder).name or experiment, task)
        return (may_be_group and group_of(newest)) or newest
    if os.path.exists(wanted):
        if is_group(Path(wanted)) and not may_be_group:
            members = _listed(members_of(Path(wanted))) or "none yet"
            raise UserError(f"{name} is a group of runs; name one of them: {members}.")
        return Path(wanted)
    runs = filter(is_of_this_user, runs_in(root) + (groups_in(root) if may_be_group else []))
    runs = sorted(runs, key=lambda run: (run.name, run), reverse=True)
    word = re.compile(rf"(?<![^\W_]){re.escape(wanted)}(?![^\W_])")
    found = [run for run in runs if wanted in _names(run)]
    found = found or [run for run in runs if any(n.startswith(wanted) for n in _names(run))]
    found = found or [run for run in runs if any(map(word.search, _names(run)[:-1]))]
    found = [run for run in found if run.parent not in found]  # A group stands for its members.
    found = [run for run in found if (group_of(run) or run).parent.name == experiment] or found
    if len(found) == 1:
        return found[0]
    if found:
        more = f", and {len(found) - LISTED_RUNS} more" if len(found) > LISTED_RUNS else ""
        raise UserError(f"{name} fits several runs: {_listed(found)}{more}. Give more of the name.")
    raise UserError(
        f"{name} does not exist, and no run of yours in {root} has a name that begins with it or "
        f"has it as a word. `mjfleet runs --log-root {root}` lists all; runs of other users have "
        "to be named by their paths."
    )


def _latest(name: str, root: Path, experiment: str | None, task: str | None) -> Path:
    started = {}
    for run in filter(is_of_this_user, runs_in(root, experiment)):
        with suppress(UserError):
            record = record_of(run)
            if task in (None, record["task"]):
                started[run] = started_at(record)
    if not started:
        of_task = f" of the task {task}" if task and not experiment else ""
        folder = root / experiment if experiment else root
        raise UserError(f"{name}: there is no run{of_task} of this user in {folder}.")
    return max(started, key=lambda run: (started[run], run))


def refuse_inside_run(folder: Path, what: str) -> None:
    """Raise UserError, which begins with `what`, if a folder is a run's or is inside one."""
    path = Path(os.path.realpath(folder))
    for outer in (path, *path.parents):
        if all(os.path.exists(outer / name) for name in (RECORD_FILE, CONFIG_FILE)):
            raise UserError(f"{what} inside the run {outer}: name another folder.")


def refuse_log_root(log_root: str | Path, experiment: str) -> None:
    """Raise UserError if the runs of an experiment would be inside a run."""
    refuse_inside_run(Path(log_root, experiment), f"--log-root {log_root}: a run would be")


def _is_run(folder: Path) -> bool:
    return any(os.path.lexists(folder / name) for name in (RECORD_FILE, METRICS_FILE))


def _names(run: Path) -> tuple[str, ...]:
    """Return the names of a run: alone, with what it is in, and with the log root."""
    full = name_of(run)
    within = (full.partition("/")[2],) if group_of(run) else ()
    return run.name, *within, full, str(run)


def _listed(runs: Sequence[Path]) -> str:
    return ", ".join(map(name_of, runs[:LISTED_RUNS]))
