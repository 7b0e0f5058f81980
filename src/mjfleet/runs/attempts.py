"""The attempts of a run on disk: which one counts, what belongs to it, and what is set aside.

attempts/<n>/config.yaml    its configuration, and
attempts/<n>/plan.json      what run.json shows of it; neither is changed after its start
attempts/current            the attempt whose configuration, code and rows count, and where it began

A run's first attempt counts at once. A later one counts as soon as its first iteration is done: the
file `current` is renamed into place. What follows from it is done again at the next start.
"""

import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from secrets import token_hex
from typing import Any

from mjfleet.errors import UserError, WorkerError
from mjfleet.runs.checkpoints import INIT, about, checkpoints_in, iteration_of, why_damaged
from mjfleet.runs.find_run import iterations_in
from mjfleet.runs.metrics_csv import METRICS_FILE, completed_iterations
from mjfleet.runs.run_json import CONFIG_FILE, is_group, now, read_record, record_file, write_json
from mjfleet.runs.run_lock import lock_run
from mjfleet.utils.atomic_write import write_atomically
from mjfleet.utils.console import in_a_line, print_line
from mjfleet.utils.input_files import FOLDER as FILES
from mjfleet.utils.safe_read import read_json

ATTEMPTS = "attempts"
PLAN_FILE = "plan.json"
CURRENT = "current"
TOKEN = "token"  # An attempt's random name, in run.json and in its checkpoints.
REPLACED = "replaced_"  # Begins the names of folders of checkpoints that were set aside.
OF_ALL = ("argv", "started", "results")
"""Entries of run.json that later attempts leave: the first one's, and what a sweep has found."""
HOW = ("iterations", "status", "ended")  # Those that say how far the run has come.

Attempts = Sequence[Mapping[str, Any]]
"""The entries of run.json; those of groups, of earlier versions and of W&B have no token."""


def attempts_in(run_dir: Path) -> list[dict[str, Any]]:
    """Return the attempts of run.json; there are none before it is written."""
    return read_record(run_dir).get("attempts", [])


def run_dir_of(path: Path) -> Path | None:
    """Return the run directory, or a group's, that a path is, or that of a checkpoint; else None.

    It is relative if the path is.
    """
    if os.path.lexists(record_file(path)):
        return path
    folder = path.parent if len(path.parts) > 2 else path.absolute().parent
    folder = folder.parent if folder.name.startswith(REPLACED) else folder
    is_inside = folder.name == "checkpoints" and not path.is_dir()
    return folder.parent if is_inside and os.path.lexists(record_file(folder.parent)) else None


def folder_of(run_dir: Path, number: int) -> Path:
    """Return the folder of an attempt; the first one has the number 1."""
    return run_dir / ATTEMPTS / str(number)


def current_attempt(run_dir: Path, attempts: Attempts) -> tuple[int, int | None]:
    """Return the number of the attempt that counts, and the iteration from which it began.

    Of a group the last one counts. It has the number 0 if run.json lists no attempt. None: it is
    not known. UserError if the file that names it is damaged.
    """
    path = run_dir / ATTEMPTS / CURRENT
    try:
        match read_json(path):
            case {"attempt": int(number), "begun": int(begun)} if 0 < number <= len(attempts):
                return number, begun
        why = "it names no attempt of run.json"
    except FileNotFoundError:
        earlier = sum(TOKEN not in entry for entry in attempts)
        return earlier or min(1, len(attempts)), None  # A killed process may not have written it.
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else in_a_line(error)
    raise UserError(f"{path}: {why}.")


def attempt_of(checkpoint: Path, attempts: Attempts) -> int:
    """Return the number of the attempt that has written a checkpoint.

    One that another run has written is of the first attempt. Earlier versions recorded only the
    hash of its code.
    """
    recorded = about(checkpoint)
    tokens = [entry.get(TOKEN) for entry in attempts]
    if (token := recorded.get("attempt")) and token in tokens:
        return tokens.index(token) + 1
    earlier = [number for number, token in enumerate(tokens, 1) if token is None]
    code = recorded.get("task_hash")
    same = [n for n in earlier if (attempts[n - 1].get("code") or {}).get("hash") == code]
    return (same or earlier or [1])[-1]


