"""Short names of flags, values as other programs write them, and the help of `train`."""

import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from mjfleet.cli.completion import candidates
from mjfleet.cli.help import COMMON
from mjfleet.cli.train import configure
from mjfleet.config import (
    AgentConfig,
    EnvConfig,
    LaunchConfig,
    PPOConfig,
    SACConfig,
    TrainConfig,
    from_dict,
)
from mjfleet.config.flags import (
    field_texts,
    flags_of,
    parse_flags,
    parse_known,
    typed_fields,
    without_fields,
)
from mjfleet.config.train_config import field_kinds
from mjfleet.config.unused_fields import NEEDS, refuse_unused
from mjfleet.errors import UserError

from ..conftest import REPOSITORY, Output, Refusal, write_task

TASK = "cartpole-balance"


def parsed(*flags: str) -> TrainConfig:
    return parse_flags(TrainConfig, flags, "train", TrainConfig())


SHORT = ("--num-envs", "16"), ("--seed", "5"), ("--max_iterations", "7"), ("--run-name", "x")


@pytest.mark.parametrize("form", ["{} {}", "{}={}"])
def test_the_four_most_common_numbers_have_short_names(form: str) -> None:
    config = parsed(*" ".join(form.format(*pair) for pair in SHORT).split())
    agent = config.agent
    values = config.env.num_envs, agent.seed, agent.max_iterations, agent.run_name
    assert values == (16, 5, 7, "x")


TWICE = (
    ("--num-envs 32", "--env.num-envs 64"),
    ("--num-envs=32", "--num-envs 16"),
    ("--agent.max_iterations 5", "--max-iterations=6"),
    ("--agent.tf32", "--agent.no-tf32"),
    ("--agent.tf32 False", "--agent.tf32=true"),
    ("--hosts a b", "--hosts a"),
    ("--agent.actor.hidden-dims 64 32", "--agent.actor.hidden-dims '[64]'"),
    ("--env.angle 1", "--env.angle 2"),  # A task's own.
)
SAME = (
    ("--num-envs 32", "--env.num-envs=32"),
    ("--agent.algorithm.learning-rate 1e-3", "--agent.algorithm.learning_rate=0.001"),
    ("--agent.no-tf32", "--agent.no_tf32"),
    ("--agent.no-tf32", "--agent.tf32 False"),
    ("--agent.actor.hidden-dims 64 32", "--agent.actor.hidden-dims '[64, 32]'"),
)


@pytest.mark.parametrize(("one", "two"), TWICE)
def test_two_values_for_a_field_are_refused_if_they_differ(
    one: str, two: str, refusal: Refusal
) -> None:
    words = shlex.split(f"{one} {two}")
    asked = f"error: {one} and {two} set one field to different values: give one of them.\n"
    for command in (("train", TASK), ("mjfleet", "sweep", TASK, "--try", "x=1,2")):
        assert refusal(*command, *words) == asked
    # These refuse some of the flags at all.
    for command in (("tune", TASK), ("submit", "slurm", "--print", "--", "train", TASK)):
        assert re.search(f"{re.escape(asked)}|: leave (it )?out", refusal(*command, *words))


@pytest.mark.parametrize(
    "command",
    [
        "play cartpole-balance --actions zero --num-envs 1 --num-envs 2",
        "mjfleet submit slurm --nodes 1 --nodes=2 -- train cartpole-balance",
        "mjfleet sweep cartpole-balance --try a=1,2 --try b=1,2",
        "mjfleet runs --log-root a --log-root b",
        "mjfleet plot --columns a --columns b",
        "mjfleet export --format onnx --format torchscript",
        "mjfleet doctor --gpu-ids 0 --gpu-ids all",
        "mjfleet new-task name --tasks-dir a --tasks-dir b",
    ],
)
def test_every_command_refuses_a_flag_with_two_values(command: str, refusal: Refusal) -> None:
    assert "set one field to different values: give one" in refusal(*command.split())


@pytest.mark.parametrize(("one", "two"), SAME)
def test_the_same_value_may_be_given_twice(one: str, two: str) -> None:
    assert parsed(*shlex.split(f"{one} {two}")) == parsed(*shlex.split(one))


def test_a_flag_that_switches_off_counts_as_typed() -> None:
    assert typed_fields(["x", "--agent.no-tf32", "--seed", "1"]) == {"agent.tf32", "agent.seed"}
    words = ["x", "--seed", "1", "--hosts", "a", "b", "--fork"]
    assert without_fields(words, ["agent.seed", "hosts"]) == ["x", "--fork"]


