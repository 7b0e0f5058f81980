"""A configuration from somebody else says what is learned, not where or with whose code."""

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from mjfleet.cli.train import configure
from mjfleet.config import TrainConfig, WandbConfig, from_dict, to_dict
from mjfleet.errors import UserError
from mjfleet.registry import discover
from mjfleet.runs.config_yaml import (
    from_file,
    placement_flags,
    placement_of,
    read_config,
    write_config,
)
from mjfleet.runs.own_runs import add_note, id_of, note_of, tasks_dir_of
from mjfleet.runs.run_json import write_record

from ..conftest import TESTS, Output, Run, only_run, write_task

TASK = "cartpole-balance"
FOUND = discover({}).tasks[TASK]
RUN = TESTS / "data" / "cartpole-balance-9159368"


def begin(run_dir: Path, **changes: Any) -> TrainConfig:
    """Write a run directory's files, and the note of the run."""
    run_dir.mkdir(exist_ok=True)
    config = replace(FOUND.defaults(), **changes)
    write_config(run_dir / "config.yaml", TASK, config)
    run_id = id_of(run_dir)
    write_record(run_dir, id=run_id)
    add_note(run_dir, run_id, placement_of(config))
    return config


def read(run_dir: Path, *given: str) -> TrainConfig:
    """Read a run's configuration for a command that trains, with flags for some fields."""
    data = read_config(str(run_dir / "config.yaml"))
    return from_file(FOUND, data, "its config.yaml", note_of(run_dir), given.__contains__)


def test_the_placement_of_a_run_that_was_begun_here_counts(tmp_path: Path, state: Path) -> None:
    run_dir = tmp_path / "run"
    old = begin(run_dir, hosts=["c"], log_root="/data")
    config = begin(run_dir, hosts=["a", "b"], log_root="/data")
    file = run_dir / "config.yaml"
    text = file.read_text()
    assert read(run_dir) == config
    # An attempt that failed before its first iteration has left the file of the one before.
    file.write_text(text.replace("hosts:\n- a\n- b", "hosts:\n- c"))
    assert read(run_dir) == old

    file.write_text(text.replace("hosts:\n- a\n- b", "hosts:\n- a\n- evil"))
    with pytest.raises(
        UserError, match=r"its config\.yaml does not decide hosts, since.* --hosts a evil"
    ):
        read(run_dir)
    assert read(run_dir, "hosts") == replace(config, hosts=[])

    # A run that has been moved is the same; another run, or another installation's, is not.
    file.write_text(text)
    run_dir = run_dir.rename(tmp_path / "moved")
    assert read(run_dir) == config
    record = (run_dir / "run.json").read_text()
    write_record(run_dir, id="another")
    with pytest.raises(UserError, match=r"--hosts a b --log-root=/data"):
        read(run_dir)
    (run_dir / "run.json").write_text(record)
    shutil.rmtree(state)
    assert note_of(run_dir) is None
    assert read(run_dir, "hosts", "log_root") == FOUND.defaults()


def test_a_folder_of_tasks_is_asked_for_only_if_the_task_is_found_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    file = tmp_path / "config.yaml"
    for folder in (tmp_path / "gone", FOUND.folder.parent):
        file.write_text(f"tasks_dir: {folder}\n")
        assert read(tmp_path) == FOUND.defaults()
    file.write_text(f"tasks_dir: {tmp_path / 'theirs'}\n")
    with pytest.raises(UserError, match="does not decide tasks_dir"):
        read(tmp_path)
    begin(tmp_path, tasks_dir=str(tmp_path / "theirs"))
    assert tasks_dir_of(tmp_path) == str(tmp_path / "theirs")
    (tmp_path / "theirs").rmdir()
    assert tasks_dir_of(tmp_path) is None


COMMANDS = "resume", "init_from", "run_dir", "teacher", "config"
"""Fields that only a command has."""


@pytest.mark.parametrize(
    ("line", "words"),
    [
        *((f"{name}: x", name) for name in COMMANDS),
        ("as_trained: true", "as_trained"),
        ("agent: {actor: {class_name: 'os:system'}}", "--agent.actor.class-name=os:system"),
        ("env_var: [PYTHONPATH=/theirs]", "--env-var PYTHONPATH=/theirs"),
        ("ssh_config: /theirs", "--ssh-config=/theirs"),
    ],
)
def test_what_a_file_does_not_decide_are_flags_to_give(
    tmp_path: Path, line: str, words: str
) -> None:
    begin(tmp_path)
    (tmp_path / "config.yaml").write_text(f"{line}\n")
    with pytest.raises(UserError, match=f"does not decide .*{re.escape(words)}"):
        read(tmp_path)


