"""One function decides where a run starts: its tables have a row for each combination of facts."""

import itertools
import json
import os
import shutil
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from mjfleet.config import LaunchConfig, from_dict, to_dict
from mjfleet.errors import UserError
from mjfleet.rl.checkpoints.files import pack_checkpoint, read_checkpoint
from mjfleet.runs.attempts import record_failed_start
from mjfleet.runs.checkpoints import about
from mjfleet.runs.named_run import NamedRun, Parent
from mjfleet.runs.run_json import read_record, write_record
from mjfleet.runs.start import (
    CODES,
    NEW,
    REFUSALS,
    STARTS,
    Again,
    CodeFacts,
    Facts,
    InRunDir,
    Source,
    decide,
    matching,
)
from mjfleet.runs.task_snapshot import Snapshot

from ..conftest import REPOSITORY, Run, Start, changed, only_run, rows
from .test_failed_resume import edit, write_task
from .test_resume import SIX

TASK = "cartpole-balance"
YES = ("yes", "no")
COPIES = ("own", "theirs", "none")


def is_possible(there: str, source: str, fork: str, seeds: str) -> bool:
    """Return whether the reader of facts can find these together."""
    is_there = there in ("run", "group")
    by_resume = source in ("run", "unlearned", "group", "file", "theirs")
    return not (
        (by_resume and there != "none" and fork == "no")  # --resume and --run-dir need --fork.
        or (by_resume and there in ("run", "group", "theirs"))
        or (source == "theirs" and fork == "yes")
        or (source == "other" and not is_there)
        or (source == "none" and fork == "yes" and not (is_there or there == "theirs"))
    )


def all_starts() -> Iterator[tuple[str, ...]]:
    columns = get_args(InRunDir), get_args(Source), YES, YES
    return (one for one in itertools.product(*columns) if is_possible(*one))


def all_codes() -> Iterator[tuple[str, ...]]:
    starts = "new", "continue", "fork"
    return itertools.product(starts, YES, get_args(Again), ("found", "missing"), COPIES)


def one_run(name: str, is_file: bool = False) -> NamedRun:
    folder = Path("/runs", name)
    checkpoint = folder / "checkpoints/model_4.pt"
    path, run_dir = (checkpoint, None) if is_file else (folder, folder)
    return NamedRun(path=path, task=TASK, run_dir=run_dir, checkpoint=checkpoint)


def facts_of(
    there: Any, source: Any, again: Any, task: str, copy: Any, parent: Parent | None
) -> Facts:
    """Return facts as the reader finds them."""
    code = CodeFacts(
        task=TASK,
        why_no_task="" if task == "found" else "there is no such task",
        source=Path("/of"),
        copy=Snapshot(Path("/copy"), copy, why_none="there is no copy"),
    )
    return Facts(
        in_run_dir=there,
        source=source,
        again=again,
        code=code,
        run_in_run_dir=None if there == "none" else one_run("d"),
        source_run=None if source in ("none", "other") else one_run("source", source == "file"),
        parent=parent,
    )


def typed(there: str, source: str, fork: str, seeds: str, as_trained: bool = False) -> LaunchConfig:
    return LaunchConfig(
        run_dir=None if there == "none" else "d",
        resume=None if source == "none" else "source",
        fork=fork == "yes",
        seeds=[2] if seeds == "yes" else [],
        as_trained=as_trained,
    )


@pytest.mark.parametrize(("table", "all_facts"), [(STARTS, all_starts), (CODES, all_codes)])
def test_each_combination_has_one_row_and_each_row_a_combination(
    table: Sequence[Any], all_facts: Any
) -> None:
    used = Counter[int]()
    for facts in all_facts():
        fitting = [n for n, row in enumerate(table) if matching([row], facts)]
        assert len(fitting) == 1, (facts, fitting)
        used.update(fitting)
    assert {*used} == {*range(len(table))}


