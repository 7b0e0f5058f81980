"""Decides where a run starts, from the command and the files that exist. Pure functions.

docs/run-directory.md shows both tables, and explains their values.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from mjfleet.config import LaunchConfig, TrainConfig
from mjfleet.config.dict_conversion import value_at
from mjfleet.config.field_kinds import Kind
from mjfleet.config.train_config import continues_in_place, kind_of
from mjfleet.errors import UserError
from mjfleet.registry import FoundTask
from mjfleet.runs.checkpoints import INIT, iterations_done
from mjfleet.runs.config_yaml import TEACHER, differences
from mjfleet.runs.named_run import NamedRun, Parent, check_task
from mjfleet.runs.run_lock import RunLock
from mjfleet.runs.task_snapshot import Snapshot

INIT_STD = "agent.actor.distribution.init_std"
ANY, YES, NO, NONE = ("any",), ("yes",), ("no",), ("none",)
FREE, RUN, FIRST, RESTART = ("none", "unlearned"), ("run",), ("typed", "same"), ("restart",)
STARTS = (
    # in --run-dir, source, --fork, --seeds: start
    (("theirs",), ANY, ANY, ANY, "refused: another user"),
    (FREE, NONE, ANY, NO, "new"),
    (NONE, NONE, ANY, YES, "new group"),
    (("unlearned",), NONE, ANY, YES, "refused: one run"),
    (FREE, ("run", "file"), YES, NO, "fork"),
    (NONE, ("file",), NO, NO, "fork"),
    (FREE, ("unlearned",), YES, NO, "refused: no checkpoint"),
    (FREE, ("group",), YES, ANY, "refused: fork of a group"),
    (FREE, ("run", "file", "unlearned"), ANY, YES, "refused: one run"),
    (NONE, ("theirs",), NO, ANY, "refused: another user"),
    (NONE, ("run", "unlearned"), NO, NO, "continue"),
    (NONE, ("group",), NO, ANY, "continue group"),
    (("run", "group"), ("other",), ANY, ANY, "refused: begun otherwise"),
    (RUN, NONE, ANY, YES, "refused: one run"),
    (RUN, NONE, ANY, NO, "continue"),
    (("group",), NONE, ANY, ANY, "continue group"),
)
CODES = (
    # start, --as-trained, again, task, copy: code
    (("new",), ANY, ANY, ("found",), ANY, "today's"),
    (("new",), ANY, ANY, ("missing",), ANY, "refused: no task"),
    (("continue",), NO, FIRST, ("found",), ANY, "today's"),
    (("continue",), NO, RESTART, ("found",), ("own",), "copy"),
    (("continue",), NO, RESTART, ("found",), ("theirs", "none"), "today's"),
    (("fork",), NO, ANY, ("found",), ANY, "today's"),
    (("continue", "fork"), NO, ANY, ("missing",), ("own",), "copy"),
    (("continue", "fork"), NO, ANY, ("missing",), ("theirs",), "refused: not begun here"),
    (("continue", "fork"), YES, ANY, ANY, ("own", "theirs"), "copy"),
    (("continue", "fork"), NO, ANY, ("missing",), NONE, "refused: no copy"),
    (("continue", "fork"), YES, ANY, ANY, NONE, "refused: no copy"),
)
REFUSALS = {
    "another user": "{place.path} is another user's, and is not continued in place. Begin a run of "
    "your own: --resume {place.path} --fork; of a group, name one of its runs.",
    "no checkpoint": "--resume {source.path} --fork: it has no checkpoint yet.",
    "fork of a group": "--fork: {source.path} is a seed group: fork each of its runs alone.",
    "one run": "--seeds is for several runs, and {place.path} is one.",
    "begun otherwise": "--run-dir {run.path}: the run in it has begun from {began}, not by {word}. "
    "Leave {word} out to continue it, or name another --run-dir.",
    "no task": "{code.why_no_task}",
    "no copy": "{code.copy.why_none}",
    "not begun here": "there is no task {code.task}, and this installation did not begin the run "
    "that keeps its code, {code.copy.folder}: look at it, then --as-trained runs it (a fork "
    "without --run-dir).",
}
InRunDir = Literal["none", "unlearned", "run", "group", "theirs"]
Source = Literal["none", "run", "unlearned", "group", "file", "theirs", "other"]
Again = Literal["typed", "same", "restart"]


@dataclass(frozen=True, kw_only=True)
class CodeFacts:
    """Whether a task's code is found, and which copy of it exists."""

    task: str
    why_no_task: str = ""  # Empty if the task is found.
    source: Path | None = None  # The checkpoint or run that was trained with the copy.
    copy: Snapshot


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The situation when a command starts: columns of the tables, and their runs."""

    in_run_dir: InRunDir = "none"
    source: Source = "none"
    again: Again = "typed"
    code: CodeFacts
    run_in_run_dir: NamedRun | None = None
    source_run: NamedRun | None = None  # What --resume names.
    parent: Parent | None = None
    """From whose checkpoint a run begins; with --init-from, if the copy in --run-dir is needed."""
    init_from: str | None = None  # The checkpoint that --init-from meant at the first start.
    teacher: str | None = None  # The same of --teacher.


@dataclass(frozen=True, kw_only=True)
class Start:
    """Where a run starts, as `to_dict` and JSON can hold it."""

    kind: str = "new"  # A result of STARTS.
    again: Again = "typed"
    run_dir: Path | None = None  # The directory of a run or a group that is there.
    checkpoint: Path | None = None  # Where training continues from, or takes networks.
    parent: Parent | None = None  # The run whose checkpoint this one begins from.
    code: Path | None = None  # The copy of the task's code; None: the task is searched for.
    base: Path | None = None  # The run or group whose configuration is under the flags.
    notes: tuple[str, ...] = ()  # What the user should know.

    @property
    def is_group(self) -> bool:
        return "group" in self.kind

    @property
    def is_restart(self) -> bool:
        """Whether a run or group that is there was started again after a fault, by itself."""
        return self.kind.startswith("continue") and self.again == "restart"

    @property
    def iteration(self) -> int | None:
        """Iterations done, if the checkpoint tells them; 0 where training begins anew."""
        networks_only = self.parent is not None and self.parent.networks_only
        if self.checkpoint is None or self.checkpoint.name == INIT or networks_only:
            return 0
        return iterations_done(self.checkpoint)


NEW = Start()


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """A task, the configuration of its training, and where training starts."""

    found: FoundTask
    config: TrainConfig
    start: Start = NEW
    argv: Sequence[str] = ()  # The command, as the record shows it.
    lock: RunLock | None = None  # Of the run that continues.


def matching(table: Sequence[tuple[Any, ...]], facts: Sequence[str]) -> list[str]:
    """Return the results of the rows of a table that fit facts, in the order of its columns."""
    return [
        result
        for *cells, result in table
        if all(cell is ANY or fact in cell for cell, fact in zip(cells, facts, strict=True))
    ]


def decide(typed_run: LaunchConfig, facts: Facts) -> Start:
    """Return where a run starts; UserError if it cannot start so."""
    run, source = facts.run_in_run_dir, facts.source_run
    columns = facts.in_run_dir, facts.source, _switch(typed_run.fork), _switch(typed_run.seeds)
    (kind,) = matching(STARTS, columns)
    word = f"--init-from {typed_run.init_from}"
    word = f"--resume {typed_run.resume}" if typed_run.resume else word
    place = run or source
    began = value_at(run and run.record, "parent.typed", "nothing")
    _refuse(kind, run=run, source=source, place=place, word=word, began=began)
    continues = kind.startswith("continue")
    origin = place if continues else source if kind == "fork" else None
    if origin:
        check_task(origin, facts.code.task, "--resume " if origin is source else "--run-dir ")
    in_run = origin is not None and origin.run_dir and kind in ("continue", "fork")
    # With --run-dir, --as-trained is about the run there alone.
    as_trained = typed_run.as_trained and (continues or not typed_run.run_dir)
    code, notes = decide_code(kind if in_run else "new", as_trained, facts.again, facts.code)
    checkpoint = origin.checkpoint if origin else None
    if run and facts.parent and not origin:
        checkpoint = run.initial
    return Start(
        kind=kind,
        again=facts.again,
        run_dir=place.run_dir if place and (run or continues) else None,
        checkpoint=checkpoint,
        parent=facts.parent,
        code=code,
        base=origin.run_dir if origin else None,
        notes=(*notes, *dict.fromkeys(note for one in (run, origin) if one for note in one.notes)),
    )


def decide_code(
    kind: str, as_trained: bool, again: Again, facts: CodeFacts
) -> tuple[Path | None, tuple[str, ...]]:
    """Return the copy of the task's code to use, None for today's, and a note about that.

    `kind` is a start of CODES. UserError if there is no code that may be used.
    """
    task = "missing" if facts.why_no_task else "found"
    (result,) = matching(CODES, (kind, _switch(as_trained), again, task, facts.copy.owner))
    _refuse(result, code=facts)
    if result == "today's":
        return None, ()
    why = f"there is no task {facts.task}: " if task == "missing" and not as_trained else ""
    note = f"{why}the code is {facts.copy.folder}, as it was when {facts.source} was trained"
    return facts.copy.folder, (note,)


def compare(
    start: Start, config: TrainConfig, recorded: TrainConfig, code_changes: str | None
) -> Start:
    """Return a start with what differs from the run or parent, `recorded`, in its notes.

    UserError if a value may not differ: what a run or a group that continues learns, or with what
    the policy of a parent has begun.
    """
    if start.kind.startswith("new"):
        return start
    different = differences(config, recorded) if start.base else {}
    if config.total_envs is not None and "total_envs" not in different:
        different.pop("env.num_envs", None)  # It follows from the number of workers.
    changes = (code_changes,) if code_changes else ()
    if start.kind == "fork":
        if INIT_STD in different:
            raise UserError(
                f"--{INIT_STD.replace('_', '-')} is for the beginning of a policy; "
                f"{start.checkpoint} has begun with {different[INIT_STD][1]}: leave it out, or "
                "train without --resume."
            )
        assert start.parent
        changed = {n: {"value": ours, "parent": theirs} for n, (ours, theirs) in different.items()}
        with_values = f", with {_listed(different)}" if different else ""
        note = f"a run of its own begins from {start.checkpoint}{with_values}"
        parent = replace(start.parent, changed=changed)
        return replace(start, parent=parent, notes=(note, *changes, *start.notes))
    if start.iteration == 0 and not start.is_group:  # Nothing is learned yet.
        different = {}
    if refused := {n: both for n, both in different.items() if not continues_in_place(n)}:
        flag = f"--run-dir {config.run_dir}" if config.run_dir else f"--resume {start.run_dir}"
        run = shlex.quote(config.resume or str(start.run_dir))
        what, new = "run", f"begin a run of its own with them: --resume {run} --fork"
        if start.is_group:
            what, new = "group", "begin a new group, or --fork one of its runs."
        raise UserError(
            f"{flag} continues a {what}, which has learned with other values: {_listed(refused)}. "
            f"Leave these out, or {new}"
        )
    why = "its metrics continue with the new code" if changes else "what is learned is the same"
    shown = {n: both for n, both in different.items() if kind_of(n) is not Kind.PLACEMENT}
    note = f"continues in place: {why}{f' ({_listed(shown)})' if shown else ''}"
    return replace(start, notes=(note, *changes, *start.notes))


def _switch(is_given: object) -> str:
    return "yes" if is_given else "no"


def _refuse(result: str, **facts: Any) -> None:
    """Raise UserError if a row refuses, with what its message says of the facts."""
    refused, _, why = result.partition("refused: ")
    if why and not refused:
        raise UserError(REFUSALS[why].format(**facts))


def _listed(values: Mapping[str, tuple[Any, Any]]) -> str:
    """Return differing values as text: `--agent.seed is 9, was 1`; of a teacher, only its file."""
    shown = {n: [value if value != "" else "empty" for value in both] for n, both in values.items()}
    if TEACHER in shown:
        shown = {n: v for n, v in shown.items() if n == TEACHER or "agent.teacher." not in n}
    return "; ".join(f"--{n.replace('_', '-')} is {a}, was {b}" for n, (a, b) in shown.items())