def config_of(run_dir: Path, checkpoint: Path | None = None) -> Path:
    """Return the configuration with which a checkpoint was trained; None: that which counts now."""
    try:
        attempts = attempts_in(run_dir)
    except (OSError, ValueError):  # Who reads run.json says what is wrong with it.
        return run_dir / CONFIG_FILE
    number = (
        attempt_of(checkpoint, attempts) if checkpoint else current_attempt(run_dir, attempts)[0]
    )
    own, earlier = folder_of(run_dir, number) / CONFIG_FILE, f"configs/attempt_{number}.yaml"
    places = own, run_dir / earlier, run_dir / CONFIG_FILE
    return next(filter(os.path.lexists, places), places[-1])


def undone_checkpoint(run_dir: Path) -> Path | None:
    """Return where the last attempt began, if it did no iteration; None: it did, or began anew."""
    attempts = attempts_in(run_dir)
    name = attempts[-1].get("checkpoint") if attempts else None
    is_undone = len(attempts) != current_attempt(run_dir, attempts)[0]
    return run_dir / "checkpoints" / name if is_undone and name and name != INIT else None


def replaced_checkpoints(run_dir: Path) -> list[Path]:
    """Return checkpoints of iterations that the current attempt repeats, which others have written.

    They are there only if the run was killed while they were set aside.
    """
    attempts, found = attempts_in(run_dir), list[Path]()
    number, begun = current_attempt(run_dir, attempts)
    for path in reversed(_later(run_dir, begun)):
        if about(path).get("attempt") == attempts[number - 1].get(TOKEN):
            break
        found += [path] if why_damaged(path) is None else []
    return found


def count_last_attempt(run_dir: Path, begun: int) -> None:
    """Let the last attempt count, since its first iteration after `begun` is done.

    Rows and checkpoints after `begun` are set aside. A run's first attempt needs nothing.
    """
    attempts = attempts_in(run_dir)
    number = len(attempts)
    if number == current_attempt(run_dir, attempts)[0]:
        return
    later = _later(run_dir, begun)
    if later or (begun == 0 and completed_iterations(run_dir)):
        aside = _aside(run_dir, attempts[-1])
        # Copied before anything else: a row does not say which attempt has written it.
        with suppress(FileNotFoundError):
            shutil.copy(run_dir / METRICS_FILE, aside)
        print_line(
            f"iterations after {begun} will be repeated; their checkpoints and {METRICS_FILE} are "
            f"in {aside}"
        )
    write_pointer(run_dir, number, begun)
    _set_aside(run_dir, attempts[-1], later)
    _write_config(run_dir, number)


def write_pointer(run_dir: Path, number: int, begun: int) -> None:
    """Let an attempt count that began after so many iterations."""
    write_json(run_dir / ATTEMPTS / CURRENT, {"attempt": number, "begun": begun})


def complete(run_dir: Path) -> None:
    """Complete the steps of a killed process. Called with the run locked, before training."""
    attempts = attempts_in(run_dir)
    number, _ = current_attempt(run_dir, attempts)
    folders = ".", "checkpoints", "failures", "videos", "task", FILES, ATTEMPTS, f"{ATTEMPTS}/*"
    for path in [path for name in folders for path in run_dir.glob(f"{name}/.*.tmp")]:
        remove(path)
    if later := replaced_checkpoints(run_dir):
        _set_aside(run_dir, attempts[number - 1], later)
    _write_config(run_dir, number)


def write_attempts(
    run_dir: Path,
    attempts: Attempts,
    shown: Mapping[str, Any] | None = None,
    file: Path | None = None,
) -> None:
    """Write run.json: the attempts, and of the one that counts how it stands and its plan.json.

    The last attempt counts while it is running; `shown` is its plan before it is written. `file` is
    that of a new group, if it is one.
    """
    record, number = read_record(run_dir), current_attempt(run_dir, attempts)[0]
    last = attempts[-1] if attempts else {}
    is_running = last.get("status") == "running"
    number = len(attempts) if is_running else number
    entry = attempts[number - 1] if attempts else {}
    if entry.get("status") == "killed":  # How the last one has ended counts, if that was seen.
        status = last.get("status")
        entry = {**entry, "status": "running" if status == "killed" else status}
        entry["ended"] = last.get("ended")
    first = {name: record[name] for name in OF_ALL if name in record}
    first = first or {name: attempts[0][name] for name in OF_ALL if name in attempts[0]}
    how = {name: entry.get(name) for name in HOW}
    if is_running and number > 1:
        how["iterations"] = record.get("iterations", 0)
    if shown is None:
        try:
            shown = dict(read_json(folder_of(run_dir, number) / PLAN_FILE))
        except (OSError, ValueError, TypeError):  # It is damaged, or of an earlier version.
            shown = _plan_in(record)
    content = {**first, **how, **shown, "attempts": attempts}
    write_json(file or record_file(run_dir), content)