def test_each_refusal_has_a_message() -> None:
    results = {row[-1] for row in (*STARTS, *CODES)}
    assert {r.partition("refused: ")[2] for r in results if "refused" in r} == {*REFUSALS}


@pytest.mark.parametrize("task", ["found", "missing"])
@pytest.mark.parametrize("as_trained", [True, False])
@pytest.mark.parametrize("copy", COPIES)
@pytest.mark.parametrize("again", get_args(Again))
def test_decide_does_what_the_row_says(task: str, as_trained: bool, copy: str, again: str) -> None:
    for there, source, fork, seeds in all_starts():
        is_parent = source == "file" or (source == "run" and fork == "yes")
        parent = Parent(typed="source") if is_parent else None
        facts = facts_of(there, source, again, task, copy, parent)
        typed_run = typed(there, source, fork, seeds, as_trained)
        (kind,) = matching(STARTS, (there, source, fork, seeds))
        of_code = kind if kind in ("continue", "fork") and source != "file" else "new"
        is_asked = "yes" if as_trained and not (kind == "fork" and there != "none") else "no"
        (code,) = matching(CODES, (of_code, is_asked, again, task, copy))
        if "refused" in kind + code:
            with pytest.raises(UserError) as caught:
                decide(typed_run, facts)
            assert "{" not in str(caught.value)
            continue
        start = decide(typed_run, facts)
        assert start.kind == kind
        assert start.code == (Path("/copy") if code == "copy" else None)
        place = "d" if there != "none" else "source" if "continue" in kind else None
        assert start.run_dir == (place and Path("/runs", place))
        taken = {"fork": "source", "continue": place}.get(kind)
        expected = Path("/runs", taken, "checkpoints/model_4.pt") if taken else None
        if not start.is_group:
            assert start.checkpoint == expected
        assert (start.parent, start.again) == (parent, again)
        assert from_dict(NEW, json.loads(json.dumps(to_dict(start)))) == start


def test_the_documentation_shows_the_tables() -> None:
    page = (REPOSITORY / "docs/run-directory.md").read_text()
    for table in (STARTS, CODES):
        lines = ["| " + " | ".join([*map(", ".join, cells), end]) + " |" for *cells, end in table]
        assert "\n".join(lines) in page


MINE = "mine-balance"
KEEP = ("--agent.save-interval", "3")
ONE = ("--episodes", "1")


def unfinished(run_dir: Path, saved: int = 3) -> None:
    """Leave a run as one that was killed when it had saved so many iterations."""
    for path in (run_dir / "checkpoints").glob("*model*.pt"):
        if path.name != f"model_{saved}.pt":
            path.unlink()


def own_task(run: Run, folder: Path) -> tuple[Path, Path]:
    """Write a task and train it; return the folder of its code, and its run."""
    task = write_task(folder)
    edit(task)
    assert run("train", MINE, *SIX).returncode == 0
    return task, only_run(folder, MINE)


def test_a_fork_in_a_directory_of_its_own_never_runs_the_code_of_its_parent(
    run: Run, tmp_path: Path
) -> None:
    task, parent = own_task(run, tmp_path)
    edit(task, setup="print('the code of today')")
    fork = ("train", MINE, "--resume", str(parent), "--fork", "--as-trained")
    longer = ("--agent.max-iterations", "7")
    begun = run(*fork, *longer, "--run-dir", "d")
    assert begun.returncode == 0, begun.stderr
    assert "the code of today" in begun.stdout
    # Without --run-dir, --as-trained is about the parent.
    assert "the code of today" not in run(*fork, *longer).stdout