def test_a_short_name_counts_wherever_its_flag_does(tmp_path: Path) -> None:
    file = tmp_path / "base.yaml"
    file.write_text(f"task: {TASK}\nenv: {{num_envs: 32}}\nagent: {{seed: 3}}\n")
    config = configure(["--config", str(file), "--num-envs", "8", "--seed=4"]).config
    assert (config.env.num_envs, config.agent.seed) == (8, 4)
    for total, flag in (("--total-envs", "--num-envs"), ("--total-steps", "--max_iterations")):
        with pytest.raises(UserError, match=f"{total}.*: give one"):
            configure([TASK, total, "4096", flag, "8", "--dry-run"])


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--agent.algorithm.group-size 8", "name ppo; it needs grpo"),
        ("--agent.algorithm.loss-type=mse", "name ppo; it needs distillation"),
        ("--agent.algorithm.name grpo --agent.algorithm.lam 0.9", "name grpo; it needs ppo"),
        ("--agent.algorithm.name grpo --agent.critic.activation elu", "name grpo; it needs ppo"),
        ("--agent.algorithm.name grpo --agent.algorithm.share-cnn-encoders", "it needs ppo"),
        ("--agent.algorithm.name distillation --agent.algorithm.share-cnn-encoders", "needs ppo"),
        ("--agent.algorithm.name distillation --agent.algorithm.backprop auto", "ppo or grpo"),
        ("--agent.algorithm.name distillation --agent.algorithm.learning-threads 1", "or grpo"),
        ("--agent.algorithm.schedule fixed --agent.algorithm.desired-kl 0.02", "adaptive"),
        ("--agent.actor.rnn-type gru", "class-name MLPModel; it needs RNNModel"),
        ("--agent.obs-groups.rnd-state critic", "rnd-cfg None; it needs a value"),
        ("--agent.wandb.notes x", "logger tensorboard; it needs wandb"),
        ("--agent.wandb.no-checkpoints", "logger tensorboard; it needs wandb"),
        ("--config part.yaml --agent.wandb.tags a", "logger tensorboard; it needs wandb"),
        ("--config part.yaml --agent.wandb.project p", "logger tensorboard; it needs wandb"),
    ],
)
def test_a_flag_without_effect_is_refused_and_says_what_it_needs(
    flags: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("part.yaml").write_text("agent: {algorithm: {group_size: 4}, wandb: {notes: x}}\n")
    with pytest.raises(UserError, match=rf"^--agent\S+ has no effect with --agent\..*{words}"):
        configure([TASK, *flags.split(), "--dry-run"])


def test_defaults_and_files_may_have_what_has_no_effect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("part.yaml").write_text("agent: {algorithm: {group_size: 4}, wandb: {notes: x}}\n")
    config = configure([TASK, "--config", "part.yaml", "--dry-run"]).config
    assert config.agent.ppo.group_size == 4
    own = "--agent.algorithm.name", "learner:Own", "--agent.algorithm.group-size", "2"
    assert parsed(*own).agent.ppo.group_size == 2
    refuse_unused(parsed(*own).agent, typed_fields(own))


def test_convolutions_are_the_settings_of_networks_that_sac_takes() -> None:
    cnn = {"class_name": "CNNModel", "cnn_cfg": {"output_channels": [4]}}
    agent = from_dict(AgentConfig(algorithm=SACConfig()), {"actor": cnn, "critic": cnn})
    for network in ("actor", "critic"):
        refuse_unused(agent, [f"agent.{network}.cnn_cfg.stride"])
        with pytest.raises(UserError, match=f"--agent.{network}.activation has no effect"):
            refuse_unused(agent, [f"agent.{network}.activation"])


@pytest.mark.parametrize("kind", [PPOConfig, SACConfig])
def test_convolutions_of_a_critic_have_no_effect_where_it_takes_the_actors(kind: Any) -> None:
    cnn = {"class_name": "CNNModel", "cnn_cfg": {"output_channels": [4]}}
    data = {"actor": cnn, "critic": cnn}
    shared = from_dict(AgentConfig(algorithm=kind(share_cnn_encoders=True)), data)
    refuse_unused(shared, ["agent.actor.cnn_cfg.stride"])
    with pytest.raises(UserError, match="share-cnn-encoders True; it needs False"):
        refuse_unused(shared, ["agent.critic.cnn_cfg.stride"])


def test_every_field_that_may_have_no_effect_exists() -> None:
    for start, decider, _ in NEEDS:
        names = [name for name in field_kinds() if re.match(f"agent.{start}", name)]
        assert names, start
        assert f"agent.{decider}" in {*field_kinds(), "agent.algorithm.rnd_cfg"}


def test_help_and_completion_name_the_short_names(printed: Output) -> None:
    for asked in ("--help", "--help-all"):
        shown = printed("train", TASK, asked)
        assert re.search(r" --max-iterations \S+, --agent\.max-iterations ", shown)
    assert "--seed" in candidates(["train", TASK, "--see"])


def test_help_is_shown_whatever_the_file_has_that_no_file_decides(
    tmp_path: Path, printed: Output
) -> None:
    (tmp_path / "file.yaml").write_text("hosts: [a]")
    words = (TASK, "--config", str(tmp_path / "file.yaml"), "--help")
    for algorithm in ((), ("--agent.algorithm.name", "grpo")):
        assert "usage: train" in printed("train", *words, *algorithm)


def test_help_shows_fields_without_a_text_or_a_flag(tmp_path: Path, printed: Output) -> None:
    source = '''
from dataclasses import dataclass, field
from mjfleet.config import EnvConfig, Task

@dataclass(frozen=True, kw_only=True)
class Part:
    mass: float = 1.0

@dataclass(frozen=True, kw_only=True)
class OwnConfig(EnvConfig):
    silent: float = 0.25
    f"""No text, as it is computed: {1}."""
    parts: dict[str, Part] = field(default_factory=dict)

TASKS = {"own": Task(summary="Own.", env=OwnConfig(), env_class="env:OwnEnv")}
'''
    write_task(tmp_path, "own", source)
    for asked in ("--help", "--help-all"):
        assert "--env.silent FLOAT" in printed("train", "own", "--tasks-dir", str(tmp_path), asked)


def test_help_explains_what_a_task_adds_to_the_algorithm_and_rules_hold_for_it(
    tmp_path: Path, printed: Output
) -> None:
    source = '''
from dataclasses import dataclass

from mjfleet.config import AgentConfig, EnvConfig, PPOConfig, Task
from mjfleet.config.validation import NotNegative


@dataclass(frozen=True, kw_only=True)
class OwnConfig(PPOConfig):
    kl_coef: NotNegative = 0.5
    """Weight of the penalty
    on the KL divergence."""


AGENT = AgentConfig(algorithm=OwnConfig(name="learner:Own"))
TASKS = {"own": Task(summary="Own.", env=EnvConfig(), env_class="env:OwnEnv", agent=AGENT)}
'''
    write_task(tmp_path, "own", source)
    words = ["own", "--tasks-dir", str(tmp_path)]
    explained, others = printed("train", *words, "--help").split("--help-all", 1)
    assert "Weight of the penalty on the KL divergence." in " ".join(explained.split())
    assert "kl-coef" not in others
    flag = "--agent.algorithm.kl-coef"
    with pytest.raises(UserError, match=f"{flag} is -1.0; it must be at least 0"):
        configure([*words, flag, "-1"])
    with pytest.raises(
        UserError, match=f"{flag} has no effect with .*name ppo; it needs the `module:Class`"
    ):
        configure([*words, flag, "2", "--agent.algorithm.name", "ppo"])
    assert configure([*words, flag, "2"]).config.agent.algorithm == replace(
        configure(words).config.agent.algorithm, kl_coef=2.0
    )


@pytest.mark.parametrize(
    "flag", ["--agent.algorithm.name", "--agent.critic.class-name", "--agent.runner-hook"]
)
def test_a_dry_run_refuses_a_class_that_is_not_there(
    flag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tasks").mkdir()
    for name, words in (
        (
            "nope:Class",
            r"`nope`, .*/cartpole, .*tasks, cannot be imported:\nModuleNotFoundError: No",
        ),
        ("pathlib:Path", "`pathlib:Path` must be a subclass of"),
    ):
        with pytest.raises(UserError, match=words):
            configure([TASK, flag, name, "--dry-run"])


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (
            "train T --learning-rate 3",
            r"no flag --learning-rate\. Similar: --agent\S*learning-rate\.",
        ),
        ("train T --resme 3", r"no flag --resme\. Similar: --resume, .*docs/migrate\.md says what"),
        ("train T --gpu-ids 0 --plain 1", r"--plain may be followed by True or False, not by `1`"),
        ("train T --agent.tf32=off", r"--agent\.tf32 .* True or False, not by `off`"),
        ("train T 1 --gpu-ids 0", r"`1` is one word too many"),
        ("train T --agent.algorithm.rnd_cfg.weight=2", r"one if agent\.algorithm\.rnd_cfg is set"),
        ("mjfleet runs --foo", r"no flag --foo\. Flags: --sort, .*--yes\. `mjfleet runs --help`"),
        ("mjfleet check-task T two", r"`two` is one word too many\. Flags: --tasks-dir\."),
        ("play T --actions zero --episods 3", r"no flag --episods\. Similar: --episodes,"),
        ("mjfleet bench throughput --foo", r"train \S+: there is no flag --foo"),
    ],
)
def test_an_unknown_flag_is_answered_by_those_that_there_are(
    command: str, words: str, refusal: Refusal
) -> None:
    assert re.search(words, refusal(*command.replace("T", TASK).split()))


