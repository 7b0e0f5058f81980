"""Flags as other launchers write them, and the help that shows the common ones first."""

import re

import pytest
import yaml
from wandb.sdk.launch.sweeps.utils import create_sweep_command, create_sweep_command_args

from mjfleet.cli.flags import parse_flags
from mjfleet.cli.help import COMMON
from mjfleet.cli.train import train
from mjfleet.config import TrainConfig, to_dict
from mjfleet.errors import UserError
from mjfleet.tools.play.command import play

from ..conftest import REPOSITORY

TASK = "cartpole-balance"


def parsed(*flags: str) -> TrainConfig:
    return parse_flags(TrainConfig, flags, "train", TrainConfig())


@pytest.mark.parametrize(
    ("flag", "ours"),
    [
        ("--num_envs", "--env.num-envs"),
        ("--num-envs=64", "--total-envs"),
        ("--max_iterations", "--agent.max-iterations"),
        ("--seed", "--agent.seed"),
        ("--load-run", "--resume"),
        ("--checkpoint", "--resume"),
        ("--agent.load-checkpoint", "--resume"),
        ("--device", "--gpu-ids"),
        ("--distributed", "--gpu-ids"),
        ("--headless", "never opens a window"),
        ("--n-envs", "--env.num-envs"),
        ("--max-utilization", "--env.num-envs auto"),
        ("--amp", "--agent.algorithm.use-mixed-precision"),
        ("--nnodes=2", "--hosts"),
        ("--master_addr", "--hosts"),
        ("--task", "train <task>"),
        ("--video", "--video-interval"),
        ("--lr", "--agent.algorithm.learning-rate"),
        ("--total-timesteps", "--total-steps"),
        ("--wandb", "--agent.logger wandb"),
        ("env.decimation=2", "--env.decimation 2"),
    ],
)
def test_a_flag_of_another_launcher_is_answered_by_ours(flag: str, ours: str) -> None:
    with pytest.raises(UserError) as answer:
        train([TASK, "--agent.run-name", "x", flag, "3", "--dry-run"])
    assert flag.partition("=")[0] in str(answer.value)
    assert ours in str(answer.value)


@pytest.mark.parametrize(
    ("flag", "ours"), [("--num_envs", "--env.num-envs"), ("--agent", "--actions")]
)
def test_play_answers_with_flags_of_its_own(flag: str, ours: str) -> None:
    with pytest.raises(UserError, match=f"there is no {flag}: use {ours}") as answer:
        play([TASK, flag, "3"])
    assert "--total-envs" not in str(answer.value)


def test_a_task_that_is_given_as_a_flag_is_named_in_the_answer() -> None:
    for command, typed in ((train, ["--task", TASK]), (play, ["--headless", f"--task={TASK}"])):
        with pytest.raises(UserError, match=f"{command.__name__} {TASK}"):
            command(typed)


@pytest.mark.parametrize("typed", [["0 1"], ["[0, 1]"], ["0,1"], ["[0,", "1]"], ["(0,1)"]])
def test_gpus_are_a_list_however_it_is_written(typed: list[str]) -> None:
    words = typed[0].split() if typed == ["0 1"] else typed
    assert parsed("--gpu-ids", *words).gpu_ids == [0, 1]
    assert parsed(f"--gpu-ids={''.join(words) if len(words) == 1 else '[0,1]'}").gpu_ids == [0, 1]


