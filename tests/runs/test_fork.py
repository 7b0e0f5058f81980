"""A run continues in place with the same values, and --fork begins a run of its own with others."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from mjfleet.config import from_dict
from mjfleet.errors import UserError
from mjfleet.registry import discover
from mjfleet.runs.config_yaml import write_config
from mjfleet.runs.read_facts import read_facts
from mjfleet.runs.start import Start, compare, decide

from ..conftest import Run, rows
from .test_damaged_runs import everything
from .test_resume import SIX, TASK, add_checkpoint, make_run

FOUND = discover({}).tasks[TASK]
DEFAULTS = FOUND.defaults()


def resume(tmp_path: Path, **changes: Any) -> Start:
    """Resume a run whose run name is `base`, with other values given by nested mappings."""
    run_dir = tmp_path / "logs" / TASK / "2026-01-01_00-00-00_base"
    total_envs = 64 if changes.get("total_envs", 64) else None
    recorded = replace(
        DEFAULTS, agent=replace(DEFAULTS.agent, run_name="base"), total_envs=total_envs
    )
    if not run_dir.exists():
        make_run(run_dir.parent, run_dir.name)
        add_checkpoint(run_dir, 4)
        write_config(run_dir / "config.yaml", TASK, recorded)
    config = from_dict(recorded, {"dry_run": True, "resume": str(run_dir), **changes})
    _, facts = read_facts(config, TASK, [], {}, [])
    return compare(decide(config, facts), config, recorded, None)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"agent": {"max_iterations": 900, "save_interval": 7, "logger": ["none"]}},
        {"cpu_workers": 2, "engine": "warp", "eval_interval": 3, "env": {"num_envs": 32}},
        {"agent": {"wandb": {"tags": ["a"]}}, "hosts": ["a", "b"], "log_root": "elsewhere"},
    ],
)
def test_length_devices_logging_and_saving_leave_it_the_same_run(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    found = resume(tmp_path, **changes)
    assert found.run_dir
    assert found.run_dir.name == "2026-01-01_00-00-00_base"
    assert found.parent is None
    assert "in place" in found.notes[0]


@pytest.mark.parametrize(
    ("changes", "name", "value", "was"),
    [
        ({"agent": {"run_name": ""}}, "agent.run_name", "", "base"),
        ({"env": {"swing_up": True}}, "env.swing_up", True, False),
        ({"total_envs": 128}, "total_envs", 128, 64),
    ],
)
def test_a_name_or_what_decides_what_is_learned_needs_fork(
    tmp_path: Path, changes: dict[str, Any], name: str, value: Any, was: Any
) -> None:
    shown = "empty" if value == "" else value
    listed = re.escape(f"--{name.replace('_', '-')} is {shown}, was {was}")
    with pytest.raises(UserError, match=rf"{listed}\. .*--resume .*_base --fork$"):
        resume(tmp_path, **changes)
    found = resume(tmp_path, fork=True, **changes)
    assert found.run_dir is None
    assert found.checkpoint
    assert found.parent
    assert found.parent.run == f"{TASK}/2026-01-01_00-00-00_base"
    assert found.parent.iteration == 4
    assert found.parent.changed == {name: {"value": value, "parent": was}}
    assert re.search(listed, found.notes[0])


def test_a_policy_that_has_begun_cannot_begin_otherwise(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"distribution\.init-std .*has begun with 1\.0"):
        resume(tmp_path, fork=True, agent={"actor": {"distribution": {"init_std": 0.5}}})


def test_the_parent_stays_and_the_run_of_its_own_uses_what_its_configuration_says(
    run: Run, tmp_path: Path
) -> None:
    flags = (*SIX, "--agent.save-interval", "2", "--eval-interval", "2", "--eval-envs", "4")
    assert run("train", TASK, *flags, "--agent.run-name", "base").returncode == 0
    (base,) = (tmp_path / "logs" / TASK).iterdir()
    before = everything(base)

    best = f"{base}/checkpoints/best.pt"
    changes = ("--agent.run-name", "variant", "--agent.seed", "9", "--env.num-envs", "8")
    changes = (*changes, "--agent.max-iterations", "8")
    result = run("train", TASK, "--resume", best, *changes)
    assert result.returncode == 2
    assert everything(base) == before
    result = run("train", TASK, "--resume", best, "--fork", *changes)
    assert result.returncode == 0, result.stderr
    assert everything(base) == before
    assert "a run of its own" in result.stdout
    assert "random states, which begin anew" in result.stdout
    (fork,) = (tmp_path / "logs" / TASK).glob("*_variant")
    begun = torch.load(best, weights_only=True)["iter"]
    record = json.loads((fork / "run.json").read_text())
    assert record["parent"]["run"] == f"{TASK}/{base.name}"
    assert record["parent"]["checkpoint"] == best
    assert record["parent"]["iteration"] == begun
    assert {*record["parent"]["changed"]} == {
        "agent.run_name", "agent.seed", "env.num_envs", "agent.max_iterations",
    }  # fmt: skip
    assert [int(row["iteration"]) for row in rows(fork)] == [*range(begun + 1, 9)]
    config = yaml.safe_load((fork / "config.yaml").read_text())
    assert config["agent"]["seed"] == record["plan"]["workers"][0]["seed"] == 9
    (listed, other) = json.loads(run("mjfleet", "runs", "--json").stdout)
    assert listed["parent"] == f"{TASK}/{base.name} at iteration {begun}"
    assert other["parent"] is None
    assert listed["parent"] in run("mjfleet", "runs").stdout

    # It has a copy of its beginning, so it also starts again without its parent.
    for path in (fork / "checkpoints").iterdir():
        if path.name != f"model_{begun}.pt":
            path.unlink()
    result = run("train", TASK, "--resume", str(fork), "--agent.max-iterations", "7")
    assert result.returncode == 0, result.stderr
    assert "continues in place" in result.stdout
    assert [int(row["iteration"]) for row in rows(fork)] == [*range(begun + 1, 8)]
    again = json.loads((fork / "run.json").read_text())
    assert again["parent"] == record["parent"]
    assert len(again["attempts"]) == 2
    # Each attempt's configuration is kept.
    lengths = [
        yaml.safe_load((fork / name).read_text())["agent"]["max_iterations"]
        for name in ("attempts/1/config.yaml", "config.yaml")
    ]
    assert lengths == [8, 7]
    page = run("mjfleet", "report", str(fork), "--output", "page.html")
    assert page.returncode == 0, page.stderr
    assert base.name in (tmp_path / "page.html").read_text()