def test_a_switch_may_have_its_value_behind_it() -> None:
    for flags, is_on in {
        ("--agent.tf32", "False"): False, ("--agent.tf32=true",): True,
        ("--agent.tf32", "True"): True, ("--agent.tf32=False",): False,
        ("--agent.tf32",): True, ("--agent.no-tf32",): False,
    }.items():  # fmt: skip
        assert parsed(*flags).agent.tf32 is is_on
        assert "agent.tf32" in typed_fields(flags)
    start, others = parse_known(LaunchConfig, ["--agent.tf32", "False", "--deterministic", "True"])
    assert (start.deterministic, others) == (True, ["--agent.tf32", "False"])
    assert parsed("--agent.run-name", "True").agent.run_name == "True"


def test_words_without_a_flag_are_not_offered_as_flags() -> None:
    offered = candidates(["mjfleet", "export", "--"])
    assert ("--run" in offered, "--format" in offered) == (False, True)


def test_lists_are_words_and_none_is_a_value() -> None:
    config = parsed(
        "--gpu-ids", "0", "1", "--agent.actor.hidden_dims", "64", "32", "--agent.run-name=a,b",
        "--agent.wandb.tags", "two words", "small", "--agent.no-tf32", "--eval-interval=None",
        "--agent.actor.distribution.std-range", "0.1", "1e-1",
        "--agent.actor.distribution.init-std=.1",
        "--agent.critic.hidden-dims=[128, 64]",
    )  # fmt: skip
    agent = config.agent
    assert (config.gpu_ids, config.eval_interval, agent.tf32) == ([0, 1], None, False)
    assert (agent.actor.hidden_dims, agent.critic.hidden_dims) == ((64, 32), (128, 64))
    assert agent.wandb.tags == ("two words", "small")
    assert (agent.run_name, agent.actor.distribution.std_range) == ("a,b", (0.1, 0.1))
    assert parsed("--gpu-ids=None").gpu_ids is None


