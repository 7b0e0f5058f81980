"""Files that a task's configuration names, such as clips: pinned at the start, copied into runs."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mjfleet.config import EnvConfig, TrainConfig
from mjfleet.config.field_kinds import leaves
from mjfleet.errors import UserError
from mjfleet.registry import FoundTask
from mjfleet.utils.atomic_write import copy_atomically
from mjfleet.utils.input_files import (
    FILE_BYTES,
    FOLDER,
    Suffixes,
    file_name,
    find_files,
    name_of,
    path_of,
)
from mjfleet.utils.safe_read import open_regular


def pin_files(
    found: FoundTask,
    config: TrainConfig,
    run_dir: Path | None = None,
    recorded: TrainConfig | None = None,
) -> TrainConfig:
    """Return a configuration whose entries of files name their content, too.

    What is no longer there is what `recorded`, the configuration of the run in `run_dir`, has by
    this name.

    Raises:
        UserError: a file is neither there nor in the run, or cannot be read.
    """
    pinned, places = dict[str, tuple[str, ...]](), [found.folder, *filter(None, [run_dir])]
    for field, suffixes in file_fields(config.env).items():
        kept = getattr(recorded.env, field, ()) if recorded else ()
        flag, entries = f"--env.{field.replace('_', '-')}", list[str]()
        for entry in getattr(config.env, field):
            name = Path(name_of(entry))
            same = [k for k in kept if name in (Path(name_of(k)), Path(name_of(k)).parent)]
            is_there = path_of(str(name), places).exists()
            for one in [entry] if is_there or not same else same:
                files = find_files([one], places, suffixes, flag)
                entries += [file.pinned for file in files]
        pinned[field] = tuple(entries)
    return replace(config, env=replace(config.env, **pinned)) if pinned else config


def copy_files(found: FoundTask, config: TrainConfig, run_dir: Path, *others: Path | None) -> None:
    """Copy the files that a pinned configuration names into a run; those of `others`, too."""
    for field, suffixes in file_fields(config.env).items():
        places = [found.folder, run_dir, *filter(None, others)]
        for file in find_files(getattr(config.env, field), places, suffixes, f"--env.{field}"):
            if not (copy := run_dir / FOLDER / file.copy).exists():
                copy.parent.mkdir(exist_ok=True)
                with open_regular(file.path, FILE_BYTES, may_link=True) as original:
                    copy_atomically(original, copy)


def file_fields(config: EnvConfig) -> dict[str, Sequence[str]]:
    """Return the suffixes of the files of each field that names some."""
    markers = [(leaf.name, getattr(leaf.hint, "__metadata__", ())) for leaf in leaves(type(config))]
    return {name: s.names for name, marks in markers for s in marks if isinstance(s, Suffixes)}


def only(found: FoundTask, config: TrainConfig, name: str) -> TrainConfig:
    """Return the configuration with the one file alone that has this name, without its suffix; it
    may be in a folder that the configuration names.

    Raises:
        UserError: there is none.
    """
    for field, suffixes in file_fields(config.env).items():
        entries, places = list[str](), [found.folder]
        for entry in getattr(config.env, field):
            is_folder = path_of(name_of(entry), places).is_dir()
            inside = find_files([entry], places, suffixes, f"--env.{field}") if is_folder else ()
            entries += [file.name for file in inside] if is_folder else [entry]
        names = {Path(file_name(name_of(entry))).stem: entry for entry in entries}
        if name in names:
            return replace(config, env=replace(config.env, **{field: (names[name],)}))
        raise UserError(f"--clip {name}: --env.{field} has {', '.join(names)}.")
    raise UserError(f"--clip {name}: the task has no clips.")