def test_a_fork_that_is_killed_before_its_first_checkpoint_continues_with_its_own_code(
    run: Run, tmp_path: Path
) -> None:
    task, parent = own_task(run, tmp_path)
    fork = ("train", MINE, "--resume", str(parent), "--fork", "--run-dir", "d", "--as-trained")
    fork = (*fork, "--agent.max-iterations", "8")
    edit(task, setup="print('the code of the fork')")
    assert run(*fork).returncode == 0
    unfinished(tmp_path / "d", 6)
    edit(task, setup="print('the code of today')")
    again = run(*fork)
    assert again.returncode == 0, again.stderr
    assert "d/checkpoints/model_6.pt" in again.stdout
    assert ("the code of the fork" in again.stdout, "of today" in again.stdout) == (True, False)
    said = run("play", MINE, "--resume", "d/checkpoints/model_6.pt", "--as-trained", *ONE)
    assert (said.returncode, "the code of the fork" in said.stdout) == (0, True), said.stderr


@pytest.mark.parametrize("restarts", [(), ("--max-restarts", "1")], ids=["alone", "restarts"])
def test_what_would_be_a_mistake_is_a_fault_where_the_same_command_has_learned(
    run: Run, tmp_path: Path, restarts: tuple[str, ...]
) -> None:
    task = write_task(tmp_path)
    edit(task)
    command = ("train", MINE, *SIX, *KEEP, *restarts, "--run-dir", "d")
    assert run(*command).returncode == 0
    unfinished(tmp_path / "d")
    edit(task, setup="raise MemoryError")
    typed = run(*command, "--agent.save-interval=3", "--agent.run-name=")
    assert typed.returncode == 2, typed.stderr
    assert "no iteration was run; d is unchanged" in typed.stdout
    again = run(*command)
    assert again.returncode == 1, again.stderr
    attempts = read_record(tmp_path / "d")["attempts"]
    assert [one["status"] for one in attempts] == ["finished", *["failed"] * (1 + bool(restarts))]
    assert {one["kind"] for one in attempts[1:]} == {"UserError"}
    assert all(one["is_undone"] for one in attempts[1:])
    assert read_record(tmp_path / "d")["status"] == "finished"
    if restarts:
        assert "it was started again 1 times, all of --max-restarts" in again.stdout
    edit(task)
    assert run(*command).returncode == 0
    assert [row["iteration"] for row in rows(tmp_path / "d")] == [*map(str, range(1, 7))]


def test_a_mistake_of_a_resume_names_the_checkpoint(run: Run, tmp_path: Path) -> None:
    edit(write_task(tmp_path))
    assert run("train", MINE, *SIX, *KEEP, "--run-dir", "d").returncode == 0
    path = tmp_path / "d/checkpoints/model_6.pt"
    state = read_checkpoint(path)
    state["actor_state_dict"]["mlp.0.bias"] = torch.zeros(3)
    path.write_bytes(pack_checkpoint(state, about(path)))
    resumed = run("train", MINE, "--resume", "d", "--agent.max-iterations", "9")
    assert resumed.returncode == 2
    assert "/d/checkpoints/model_6.pt is of another network. Of its actor" in resumed.stderr


def test_a_lack_of_memory_in_a_restart_uses_one_restart_up(run: Run, tmp_path: Path) -> None:
    """The first attempt is killed, the second finds no memory, the third trains."""
    task = write_task(tmp_path)
    count = "self.attempts = len([*__import__('pathlib').Path('d/attempts').glob('*/plan.json')])"
    lack = "if self.attempts == 2:\n            raise MemoryError"
    command = ("train", MINE, *SIX, "--agent.save-interval", "1", "--max-restarts", "3")
    killed = "import os; self.attempts == 1 and os.path.exists('d/checkpoints/model_3.pt') and "
    edit(task, setup=f"{count}\n        {lack}", apply=f"{killed}os.kill(os.getpid(), 9)")
    result = run(*command, "--run-dir", "d")
    assert result.returncode == 0, result.stdout + result.stderr
    attempts = read_record(tmp_path / "d")["attempts"]
    assert [one["status"] for one in attempts] == ["failed", "failed", "finished"]
    assert [one.get("kind") for one in attempts] == ["Killed", "UserError", None]
    assert [row["iteration"] for row in rows(tmp_path / "d")] == [*map(str, range(1, 7))]