def keep_earlier_layout(run_dir: Path) -> None:
    """Give the attempt that counts a folder, since the next one is about to begin.

    Only attempts of earlier versions, and those of W&B, have none.
    """
    number, record = current_attempt(run_dir, attempts_in(run_dir))[0], read_record(run_dir)
    if not (folder := folder_of(run_dir, number)).exists():
        folder.mkdir(parents=True)
        with suppress(FileNotFoundError):
            shutil.copyfile(config_of(run_dir), folder / CONFIG_FILE)
        how = {} if number else {name: record.get(name) for name in HOW}
        write_json(folder / PLAN_FILE, _plan_in(record) | how)


def ended_attempts(run_dir: Path) -> list[dict[str, Any]]:
    """Return the attempts; if the last one's process was killed, record that it has ended."""
    attempts = attempts_in(run_dir)
    if attempts and attempts[-1].get("status") == "running":
        attempts[-1] |= {"status": "killed", "iterations": iterations_in(run_dir)}
        if current_attempt(run_dir, attempts)[0] != len(attempts):
            attempts[-1]["is_undone"] = True
    return attempts


def record_failed_start(run_dir: Path, argv: Sequence[str], cause: str, is_restart: bool) -> None:
    """Enter an attempt that has failed before it could start; WorkerError if that cannot be."""
    try:
        with closing(lock_run(run_dir)):
            keep_earlier_layout(run_dir)
            attempts = ended_attempts(run_dir)
            undone = undone_checkpoint(run_dir)
            this = {
                "argv": list(argv), "started": now(), "ended": now(), "status": "failed",
                "iterations": iterations_in(run_dir), "is_restart": is_restart,
                "checkpoint": undone and undone.name, "is_undone": True,
                "kind": "UserError", "cause": cause, "iteration": 0,
            }  # fmt: skip
            token = {} if is_group(run_dir) else {TOKEN: token_hex(8)}
            write_attempts(run_dir, [*attempts, this | token])
    except (OSError, ValueError, UserError) as error:
        raise WorkerError(f"error: {cause}\nNot recorded: {in_a_line(error)}") from None


def remove(path: Path) -> None:
    """Remove a file or a folder; of a link to a folder, what is in that folder."""
    if path.is_symlink() and path.is_dir():
        for inside in path.iterdir():
            remove(inside)
    elif path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def _plan_in(record: Mapping[str, Any]) -> dict[str, Any]:
    return {n: value for n, value in record.items() if n not in (*OF_ALL, *HOW, "attempts")}


def _later(run_dir: Path, begun: int | None) -> list[Path]:
    """Return the checkpoints of iterations after `begun`, the oldest first."""
    found = checkpoints_in(run_dir / "checkpoints") if begun is not None else []
    return [path for path in found if (iteration_of(path) or 0) > (begun or 0)]


def _aside(run_dir: Path, entry: Mapping[str, Any]) -> Path:
    """Return the folder for what an attempt repeats, which is named by its start."""
    started = str(entry.get("started"))[:19].replace("T", "_").replace(":", "-")
    folder = run_dir / "checkpoints" / f"{REPLACED}{started}"
    folder.mkdir(exist_ok=True)
    return folder


def _set_aside(run_dir: Path, entry: Mapping[str, Any], paths: Sequence[Path]) -> None:
    for path in paths:
        path.replace(_aside(run_dir, entry) / path.name)


def _write_config(run_dir: Path, number: int) -> None:
    """Make config.yaml that of the attempt, if it is not."""
    config, shown = folder_of(run_dir, number) / CONFIG_FILE, run_dir / CONFIG_FILE
    if config.is_file():
        text = config.read_bytes()
        if not shown.is_file() or shown.read_bytes() != text:
            write_atomically(shown, lambda file: file.write(text))