def test_the_path_of_a_run_says_nothing_in_its_configuration(tmp_path: Path) -> None:
    run_dir = tmp_path / "x\nhosts: [evil]\r\x85\u2028y"
    begin(run_dir)
    file = run_dir / "config.yaml"
    assert read_config(str(file))["hosts"] == []
    first, second, *_ = file.read_text().split("\n")
    assert first.endswith("\\nhosts: [evil]\\r\\x85\\u2028y/config.yaml")
    assert second == f"task: {TASK}"


def test_a_task_s_own_placement_holds_whatever_a_file_says(tmp_path: Path) -> None:
    agent = replace(FOUND.task.agent, logger=("wandb",))
    found = replace(FOUND, task=replace(FOUND.task, agent=agent))
    data = {"agent": {"logger": ["none"], "wandb": {"notes": "x"}}}
    config = from_file(found, data, "file", None)
    assert (config.agent.logger, config.agent.wandb.notes) == (("wandb",), "x")
    assert from_dict(config, to_dict(config)) == config


def test_without_a_state_folder_nothing_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    agent = replace(FOUND.defaults().agent, logger=("wandb",), wandb=WandbConfig(project="p"))
    begun = begin(tmp_path / "run", log_root="/data", env_var=["HOME=/data"], agent=agent)
    assert note_of(tmp_path / "run") is None
    # What a command begins by itself, such as the runs of a group, needs no more flags there.
    given = ("--config", str(tmp_path / "run/config.yaml"))
    flags = placement_flags(begun, FOUND.defaults())
    config = configure([TASK, *given, *flags]).config
    assert replace(config, config=None) == begun
    with pytest.raises(UserError, match=r"does not decide agent\.wandb\.project"):
        configure([TASK, *given, *(word for word in flags if "project" not in word)])


def test_an_account_without_its_logger_is_neither_asked_for_nor_passed_on(tmp_path: Path) -> None:
    # A run that logged to W&B once has one, and so may an agent of the Python API.
    agent = replace(FOUND.defaults().agent, wandb=WandbConfig(project="p", notes="n"))
    config = replace(FOUND.defaults(), agent=agent)
    write_config(tmp_path / "config.yaml", TASK, config)
    flags = placement_flags(config, FOUND.defaults())
    assert not [flag for flag in flags if "wandb" in flag]
    given = [TASK, "--config", str(tmp_path / "config.yaml"), *flags]
    assert configure(given).config.agent.wandb == WandbConfig(notes="n")
    with pytest.raises(UserError, match=r"does not decide agent\.wandb\.project"):
        configure([*given, "--agent.logger", "wandb"])


@pytest.mark.parametrize(
    ("command", "stops"),
    [
        (("train", TASK, "--dry-run", "--resume", "{run}"), True),
        (("play", TASK, "--episodes", "1", "--resume", "{run}/checkpoints/model_3.pt"), False),
    ],
    ids=("resume", "play"),
)
def test_tasks_of_somebody_else_run_only_if_a_flag_names_their_folder(
    run: Run, output: Output, tmp_path: Path, command: tuple[str, ...], stops: bool
) -> None:
    ran = tmp_path / "ran"
    config = f"open({str(ran)!r}, 'w')\nTASKS = {{}}\n"
    tasks = write_task(tmp_path / "theirs", "evil", config).parent
    run_dir = Path(shutil.copytree(RUN, tmp_path / "logs" / TASK / RUN.name))
    data = yaml.safe_load((run_dir / "config.yaml").read_text()) | {"tasks_dir": str(tasks)}
    (run_dir / "config.yaml").write_text(yaml.safe_dump(data))
    typed = [word.replace("{run}", str(run_dir)) for word in command]
    result = run(*typed)
    assert result.returncode == (2 if stops else 0), result.stderr
    assert (f"--tasks-dir={tasks}" in result.stderr) == stops
    assert not ran.exists()
    output(*typed, "--tasks-dir", str(tasks))
    assert ran.exists()


def test_ones_own_run_goes_on_without_a_flag(output: Output, tmp_path: Path) -> None:
    flags = ("--env.num-envs", "8", "--agent.max-iterations", "1", "--torchrunx-log-dir", "there")
    output("train", TASK, *flags)
    output("train", TASK, "--resume", "latest", "--agent.max-iterations", "2")
    data = yaml.safe_load((only_run(tmp_path) / "config.yaml").read_text())
    assert data["torchrunx_log_dir"] == "there"