@pytest.mark.parametrize("is_removed", [True, False])
def test_a_signal_before_a_restart_leaves_a_finished_run_finished(
    run: Run, start: Start, tmp_path: Path, is_removed: bool
) -> None:
    task = write_task(tmp_path)
    edit(task)
    command = ("train", MINE, *SIX, *KEEP, "--run-dir", "d")
    assert run(*command).returncode == 0
    edit(task, setup="raise ValueError(1)")
    more = (*changed(command, "--agent.max-iterations", "9"), "--max-restarts", "1")
    late = "import mjfleet.launch.restart_policy as policy; policy.FIRST_PAUSE_SECONDS = 600"
    process = start(*more, late=late)
    assert any("starting again in" in line for line in process.stdout)
    if is_removed:
        shutil.rmtree(tmp_path / "d")
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 128 + signal.SIGTERM
    if is_removed:
        assert not (tmp_path / "d").exists()
        return
    record = read_record(tmp_path / "d")
    assert [record["status"], *(one["status"] for one in record["attempts"])] == [
        "finished", "finished", "failed",
    ]  # fmt: skip


STALE = """
import os, sys
def refuse(event, arguments, name=EVENT, path=PATH, times=TIMES, exists=os.path.exists):
    if times and event == name and str(arguments[0]).endswith(path) and exists("d/failures"):
        times.pop()
        raise OSError(116, "Stale file handle", path)
sys.addaudithook(refuse)
"""
"""Has the system refuse an access some times, after the first failure, as NFS may."""


@pytest.mark.parametrize(
    ("event", "path", "times", "kinds"),
    [("open", "d/run.json", 2, [None, None]), ("open", "d/.lock", 1, ["Killed", "UserError", None]),
     ("os.scandir", "tasks/mine", 1, ["Killed", "UserError", None])],
)  # fmt: skip
def test_a_file_system_that_does_not_answer_for_a_moment_ends_no_run_that_restarts(
    run: Run, tmp_path: Path, event: str, path: str, times: int, kinds: list[str | None]
) -> None:
    task = write_task(tmp_path)
    command = ("train", MINE, *SIX, "--agent.save-interval", "1", "--max-restarts", "3")
    killed = "import os; os.path.exists('d/failures') or os.path.exists('d/checkpoints/model_3.pt')"
    edit(task, apply=f"{killed} and os.kill(os.getpid(), 9)")
    late = f"EVENT, PATH, TIMES = {event!r}, {path!r}, [1] * {times}\n{STALE}"
    result = run(*command, "--run-dir", "d", late=late)
    assert result.returncode == 0, result.stdout + result.stderr
    attempts = read_record(tmp_path / "d")["attempts"]
    assert [one.get("kind") for one in attempts] == kinds
    assert [row["iteration"] for row in rows(tmp_path / "d")] == [*map(str, range(1, 7))]


def test_the_first_attempt_in_a_requeued_job_is_no_restart(run: Run, tmp_path: Path) -> None:
    edit(write_task(tmp_path), setup="raise ValueError(1)")
    command = ("train", MINE, *SIX, "--max-restarts", "2", "--run-dir", "d")
    result = run(*command, SLURM_RESTART_COUNT="1")
    assert result.returncode == 1
    assert "the same fault has come back" in result.stdout
    attempts = read_record(tmp_path / "d")["attempts"]
    assert [one["is_restart"] for one in attempts] == [False, True]