def test_a_class_without_source_has_the_texts_of_its_bases() -> None:
    gone = type("GoneConfig", (EnvConfig,), {"__module__": "gone"})
    assert field_texts(gone) == field_texts(EnvConfig)


def test_a_value_that_fits_no_type_is_refused() -> None:
    for flags in (["--gpu-ids", "zero", "one"], ["--agent.actor.hidden-dims", "a"]):
        with pytest.raises(SystemExit) as ended:
            parsed(*flags)
        assert ended.value.code == 2


def test_the_tasks_own_flags_come_first_then_common_ones_then_values(
    printed: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    short = printed("train", TASK, "--help")
    assert len(COMMON) == 20
    explained, others = short.split("--help-all", 1)
    places = [explained.index(f" {flags_of(name)[0]}") for name in COMMON]
    assert places == sorted(places)
    assert explained.index("Whether the pole starts hanging") < places[0]
    assert "swing-up" not in others
    assert "--agent.actor.hidden-dims 64 64" in others
    assert len(short.splitlines()) < 120
    assert all(len(line) <= 80 for line in short.splitlines())
    whole = printed("train", TASK, "--help-all")
    assert "Discount factor" in whole
    assert "Discount factor" not in short


def test_what_an_agent_of_a_wandb_sweep_types_trains() -> None:
    """Fill in the command of the documented sweep as W&B's agent does."""
    from wandb.sdk.launch.sweeps.utils import create_sweep_command, create_sweep_command_args

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
        for word in given.get(part[2:-1], [part])
    ]
    assert words[:5] == ["/usr/bin/env", "python", "-m", "mjfleet.cli.train", TASK]
    config = parsed(*words[5:])
    assert config.agent.logger == ("wandb",)
    assert config.agent.ppo.learning_rate == 0.0003
    assert config.agent.actor.hidden_dims == (64, 32)
    assert config.agent.ppo.normalize_advantage_per_mini_batch
    assert (config.agent.seed, config.agent.tf32) == (7, False)
    assert config.agent.ppo.num_mini_batches == 2
