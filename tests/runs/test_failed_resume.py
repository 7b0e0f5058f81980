"""What a command leaves of a run that it continues, or of a new one, if it fails at its start."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from ..conftest import REPOSITORY, Run, copy_task, only_run, rows
from .test_damaged_runs import everything
from .test_resume import SIX

TASK = "mine-balance"
SETUP = "\n    def setup(self) -> None:\n        {}\n\n    def reset_worlds("
APPLY = "-> None:\n        {}\n        self.sim.ctrl[:]"
TWICE = "self.observe = lambda: {k: v.repeat(1, 2) for k, v in type(self).observe(self).items()}"
MISTAKE = 'from mjfleet.errors import UserError\n        raise UserError("no luck")'


def write_task(tmp_path: Path) -> Path:
    """Write a task, `mine`, that can be broken; returns its folder."""
    task = copy_task(tmp_path / "tasks", "mine")
    config = task / "config.py"
    config.write_text(config.read_text().replace("observation_sizes=SIZES,", ""))
    return task


def edit(task: Path, setup: str = "pass", apply: str = "pass", reward: str = "balance") -> None:
    """Give the environment what it does in `setup`, in each step, and the name of its reward."""
    text = (REPOSITORY / "tasks/cartpole/env.py").read_text()
    text = text.replace("\n    def reset_worlds(", SETUP.format(setup))
    text = text.replace("-> None:\n        self.sim.ctrl[:]", APPLY.format(apply))
    (task / "env.py").write_text(text.replace('{"balance":', f'{{"{reward}":'))
    # Python takes bytecode for a file's own if it has the file's size and second.
    shutil.rmtree(task / "__pycache__", ignore_errors=True)


def record(run_dir: Path) -> dict[str, Any]:
    return json.loads((run_dir / "run.json").read_text())


def test_a_resume_that_fails_at_its_start_adds_an_attempt_and_changes_nothing_else(
    run: Run, tmp_path: Path
) -> None:
    task = write_task(tmp_path)
    edit(task)
    more = ("--agent.save-interval", "3")
    assert run("train", TASK, *SIX, *more, "--logger", "none").returncode == 2
    assert not (tmp_path / "logs").exists()
    assert run("train", TASK, *SIX, *more).returncode == 0
    run_dir = only_run(tmp_path, TASK)
    older = f"{run_dir}/checkpoints/model_3.pt"
    before, was = everything(run_dir), record(run_dir)
    config = task / "config.py"
    good = config.read_text()
    config.write_text(
        good.replace("swing_up: bool = False", "swing_up: bool = False\n    x: int = 1")
    )
    resume = ("train", TASK, "--resume", older, "--agent.max-iterations", "8")

    # The user's mistakes.
    said = ""
    for flags, changes in (
        (("--agent.actor.hidden-dims", "8"), {}),
        (("--cpu-workers", "2"), {"setup": MISTAKE}),
        ((), {"setup": TWICE}),
        ((), {"reward": "other"}),
    ):
        edit(task, **changes)
        result = run(*resume, *flags)
        assert result.returncode == 2, result.stderr
        assert everything(run_dir) == before
        assert [path.name for path in (tmp_path / "logs" / TASK).iterdir()] == [run_dir.name]
        said += result.stderr
    assert "or begin a new run, by --init-from if its actor still fits." in said
    assert "its rewards were ['balance'], and are ['other'] now" in said

    # Faults.
    own = ("run.json", "failures", "torchrunx", "attempts", "task")
    for number, (flags, changes) in enumerate(
        (
            ((), {"setup": "raise ValueError(1)"}),
            (("--cpu-workers", "2"), {"apply": "raise ValueError(2)"}),
            ((), {"apply": "self.sim.qvel[:] = math.nan"}),
            ((), {"setup": "import os; os.kill(os.getpid(), 15)"}),
        ),
        2,
    ):
        edit(task, **changes)
        result = run(*resume, *flags)
        assert result.returncode in (1, 143), result.stderr
        after = everything(run_dir)
        assert {name: after[name] for name in after if not name.startswith(own)} == {
            name: before[name] for name in before if not name.startswith(own)
        }
        now = record(run_dir)
        assert len(now["attempts"]) == number
        assert now["attempts"][-1]["status"] == ("failed" if number < 5 else "stopped")
        assert {**now, "attempts": 0} == {**was, "attempts": 0}
    config.write_text(good)
    edit(task)
    for command in (
        ("play", TASK, "--resume", "latest", "--episodes", "2"),
        ("mjfleet", "export", "latest", "--format", "torchscript"),
    ):
        result = run(*command)
        assert result.returncode == 0, result.stderr
    result = run(*resume)
    assert result.returncode == 0, result.stderr
    assert [row["iteration"] for row in rows(run_dir)] == [*map(str, range(1, 9))]
    assert (run_dir / "attempts/1/config.yaml").read_bytes() == before["config.yaml"][1]
    assert (record(run_dir)["status"], len(record(run_dir)["attempts"])) == ("finished", 6)
    assert {p.name for p in run_dir.glob("checkpoints/replaced_*/*")} == {
        "model_6.pt",
        "metrics.csv",
    }
    assert not list(run_dir.rglob("*.tmp"))


@pytest.mark.slow
def test_a_task_may_leave_the_working_directory(run: Run, tmp_path: Path) -> None:
    task, elsewhere = write_task(tmp_path), tmp_path / "elsewhere"
    elsewhere.mkdir()
    leave = f"import os; os.chdir({str(elsewhere)!r})"
    edit(task, setup=leave, apply=leave)
    (task / "config.py").write_text(f"{leave}\n{(task / 'config.py').read_text()}")
    result = run("train", TASK, *SIX)
    assert result.returncode == 0, result.stderr
    run_dir = only_run(tmp_path, TASK)
    shown = run_dir.relative_to(tmp_path)
    assert result.stdout.splitlines()[-1] == f"run directory: {shown}"
    assert record(run_dir)["status"] == "finished"
    assert len(rows(run_dir)) == 6
    edit(task, setup=leave, reward="balance")
    more = ("--agent.max-iterations", "7", "--cpu-workers", "2", "--torchrunx-log-dir", "workers")
    result = run("train", TASK, "--resume", str(shown), *more)
    assert result.returncode == 0, result.stderr
    assert "continues in place: its metrics continue with the new code" in result.stdout
    assert "nothing differs" not in result.stdout
    assert result.stdout.count("the task's code has changed since model_6.pt: env.py") == 1
    assert list(tmp_path.glob("workers/*/localhost*.log"))
    for command in (
        ("play", TASK, "--resume", "latest", "--episodes", "2", "--output", "table.json"),
        ("mjfleet", "export", str(shown), "--format", "torchscript", "--output", "policy.pt"),
    ):
        result = run(*command)
        assert result.returncode == 0, result.stderr
    written = {path.name for path in tmp_path.glob("*.*")}
    assert written == {"policy.pt", "policy.json", "policy.mjb", "table.json"}
    assert not [*elsewhere.iterdir()]


@pytest.mark.slow
def test_a_restart_uses_the_code_with_which_the_run_began(run: Run, tmp_path: Path) -> None:
    task = write_task(tmp_path)
    once = (
        "import os, pathlib, signal\n"
        "        self.cache('steps')\n"
        "        self.steps = getattr(self, 'steps', 0) + 1\n"
        f"        there = pathlib.Path({str(task)!r}, 'env.py')\n"
        "        if self.steps > 20 and len(there.read_text()) > 99:\n"
        "            there.write_text('raise ValueError')\n"
        "            os.kill(os.getpid(), signal.SIGKILL)"
    )
    edit(task, apply=once)
    result = run("train", TASK, *SIX, "--agent.save-interval", "1", "--max-restarts", "2")
    assert result.returncode == 0, result.stderr
    run_dir = only_run(tmp_path, TASK)
    assert [row["iteration"] for row in rows(run_dir)] == [*map(str, range(1, 7))]
    killed, restarted = record(run_dir)["attempts"]
    assert killed["code"]["hash"] == restarted["code"]["hash"]
    assert (task / "env.py").read_text() == "raise ValueError"