def test_a_restart_uses_the_code_of_the_last_attempt_with_as_trained_too(
    run: Run, tmp_path: Path
) -> None:
    task = write_task(tmp_path)
    edit(task)
    command = ("train", MINE, *SIX, *KEEP, "--run-dir", "d")
    assert run(*command).returncode == 0
    unfinished(tmp_path / "d")
    edit(task, setup="raise ValueError(1)")
    assert run(*command).returncode == 1
    _, last = read_record(tmp_path / "d")["attempts"]
    edit(task)
    for _ in range(2):
        for words in ((), ("--as-trained",)):
            start = run(*command, *words, "--dry-run", SLURM_RESTART_COUNT="1")
            assert f"the code is d/task/{last['code']['hash'][:16]}" in start.stdout, start.stderr
            assert "checkpoints/model_3.pt" in start.stdout
        # One that could not even start has no code.
        record_failed_start(tmp_path / "d", command, "no luck", is_restart=True)


def test_a_restart_that_cannot_be_planned_is_recorded_and_is_no_mistake(
    run: Run, tmp_path: Path
) -> None:
    command = ("train", TASK, *SIX, *KEEP, "--run-dir", "d")
    assert run(*command).returncode == 0
    unfinished(tmp_path / "d")
    (tmp_path / "d/checkpoints/model_3.pt").write_bytes(b"PK")
    before = read_record(tmp_path / "d")["attempts"]
    assert run(*command, "--agent.run-name=").returncode == 2
    assert read_record(tmp_path / "d")["attempts"] == before
    for environ in ({}, {"SLURM_RESTART_COUNT": "1"}):
        again = run(*command, **environ)
        assert again.returncode == 1, again.stderr
        assert "all of its 1 checkpoints are damaged" in again.stderr
    attempts = read_record(tmp_path / "d")["attempts"]
    assert [one["status"] for one in attempts] == ["finished", "failed", "failed"]
    assert [one["is_restart"] for one in attempts] == [False, False, True]
    assert "damaged" in attempts[1]["cause"]
    write_record(tmp_path / "d", attempts=before)
    once = ("--max-restarts", "1")
    assert run(*command, *once).returncode == 2  # These words have not learned there.
    assert read_record(tmp_path / "d")["attempts"] == before
    again = run(*command, *once, SLURM_RESTART_COUNT="1")
    assert again.returncode == 1
    assert "it was started again 1 times, all of --max-restarts" in again.stdout


def test_a_group_with_networks_begins_again_by_the_same_command(run: Run, tmp_path: Path) -> None:
    assert run("train", TASK, *SIX, "--agent.run-name", "base").returncode == 0
    group = ("train", TASK, *SIX, "--init-from", "base", "--seeds", "2", "--run-dir", "g")
    for length in ("2", "3"):
        result = run(*changed(group, "--agent.max-iterations", length))
        assert result.returncode == 0, result.stdout + result.stderr
    other = run(*changed(group, "--init-from", "latest"))
    assert other.returncode == 2
    assert "has begun from base, not by --init-from latest" in other.stderr
    if os.geteuid() == 0:
        os.chown(tmp_path / "g", 12345, -1)
        theirs = run(*group, "--dry-run")
        assert (theirs.returncode, "g is another user's" in theirs.stderr) == (2, True)


def test_a_run_that_has_learned_nothing_begins_with_its_own_copy_of_networks(
    run: Run, tmp_path: Path
) -> None:
    assert run("train", TASK, *SIX, "--agent.run-name", "base").returncode == 0
    command = ("train", TASK, *SIX, "--init-from", "base", "--run-dir", "d")
    assert run(*command).returncode == 0
    for path in (tmp_path / "d/checkpoints").glob("*model_*.pt"):
        path.unlink()
    shutil.rmtree(only_run(tmp_path))
    seeds = run(*command, "--seeds", "2")
    assert (seeds.returncode, "--seeds is for several runs, and d is one" in seeds.stderr) == (2, 1)
    again = run(*command)
    assert again.returncode == 0, again.stderr
    assert "beginning with networks of" in again.stdout
    for path in (tmp_path / "d/checkpoints").glob("*.pt"):
        path.unlink()
    gone = run(*command)
    assert gone.returncode == 1
    assert "--init-from base does not exist" in gone.stderr
