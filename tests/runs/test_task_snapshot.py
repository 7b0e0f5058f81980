"""A run keeps its task's code; what has changed since is told, and the old code can be used."""

import json
import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from mjfleet.errors import UserError
from mjfleet.registry import Registry
from mjfleet.rl.checkpoints.files import pack_checkpoint
from mjfleet.runs import task_snapshot
from mjfleet.runs.own_runs import add_note
from mjfleet.runs.read_facts import read_code_facts
from mjfleet.runs.start import decide_code
from mjfleet.runs.task_snapshot import changes_since, read_code, snapshot_of

from ..conftest import Output, Run, copy_task, only_run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A task's folder."""
    task = tmp_path / "tasks" / "arm"
    (task / "meshes").mkdir(parents=True)
    (task / "env.py").write_text("import torch\nimport yaml.nodes\nfrom .config import A\nx = 1\n")
    (task / "meshes" / "hand.stl").write_bytes(b"\0\1\2")
    return task


def keep(folder: Path, run_dir: Path) -> Path:
    """Keep a folder in a run, and write a checkpoint that was trained with it."""
    code = read_code(folder)
    (run_dir / "checkpoints").mkdir(parents=True, exist_ok=True)
    task_snapshot.keep(code, run_dir)
    entry = {"hash": code.hash, "left_out": list(code.left_out)}
    record = {"id": "1", "task": "arm", "attempts": [{"code": entry}]}
    (run_dir / "run.json").write_text(json.dumps(record))
    add_note(run_dir, "1", {}, code.hash)
    checkpoint = run_dir / "checkpoints" / "model_1.pt"
    checkpoint.write_bytes(pack_checkpoint({}, {"iteration": 1, "task_hash": code.hash}))
    return checkpoint