def test_values_are_read_as_a_sweep_writes_them() -> None:
    as_typed = parsed(
        "--agent.actor.hidden-dims=[64, 32]", "--agent.critic.hidden_dims", "128,64",
        "--agent.logger=['tensorboard', 'wandb']", '--agent.wandb.tags=["two words",small]',
        "--agent.tf32=False", "--deterministic=True", "--agent.wandb.no-checkpoints=true",
        "--agent.run-name=a,b", "--env-var", "PLACES=here,there", "--agent.seed=3",
        "--gpu-ids=None", "--agent.actor.distribution.std-range=[0.1, 1e-1]",
    )  # fmt: skip
    config = to_dict(as_typed)
    agent = config["agent"]
    assert agent["actor"]["hidden_dims"] == [64, 32]
    assert agent["critic"]["hidden_dims"] == [128, 64]
    assert agent["actor"]["distribution"]["std_range"] == [0.1, 0.1]
    assert agent["logger"] == ["tensorboard", "wandb"]
    assert agent["wandb"]["tags"] == ["two words", "small"]
    assert (agent["tf32"], config["deterministic"], agent["wandb"]["checkpoints"]) == (0, 1, 0)
    # Commas and brackets of texts are part of them.
    assert (agent["run_name"], config["env_var"]) == ("a,b", ["PLACES=here,there"])
    assert (agent["seed"], config["gpu_ids"]) == (3, None)


def test_a_value_that_fits_no_type_is_still_refused() -> None:
    with pytest.raises(UserError, match="--gpu-ids zero one"):
        parsed("--gpu-ids=[zero,one]")
    for flags in (["--agent.tf32=maybe"], ["--agent.actor.hidden-dims=[a]"]):
        with pytest.raises(SystemExit) as ended:
            parsed(*flags)
        assert ended.value.code == 2


def test_common_flags_come_first_and_the_others_with_their_values(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        train([TASK, "--help"])
    short = capsys.readouterr().out
    assert len(COMMON) == 20
    explained, others = short.split("--help-all", 1)
    assert [explained.index(f" --{name}") for name in COMMON] == sorted(
        explained.index(f" --{name}") for name in COMMON
    )
    assert "--env.*" in others
    assert "swing-up=False" in others.split()
    assert "hidden-dims=[64,64]" in others
    assert len(short.splitlines()) < 110
    assert all(len(line) <= 80 for line in short.splitlines())
    with pytest.raises(SystemExit):
        train([TASK, "--help-all"])
    whole = capsys.readouterr().out
    assert "Discount factor" in whole
    assert "Discount factor" not in short


@pytest.mark.parametrize("form", ["args", "args_no_equals", "args_no_boolean_flags"])
def test_what_an_agent_of_a_wandb_sweep_types_trains(form: str) -> None:
    """Fill in the command of the documented sweep as W&B's agent does."""
    page = (REPOSITORY / "docs/clusters.md").read_text()
    (text,) = re.findall("^```yaml\n(program: .*?)^```$", page, flags=re.DOTALL | re.MULTILINE)
    sweep = yaml.safe_load(text)
    wanted = {
        "agent.algorithm.learning-rate": 0.0003,
        "agent.actor.hidden-dims": [64, 32],
        "agent.algorithm.normalize-advantage-per-mini-batch": True,
    }
    assert {*wanted} == {*sweep["parameters"]}
    wanted |= {"agent.seed": 7, "agent.no-tf32": True, "agent.algorithm.num_mini_batches": 2}
    chosen = {name: {"value": value} for name, value in wanted.items()}
    given = create_sweep_command_args({"args": chosen})
    given |= {"env": ["/usr/bin/env"], "interpreter": ["python"], "program": [sweep["program"]]}
    words = [
        word
        for part in create_sweep_command(sweep["command"])
        for word in given.get(form if part == "${args}" else part[2:-1], [part])
    ]
    assert words[:5] == ["/usr/bin/env", "python", "-m", "mjfleet.cli.train", TASK]
    config = parsed(*words[5:])
    assert config.agent.logger == ("wandb",)
    assert config.agent.algorithm.learning_rate == 0.0003
    assert config.agent.actor.hidden_dims == (64, 32)
    assert config.agent.algorithm.normalize_advantage_per_mini_batch
    assert (config.agent.seed, config.agent.tf32) == (7, False)
    assert config.agent.algorithm.num_mini_batches == 2
