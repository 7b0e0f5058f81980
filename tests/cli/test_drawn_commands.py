"""Whatever is typed, in whatever environment: an exit code, no traceback, nothing left.

`--draws 2000` draws more, see docs/reliability.md.
"""

import os
import shutil
from contextlib import chdir
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mjfleet.config import AgentConfig, EnvConfig, LaunchConfig
from mjfleet.config.field_kinds import leaves

from ..conftest import drawn
from ..runs.test_damaged_runs import call, everything, make_run

NOT_DRAWN = ("--hosts", "--dry-run")  # Other hosts would be looked for.
FLAGS = sorted(
    {
        "--" + leaf.name.replace("_", "-")
        for kind, prefix in ((LaunchConfig, ""), (AgentConfig, "agent."), (EnvConfig, "env."))
        for leaf in leaves(kind, prefix=prefix)
    }
    - {*NOT_DRAWN}
)
VALUES = (
    "0", "1", "-1", "2", "3.5", "1e999", "nan", "-inf", "1e30", "1000000000000", "9" * 50,
    "9" * 5000, "", " ", "None", "auto", "all", "true", "True", "[1, 2]", "x=1", "=", "--", "-h",
    "ü", "\udcff",
    "\x1b]0;x\x07", "[/b]", "a" * 300, "/", "..", "/dev/null", "/dev/zero", "/dev/stdin", "latest",
    "logs", "here", "a\nb", "cpu", "adam", "tensorboard", "PPO", "os:system",
    "env:CartpoleEnv", "{}",
)  # fmt: skip
VARIABLES = {
    "RANK": ("0", "1", "x", "-1"), "WORLD_SIZE": ("1", "2", "0", "x"), "LOCAL_RANK": ("0", "x"),
    "SLURM_NTASKS": ("1", "2", "x"), "SLURM_JOB_NUM_NODES": ("1", "x"), "SLURM_PROCID": ("0", "x"),
    "CUDA_VISIBLE_DEVICES": ("", "0", "-1", "0,0", "x", "9" * 50),
    "COLUMNS": ("0", "x", "9999"),
    "MJFLEET_TASKS": ("", ":", "/nowhere", "/dev/null", "logs"),
    "TORCHRUNX_LOG_DIR": ("", "here", "/"),
    "WANDB_MODE": ("online", "x"), "MUJOCO_GL": ("x",), "OMP_NUM_THREADS": ("0", "x"),
    "HOME": ("", "/nowhere", "relative"), "XDG_STATE_HOME": ("", "relative", "/dev/null"),
    "XDG_CACHE_HOME": ("/dev/null",), "TERM": ("", "dumb"), "TMPDIR": ("/nowhere",), "PATH": ("",),
}  # fmt: skip
COMMANDS = (
    ("train", "cartpole-balance", "--dry-run"), ("train", "cartpole-balance", "--dry-run"),
    ("train", "cartpole-balance", "--dry-run"), ("train", "cartpole-balance", "--dry-run"),
    ("runs",), ("plot",), ("compare",), ("report",), ("tasks",), ("inspect",), ("nothing",),
    ("train",), (),
)  # fmt: skip
OTHERS = ("--log-root", "--json", "--output", "--columns", "--x", "--tasks-dir", "--total-steps")


@pytest.mark.slow
@pytest.mark.timeout(7200)
@drawn(40)
@given(data=st.data())
def test_any_command_line_is_answered(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("drawn")
    run_dir = make_run(folder)
    values = st.sampled_from((*VALUES, str(run_dir), str(run_dir / "config.yaml")))
    words: list[Any] = list(data.draw(st.sampled_from(COMMANDS)))
    flags = FLAGS if words[:1] == ["train"] else OTHERS
    for _ in range(data.draw(st.integers(0, 3))):
        words.append(data.draw(st.sampled_from(flags)))
        words += data.draw(st.lists(values, max_size=2))
    if words[:1] != ["train"]:
        words += data.draw(st.lists(values, max_size=2))
    names = data.draw(st.sets(st.sampled_from(sorted(VARIABLES)), max_size=2))
    environ = {name: data.draw(st.sampled_from(VARIABLES[name])) for name in sorted(names)}
    if "--output" in words:
        return  # What is asked for is written there.
    before = everything(folder)
    with chdir(folder), mock.patch.dict(os.environ, environ):
        code, said = call(*words)
    assert code in (0, 2), said
    made = set(everything(folder)) - set(before)
    run_files = {path.relative_to(folder) for path in (run_dir / "report.html", run_dir / "plots")}
    assert {Path(path) for path in made if "plots" not in path} <= run_files
    shutil.rmtree(folder)
