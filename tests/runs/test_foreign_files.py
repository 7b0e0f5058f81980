"""A configuration from somebody else says what is learned, not where or with whose code."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from mjfleet.config import to_dict
from mjfleet.errors import UserError
from mjfleet.registry import discover
from mjfleet.runs.config_yaml import read_config, write_config

from ..conftest import TESTS, Run, only_run, write_task

TASK = "cartpole-balance"
RUN = TESTS / "data" / "cartpole-balance-9159368"


@pytest.fixture(autouse=True)
def state(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The state folder of a user, empty."""
    folder = tmp_path_factory.mktemp("state")
    monkeypatch.setenv("XDG_STATE_HOME", str(folder))
    return folder


def write(tmp_path: Path, **changes: Any) -> Path:
    """Write a configuration as a run does."""
    config = replace(discover({}).tasks[TASK].defaults(), **changes)
    write_config(tmp_path / "config.yaml", TASK, config)
    return tmp_path / "config.yaml"


def test_the_placement_of_a_run_that_was_begun_here_counts(tmp_path: Path, state: Path) -> None:
    file = write(tmp_path, hosts=["a", "b"], log_root="/data")
    text = file.read_text().replace("decimation: 5", "decimation: 4")
    file.write_text(text)
    data = read_config(str(file))
    assert (data["hosts"], data["log_root"], data["env"]["decimation"]) == (["a", "b"], "/data", 4)

    # Other hosts are not those of a run of ours; neither are fewer.
    for hosts in ("hosts:\n- a\n- evil", "hosts: []"):
        file.write_text(text.replace("hosts:\n- a\n- b", hosts))
        data = read_config(str(file))
        assert "log_root" not in data
        assert not data.get("hosts")
        assert data["env"]["decimation"] == 4
        assert read_config(str(file), as_written=True)["log_root"] == "/data"
        with pytest.raises(UserError, match=r"of log_root does not count.*'--log-root=/data'"):
            read_config(str(file), is_given=lambda name: name == "hosts")
        assert "log_root" not in read_config(str(file), is_given=lambda name: True)

    # Another installation has begun other runs.
    file.write_text(text)
    assert "hosts" in read_config(str(file))
    shutil.rmtree(state)
    assert "hosts" not in read_config(str(file))


def test_a_default_of_somebody_else_does_not_replace_the_task_s_own(tmp_path: Path) -> None:
    file = tmp_path / "theirs.yaml"
    file.write_text("agent: {logger: [wandb], wandb: {mode: null, project: null, notes: x}}\n")
    assert read_config(str(file)) == {"agent": {"wandb": {"notes": "x"}}}
    for agent in ("[]", "{wandb: []}", "3"):
        file.write_text(f"agent: {agent}\n")
        assert read_config(str(file))["agent"] == yaml.safe_load(agent)


def test_the_path_of_a_run_says_nothing_in_its_configuration(tmp_path: Path) -> None:
    run_dir = tmp_path / "x\nhosts: [evil]\r\x85\u2028y"
    run_dir.mkdir()
    file = write(run_dir)
    assert read_config(str(file), as_written=True)["hosts"] == []
    first, second, *_ = file.read_text().split("\n")
    assert first.endswith("\\nhosts: [evil]\\r\\x85\\u2028y/config.yaml")
    assert second == f"task: {TASK}"


def test_an_id_on_wandb_is_used_only_by_the_user_who_had_it(tmp_path: Path, run: Run) -> None:
    flags = ("--agent.logger", "wandb", "--agent.wandb.mode", "offline", "--agent.max-iterations")
    first = run("train", TASK, "--env.num-envs", "8", *flags, "1")
    assert first.returncode == 0, first.stderr
    run_dir = only_run(tmp_path)
    record = json.loads((run_dir / "run.json").read_text())
    again = run("train", TASK, "--resume", "latest", *flags, "2")
    assert again.returncode == 0, again.stderr
    assert json.loads((run_dir / "run.json").read_text())["wandb_id"] == record["wandb_id"]

    (run_dir / "run.json").write_text(json.dumps(record | {"wandb_id": "theirs"}))
    foreign = run("train", TASK, "--resume", "latest", *flags, "3")
    assert foreign.returncode == 0, foreign.stderr
    assert "left out its wandb_id" in foreign.stderr
    assert json.loads((run_dir / "run.json").read_text())["wandb_id"] != "theirs"
    assert not list(run_dir.glob("wandb/*theirs*"))


