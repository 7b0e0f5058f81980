"""From where a run starts: what --run-dir, --resume, --fork and --init-from mean together."""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from mjfleet.config import LaunchConfig, TrainConfig, from_dict
from mjfleet.config.flags import parse_known
from mjfleet.errors import UserError
from mjfleet.registry import FoundTask, Registry, find_task
from mjfleet.runs.attempts import undone_checkpoint
from mjfleet.runs.find_run import find_run
from mjfleet.runs.resume_choice import Resume, read_run
from mjfleet.runs.run_directory import refuse_written
from mjfleet.runs.run_json import RECORD_FILE, is_group, record_of
from mjfleet.runs.run_lock import REQUEUE_SECONDS, lock_again
from mjfleet.runs.starting_point import (
    begin_from,
    continue_run,
    first_meaning,
    fork,
    has_learned,
    refuse_other_user,
)
from mjfleet.runs.task_snapshot import own_snapshot, snapshot_of


def read_start(flags: Sequence[str]) -> LaunchConfig:
    """Read the flags of the launch; those of the task and the agent are not looked at.

    Raises:
        UserError: two of them contradict each other, or a value is not allowed.
    """
    start, _ = parse_known(LaunchConfig, flags, "train")
    if start.resume is None:
        if start.fork:
            raise UserError("--fork begins a run from another one's checkpoint: add --resume RUN.")
        if start.as_trained and start.run_dir is None:
            raise UserError("--as-trained: add --resume RUN or --run-dir DIR, whose code is used.")
        return start
    for flag, value in (("--config", start.config), ("--init-from", start.init_from)):
        if value is not None:
            raise UserError(
                f"{flag} and --resume: give one; a run that continues has its own configuration "
                "and networks."
            )
    if start.run_dir is not None and not start.fork:
        raise UserError(
            f"--resume continues {start.resume} in its own directory: leave out --run-dir, or add "
            "--fork to begin a run of its own there."
        )
    return start


@dataclass(frozen=True)
class Sources:
    """The runs from which one starts."""

    start: LaunchConfig  # With paths for words, such as `latest`, that the run in --run-dir knows.
    present: Resume | None  # The run or group in --run-dir; None: a run begins there.
    origin: Resume | None  # The run or group that continues, or the parent of a new run.

    @property
    def is_continued(self) -> bool:
        """Whether the run in --run-dir continues."""
        return self.present is not None and self.origin is self.present


def find_sources(start: LaunchConfig, task: str | None) -> Sources:
    """Find the run in --run-dir, which is locked, and what --resume names.

    A run that has learned nothing begins anew in its directory, as if it were not there.

    Raises:
        UserError: one cannot be used.
    """
    present = None if start.run_dir is None else _run_in(Path(start.run_dir), start.dry_run)
    if present:
        typed = {name: getattr(start, name) for name in ("resume", "init_from", "teacher")}
        paths = {n: first_meaning(present, n, value) for n, value in typed.items() if value}
        start = replace(start, **paths)
        if is_group(present.path) or has_learned(present.path):
            return Sources(start, present, present)
    if start.resume is None:
        return Sources(start, present, None)
    name, log_root = f"--resume {start.resume}", Path(start.log_root)
    path = find_run(start.resume, name, log_root, task=task, may_be_group=True)
    return Sources(start, present, read_run(path, name))


def start_from(
    sources: Sources, found: FoundTask, config: TrainConfig
) -> tuple[TrainConfig, Resume | None]:
    """Return the configuration, and where the run starts; None: it is new."""
    start, present, origin, resume = sources.start, sources.present, sources.origin, None
    if origin:
        recorded = from_dict(found.defaults(), origin.config if origin.run_dir else {})
        if sources.is_continued and is_restart(os.environ):
            path = undone_checkpoint(origin.path) or origin.path
            origin = replace(origin, path=path, is_restart=True)
        in_place = sources.is_continued or (origin.run_dir is not None and not start.fork)
        choose_start = continue_run if in_place else fork
        resume = choose_start(origin, config, recorded, found.folder)
    elif config.init_from:
        resume, config = begin_from(config, start.init_from)
    if present and not sources.is_continued:
        notes = () if resume is None else resume.notes
        note = f"{present.path} has no checkpoint yet: it begins anew"
        resume = replace(
            resume or present, run_dir=present.path, lock=present.lock, notes=(note, *notes)
        )
    return config, resume


def find_code(registry: Registry, task: str, sources: Sources) -> FoundTask:
    """Return a task, or its run's copy: asked for, nowhere else, or a restart of an own run."""
    origin, as_trained = sources.origin, sources.start.as_trained
    if not (origin and origin.run_dir and origin.task == task) or is_group(origin.path):
        return registry.find(task)
    if task in registry.tasks and not as_trained:
        with suppress(UserError):
            is_again = sources.is_continued and is_restart(os.environ)
            if is_again and (snapshot := snapshot_of(origin.run_dir)).is_own:
                return find_task(task, snapshot.folder)
        return registry.find(task)
    source = origin.with_checkpoint().checkpoint or origin.run_dir
    return find_task(task, own_snapshot(source, task, as_trained).folder)


def is_restart(environ: Mapping[str, str]) -> bool:
    """Return whether torchrun or SLURM has started the command again."""
    counts = (environ.get(f"{who}_RESTART_COUNT", "0") for who in ("TORCHELASTIC", "SLURM"))
    return any(count not in ("", "0") for count in counts)


def _run_in(run_dir: Path, dry_run: bool) -> Resume | None:
    """Return the run, which is locked, or the group in a directory; None if one can begin there."""
    flag = f"--run-dir {run_dir}"
    if is_group(run_dir):
        return read_run(run_dir, flag)
    if not os.path.lexists(run_dir / RECORD_FILE):
        refuse_written(run_dir)
        return None
    refuse_other_user(run_dir, flag)
    lock = None if dry_run else lock_again(run_dir, REQUEUE_SECONDS)
    if has_learned(run_dir):
        return replace(read_run(run_dir, flag), lock=lock)
    record = record_of(run_dir)
    return Resume(path=run_dir, task=record["task"], run_dir=run_dir, record=record, lock=lock)