def test_the_hash_is_that_of_what_a_task_consists_of(folder: Path, tmp_path: Path) -> None:
    before = read_code(folder).hash
    for name in ("__pycache__/env.pyc", ".git/HEAD", "meshes/.swap"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("anything")
    copy = shutil.copytree(folder, tmp_path / "copy")
    assert read_code(folder).hash == read_code(copy).hash == before
    (copy / "meshes" / "hand.stl").write_bytes(b"\0\1\3")
    assert read_code(copy).hash != before


def test_only_regular_files_of_a_sane_size_are_kept(folder: Path) -> None:
    (folder / "link.py").symlink_to("/etc/passwd")
    (folder / "away").symlink_to("/etc")
    os.mkfifo(folder / "pipe")
    with (folder / "huge.bin").open("wb") as file:
        file.truncate(task_snapshot.SNAPSHOT_MAX_BYTES + 1)
    code = read_code(folder)
    assert {*code.files} == {"env.py", "meshes/hand.stl"}
    assert code.left_out == ["away", "huge.bin", "link.py", "pipe"]


def test_code_of_ones_own_run_is_used_as_it_was(folder: Path, tmp_path: Path) -> None:
    checkpoint = keep(folder, tmp_path / "run")
    assert changes_since(checkpoint, folder) is None
    (folder / "env.py").write_text("x = 2\n")
    (folder / "odd\x1b.xml").touch()
    changes = changes_since(checkpoint, folder)
    assert changes
    assert "model_1.pt: env.py, odd\\x1b.xml; `diff -r " in changes
    for source in (checkpoint, tmp_path / "run"):
        was = snapshot_of(source).folder
        assert was
        assert (was / "env.py").read_text().endswith("x = 1\n")
        assert (was / "meshes" / "hand.stl").read_bytes() == b"\0\1\2"


def test_the_command_shows_a_module_of_a_learner_that_the_run_had_not(
    folder: Path, tmp_path: Path
) -> None:
    checkpoint = keep(folder, tmp_path / "run")
    learner = tmp_path / "learner.py"
    learner.write_text("added = 1\n")
    changes = str(changes_since(checkpoint, folder, {"learner.py": learner}))
    assert changes.startswith("the task's code has changed since model_1.pt: learner.py; `diff ")
    shown = subprocess.run(
        shlex.split(changes.split("`")[1]), capture_output=True, text=True, check=False
    )
    assert (shown.returncode, "> added = 1" in shown.stdout) == (1, True)


def test_a_bundled_task_that_the_code_imports_belongs_to_it(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundled = tmp_path / "bundled"
    for name in ("pole", "hand"):
        (bundled / name).mkdir(parents=True)
        (bundled / name / "env.py").write_text("from .hand import A\nx = 1\n")
    (folder / "hand.py").touch()
    with (folder / "env.py").open("a") as env:
        env.write("from .pole.env import Pole\nfrom .hand import Hand\n")
    monkeypatch.setattr(task_snapshot, "bundled_tasks", lambda: bundled)
    checkpoint = keep(folder, tmp_path / "run")
    was = snapshot_of(checkpoint).folder
    assert was
    assert {*read_code(folder).files} - {"env.py", "meshes/hand.stl", "hand.py"} == {"pole/env.py"}
    assert changes_since(checkpoint, folder) is None
    (bundled / "pole" / "env.py").write_text("x = 2\n")
    assert changes_since(checkpoint, folder) == (
        "the task's code has changed since model_1.pt: pole/env.py; "
        f"`diff -r {was}/pole {bundled}/pole` shows how"
    )
    (folder / "env.py").write_text("x = 2\n")
    assert "model_1.pt: env.py, pole/env.py; `diff -r " in str(changes_since(checkpoint, folder))
    assert (was / "pole" / "env.py").read_text().endswith("x = 1\n")


def test_other_code_is_refused(folder: Path, tmp_path: Path) -> None:
    checkpoint = keep(folder, tmp_path / "run")
    (kept,) = (tmp_path / "run" / "task").iterdir()

    def refused(message: str) -> None:
        assert message in snapshot_of(checkpoint).why_none

    (kept / "env.py").write_text("import os\n")
    refused("is not as it was")
    shutil.copy(folder / "env.py", kept)
    (kept / "env.cpython-311-x86_64-linux-gnu.so").write_bytes(b"")
    refused("is not as it was")
    checkpoint.write_bytes(pack_checkpoint({}, {"iteration": 1, "task_hash": "../../x"}))
    refused("keeps no copy of the task's code")


def test_code_of_somebody_else_runs_only_if_it_is_asked_for(
    folder: Path, tmp_path: Path, state: Path
) -> None:
    checkpoint = keep(folder, tmp_path / "run")
    (kept,) = (tmp_path / "run" / "task").iterdir()
    (kept / "__pycache__").mkdir()
    (kept / "__pycache__" / "env.cpython-311.pyc").write_bytes(b"")
    shutil.rmtree(state)
    facts = read_code_facts(Registry(), "arm", checkpoint, False)
    with pytest.raises(UserError, match="this installation did not begin the run"):
        decide_code("fork", False, "typed", facts)
    was, (note,) = decide_code("fork", True, "typed", facts)
    assert was
    assert f"the code is {was}, as it was when {checkpoint} was trained" in note
    assert {path.name for path in was.iterdir()} == {"env.py", "meshes"}


def test_an_incomplete_snapshot_is_refused(folder: Path, tmp_path: Path) -> None:
    (folder / "assets").symlink_to("/etc")
    checkpoint = keep(folder, tmp_path / "run")
    assert changes_since(checkpoint, folder) is None
    assert "it lacks assets" in snapshot_of(checkpoint).why_none


def test_commands_say_that_the_code_has_changed_and_use_it_as_it_was(
    run: Run, output: Output, tmp_path: Path
) -> None:
    task = copy_task(tmp_path / "tasks", "mine")
    config = task / "config.py"
    few = ("--env.num-envs", "8", "--env.episode-seconds", "1", "--agent.num-steps-per-env", "8")
    output("train", "mine-balance", *few, "--agent.max-iterations", "1")
    run_dir = only_run(tmp_path, "mine-balance")
    (kept,) = (run_dir / "task").iterdir()
    assert read_code(kept) == read_code(task)

    play = ("play", "mine-balance", "--resume", "latest", "--episodes", "8")
    before = output(*play)
    assert "changed since" not in before
    # The new code does not know a number of the configuration any more, and pays nothing.
    env = task / "env.py"
    env.write_text(env.read_text().replace("swing_up", "hangs").replace("1) / 2", "1) / 3"))
    config.write_text(config.read_text().replace("swing_up", "hangs"))
    after = run(*play)
    assert after.returncode == 2
    assert "has changed since model_1.pt: config.py, env.py" in after.stdout
    assert "swing_up" in after.stderr
    assert output(*play, "--as-trained").splitlines()[1:] == before.splitlines()

    # A run that continues with other code says so, and keeps that, too.
    resume = ("train", "mine-balance", "--resume", "latest", "--agent.max-iterations", "2")
    assert "its config.yaml: unknown key `env.swing_up`" in run(*resume).stderr
    assert "as it was when" in output(*resume, "--as-trained", "--dry-run")
    settings = run_dir / "attempts/1/config.yaml"
    settings.write_text(settings.read_text().replace("  swing_up: false\n", ""))
    assert "has changed since model_1.pt" in output(*resume)
    assert len([*(run_dir / "task").iterdir()]) == 2
    checkpoint = f"{run_dir}/checkpoints/model_1.pt"
    one = ("play", "mine-balance", "--resume", checkpoint, "--episodes", "8", "--as-trained")
    assert output(*one).splitlines()[2:] == before.splitlines()[1:]