def test_without_a_home_nothing_is_remembered(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    file = write(tmp_path, log_root="/data")
    data = read_config(str(file))
    assert "log_root" not in data
    assert data["env"] == to_dict(discover({}).tasks[TASK].task.env)
    # What a command begins by itself needs no more flags there.
    few = ("--env.num-envs", "8", "--agent.max-iterations", "1", "--agent.logger", "none")
    group = run("train", TASK, "--seeds", "1", *few)
    assert group.returncode == 0, group.stdout


def evil_run(tmp_path: Path, **values: Any) -> Path:
    """A run directory whose config.yaml has these values."""
    run_dir = Path(shutil.copytree(RUN, tmp_path / "logs" / TASK / RUN.name))
    data = yaml.safe_load((run_dir / "config.yaml").read_text()) | values
    (run_dir / "config.yaml").write_text(yaml.safe_dump(data))
    return run_dir


@pytest.mark.parametrize(
    ("command", "stops"),
    [
        (("train", TASK, "--dry-run", "--resume", "{run}"), True),
        (("train", TASK, "--dry-run", "--resume", "latest"), True),
        (("train", TASK, "--dry-run", "--config", "{run}/config.yaml"), True),
        (("play", TASK, "--episodes", "1", "--resume", "{run}/checkpoints/model_3.pt"), False),
        (("mjfleet", "export", "{run}", "--format", "torchscript"), False),
    ],
    ids=("resume", "latest", "config", "play", "export"),
)
def test_tasks_of_somebody_else_run_only_if_a_flag_names_their_folder(
    run: Run, tmp_path: Path, command: tuple[str, ...], stops: bool
) -> None:
    ran = tmp_path / "ran"
    config = f"open({str(ran)!r}, 'w')\nTASKS = {{}}\n"
    tasks = write_task(tmp_path / "theirs", "evil", config).parent
    folder = str(evil_run(tmp_path, tasks_dir=str(tasks)))
    typed = [word.replace("{run}", folder) for word in command]
    result = run(*typed)
    assert result.returncode == (2 if stops else 0), result.stderr
    assert (f"'--tasks-dir={tasks}'" in result.stderr) == stops
    assert not ran.exists()
    result = run(*typed, "--tasks-dir", str(tasks))
    assert result.returncode == 0, result.stderr
    assert ran.exists()


def test_classes_of_somebody_else_are_of_the_task_alone(run: Run, tmp_path: Path) -> None:
    agent = yaml.safe_load((RUN / "config.yaml").read_text())["agent"]
    agent["actor"]["class_name"] = "os:system"
    run_dir = evil_run(tmp_path, agent=agent)
    words = "agent.actor.class_name is 'os:system': a file may name classes of "
    for command in (
        ("train", TASK, "--resume", str(run_dir), "--agent.max-iterations", "9"),
        ("train", TASK, "--config", str(run_dir / "config.yaml")),
        ("play", TASK, "--episodes", "1", "--resume", str(run_dir)),
        ("mjfleet", "export", str(run_dir), "--format", "torchscript"),
    ):
        result = run(*command)
        assert (result.returncode, words in result.stderr) == (2, True), result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["logs"]


@pytest.mark.slow
def test_variables_of_somebody_else_act_only_if_they_are_typed(run: Run, tmp_path: Path) -> None:
    ran, theirs = tmp_path / "ran", tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "sitecustomize.py").write_text(f"open({str(ran)!r}, 'w')\n")
    variables = {"env_var": [f"PYTHONPATH={theirs}"], "cpu_workers": 2}
    (tmp_path / "theirs.yaml").write_text(yaml.safe_dump(variables))
    flags = ("--env.num-envs", "8", "--agent.max-iterations", "1", "--config", "theirs.yaml")
    result = run("train", TASK, *flags)
    assert (result.returncode, "of env_var does not count" in result.stderr) == (2, True)
    assert not (tmp_path / "logs").exists()
    assert not ran.exists()
    result = run("train", TASK, *flags, f"--env-var=PYTHONPATH={theirs}")
    assert result.returncode == 0, result.stderr
    assert ran.exists()


def test_hosts_of_somebody_else_are_not_reached(run: Run, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    (tmp_path / "ssh").write_text(f"Host *\n  ProxyCommand touch {ran}\n")
    hosts = {"hosts": ["localhost", "elsewhere"], "ssh_config": str(tmp_path / "ssh")}
    (tmp_path / "theirs.yaml").write_text(yaml.safe_dump(hosts))
    command = ("train", TASK, "--config", "theirs.yaml", "--dry-run")
    result = run(*command)
    assert result.returncode == 2
    assert f"'--hosts=[localhost,elsewhere]' '--ssh-config={tmp_path}/ssh'" in result.stderr
    assert run(*command, "--hosts", "localhost", "--ssh-config", "None").returncode == 0
    assert not ran.exists()


def test_ones_own_run_goes_on_without_a_flag(run: Run, tmp_path: Path) -> None:
    flags = ("--env.num-envs", "8", "--agent.max-iterations", "1", "--torchrunx-log-dir", "there")
    first = run("train", TASK, *flags)
    assert first.returncode == 0, first.stderr
    again = run("train", TASK, "--resume", "latest", "--agent.max-iterations", "2")
    assert again.returncode == 0, again.stderr
    data = yaml.safe_load((only_run(tmp_path) / "config.yaml").read_text())
    assert data["torchrunx_log_dir"] == "there"
