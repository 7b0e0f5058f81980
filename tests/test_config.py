"""Configuration: what is refused, and that it survives being written and read."""

import inspect
import json
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mjfleet.config import (
    ActorConfig,
    AgentConfig,
    DistributionConfig,
    EnvConfig,
    LaunchConfig,
    ObsGroups,
    PPOConfig,
    RndConfig,
    SymmetryConfig,
    TrainConfig,
    WandbConfig,
    from_dict,
    to_dict,
)
from mjfleet.config.field_kinds import leaves
from mjfleet.config.flags import field_texts
from mjfleet.config.train_config import field_kinds
from mjfleet.errors import UserError
from mjfleet.legged.config import CommandConfig, VelocityConfig, WeightsConfig
from mjfleet.registry import discover
from mjfleet.runs.config_yaml import read_config, write_config

from .conftest import drawn, write_task

NUMBER: Any = 0.7  # In the place of a range.
PLAIN: Any = {"torque": 0.0}  # In the place of a configuration.
AGENT = discover({}).tasks["go1-velocity-flat"].task.agent
RNN = ActorConfig(class_name="RNNModel")
STUDENT = PPOConfig(name="distillation", gradient_length=11)


def mirrored(**use: bool) -> PPOConfig:
    return PPOConfig(symmetry_cfg=SymmetryConfig(data_augmentation_func="env:f", **use))


def rollouts(num_envs: int, **agent: Any) -> None:
    TrainConfig(env=EnvConfig(num_envs=num_envs), agent=AgentConfig(**agent)).check_rollouts()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: EnvConfig(num_envs=0), ["--env.num-envs is 0", "at least 1"]),
        (lambda: EnvConfig(njmax=0), ["--env.njmax", "or None"]),
        (lambda: WeightsConfig(torque=float("nan")), ["--env.weights.torque is nan"]),
        (lambda: CommandConfig(forward=NUMBER), ["--env.command.forward is 0.7", "two finite"]),
        (lambda: VelocityConfig(weights=PLAIN), ["--env.weights", "WeightsConfig"]),
        (lambda: PPOConfig(gamma=1.5), ["--agent.algorithm.gamma is 1.5", "between 0 and 1"]),
        (lambda: AgentConfig(run_name=NUMBER), ["--agent.run-name is 0.7", "folder name"]),
        (lambda: ActorConfig(class_name=PLAIN), ["--agent.actor.class-name", "`module:Class`"]),
        (lambda: PPOConfig(name=NUMBER), ["--agent.algorithm.name is 0.7", "ppo or grpo"]),
        (lambda: DistributionConfig(std_range=(1.0, float("inf"))), ["std-range", "two finite"]),
        # Beyond its limit it would learn nothing.
        (lambda: DistributionConfig(std_range=(0.1, 0.5)), ["init-std is 1.0", "0.1 to 0.5"]),
        (lambda: AgentConfig(run_name="a/b"), ["--agent.run-name is 'a/b'", "folder name"]),
        (lambda: AgentConfig(logger=("wandb", "none")), ["--agent.logger is", "`none` alone"]),
        (lambda: WandbConfig(project="a/b"), ["--agent.wandb.project is 'a/b'", "none of /"]),
        (lambda: WandbConfig(tags=("a", "")), ["--agent.wandb.tags", "1 to 64 letters"]),
        (lambda: ObsGroups(critic=()), ["--agent.obs-groups.critic"]),
        (lambda: TrainConfig(gpu_ids=[0] * 10**6), ["--gpu-ids", "1 to 1024 GPU indices"]),
        (lambda: rollouts(1, num_steps_per_env=2), ["num-mini-batches is 4", "2 samples"]),
        (lambda: rollouts(3, actor=RNN), ["num-mini-batches is 4", "3 environments"]),
        (lambda: rollouts(1, num_steps_per_env=1), ["one sample"]),
        (lambda: rollouts(8, num_steps_per_env=2, algorithm=STUDENT), ["length is 11", "10 steps"]),
        (
            lambda: AgentConfig(actor=RNN, algorithm=mirrored(use_mirror_loss=True)),
            ["symmetry", "MLPModel"],
        ),
        (
            lambda: mirrored(use_equivariant_networks=True, use_data_augmentation=True),
            ["use-equivariant-networks", "without use-data-augmentation"],
        ),
    ],
)
def test_bad_values_are_refused_when_the_configuration_is_made(make: Any, words: list[str]) -> None:
    with pytest.raises(UserError) as error:
        make()
    for word in words:
        assert word in str(error.value)


def test_a_student_has_neither_advantages_nor_minibatches() -> None:
    learning = replace(STUDENT, gradient_length=5)
    rollouts(1, num_steps_per_env=1, actor=RNN, algorithm=learning)


def test_ppo_has_every_parameter_of_rsl_rl() -> None:
    from rsl_rl.algorithms import PPO

    ours = {f.name for f in fields(PPOConfig)}
    theirs = set(inspect.signature(PPO.__init__).parameters)
    built_by_the_runner = {"self", "actor", "critic", "storage", "device", "multi_gpu_cfg"}
    # Gradients of all workers travel as one buffer, so that there are no buckets to size.
    how_it_is_computed = {"name", "gradient_length", "loss_type", "backprop", "learning_threads"}
    how_it_is_computed |= {"group_size", "share_cnn_encoders"}
    assert theirs - built_by_the_runner - {"grad_reduce_bucket_mb"} == ours - how_it_is_computed


def may_be_any_text(hint: Any) -> bool:
    return hint is str or (
        get_origin(hint) is not Literal and any(map(may_be_any_text, get_args(hint)))
    )


def test_a_field_that_may_name_a_file_is_not_set_by_any_file() -> None:
    kinds = field_kinds()
    texts = {n.name for n in leaves(TrainConfig) if may_be_any_text(n.hint) and not n.kind}
    groups = {f"agent.obs_groups.{name}" for name in ("actor", "critic", "rnd_state")}
    # A function of the task's folder, and names of observations.
    function = "agent.algorithm.symmetry_cfg.data_augmentation_func"
    assert texts == {function, "agent.teacher.obs_groups", *groups}
    # This is the only setting of the launch that decides what is learned.
    assert [f.name for f in fields(LaunchConfig) if not kinds[f.name]] == ["total_envs"]


def test_every_field_is_documented_where_it_is_declared() -> None:
    for found in discover({}).tasks.values():
        for leaf in leaves(TrainConfig, found.defaults()):
            assert field_texts(leaf.owner).get(leaf.name.rpartition(".")[2]), leaf


class Gait(Enum):
    """As a task declares it."""

    WALK = 1
    TROT = "trot"


class Surface(str, Enum):  # noqa: UP042  As tasks for Python 3.10 write it.
    """The same, whose members are text."""

    ICE = "slippery ice"


@dataclass(frozen=True, kw_only=True)
class Push:
    """A configuration inside of a task's own."""

    force: float = 1.0
    axes: tuple[Literal["x", "y"], ...] = ("x",)


@dataclass(frozen=True, kw_only=True)
class ManyKindsConfig(EnvConfig):
    """A task's configuration with a field of each kind."""

    weights: dict[str, float] = field(default_factory=lambda: {"upright": 1.0})
    ranges: dict[int, tuple[float, float]] = field(default_factory=dict)
    pushes: dict[Gait, Push] = field(default_factory=dict)
    push: Push | None = field(default_factory=Push)
    table: Path = Path("table.csv")
    log: Path | None = None
    tables: tuple[Path, ...] = ()
    gait: Gait = Gait.TROT
    gaits: list[Gait] = field(default_factory=list)
    surface: Surface | str | None = None
    mode: Literal["auto", 1, True] = "auto"
    anything: dict[str, Any] = field(default_factory=dict)


NUMBERS = st.floats(allow_nan=False)
WORDS = st.text(st.characters(codec="utf-8", exclude_categories=("C",)), max_size=5)
PATHS = WORDS.map(Path)
GAITS = st.sampled_from(Gait)
PUSHES = st.builds(Push, force=NUMBERS, axes=st.sampled_from([(), ("x",), ("x", "y")]))


@drawn(30)
@given(
    st.builds(
        ManyKindsConfig,
        weights=st.dictionaries(WORDS, NUMBERS),
        ranges=st.dictionaries(st.integers(), st.tuples(NUMBERS, NUMBERS)),
        pushes=st.dictionaries(GAITS, PUSHES),
        push=st.none() | PUSHES,
        table=PATHS,
        log=st.none() | PATHS,
        tables=st.lists(PATHS).map(tuple),
        gait=GAITS,
        gaits=st.lists(GAITS),
        surface=st.none() | st.sampled_from(Surface) | st.just("sand"),
        mode=st.sampled_from(["auto", 1, True]),
        anything=st.dictionaries(WORDS, st.none() | st.booleans() | st.lists(NUMBERS)),
    )
)
def test_fields_of_any_kind_survive_a_file_and_a_message(
    tmp_path_factory: pytest.TempPathFactory, env: ManyKindsConfig
) -> None:
    config, default = TrainConfig(env=env, agent=AGENT), TrainConfig(env=ManyKindsConfig())
    for found in (
        from_dict(config, to_dict(config)),
        from_dict(default, to_dict(config)),
        from_dict(default, json.loads(json.dumps(to_dict(config)))),
    ):
        assert repr(found) == repr(config)  # 1 == True.
    file = tmp_path_factory.mktemp("run") / "config.yaml"
    write_config(file, "walk", config)
    assert repr(from_dict(default, read_config(str(file)))) == repr(config)


@dataclass(frozen=True, kw_only=True)
class OddConfig(EnvConfig):
    """A task's configuration with a field that no file can hold."""

    odd: Any = None


class BareConfig(EnvConfig):
    """What a task's author may forget: the decorator."""

    decimation: int = 4


@dataclass(frozen=True, kw_only=True)
class UntypedConfig(EnvConfig):
    """What a task's author may forget: the type."""

    decimation = 4


def test_values_that_would_not_count_are_refused() -> None:
    with pytest.raises(UserError, match="BareConfig needs @dataclass"):
        BareConfig()
    with pytest.raises(UserError, match=r"UntypedConfig\.decimation needs a type"):
        UntypedConfig()


LATE = """
from __future__ import annotations

from dataclasses import dataclass

from mjfleet.config import EnvConfig, Task
from mjfleet.config.validation import Positive


@dataclass(frozen=True, kw_only=True)
class LateConfig(EnvConfig):
    width: Positive = 1.0


TASKS = {"late": Task(summary="Late.", env=LateConfig(), env_class="env:LateEnv")}
"""


def test_rules_hold_where_annotations_are_texts(tmp_path: Path) -> None:
    write_task(tmp_path, "late", LATE)
    env = discover({}, str(tmp_path)).find("late").task.env
    with pytest.raises(UserError, match=r"--env\.width is -1\.0; it must be greater than 0"):
        from_dict(env, {"width": -1})


@pytest.mark.parametrize("value", [{1, 2}, object(), [b"x"], {(0, 1): 2.0}, EnvConfig])
def test_a_value_that_no_file_can_hold_is_named(value: Any) -> None:
    with pytest.raises(UserError, match=r"`odd` holds .* a configuration holds numbers, text"):
        to_dict(OddConfig(odd=value))


def test_a_file_may_hold_only_some_values_and_yaml_may_spell_numbers_its_way() -> None:
    data = {"agent": {"algorithm": {"learning_rate": "3e-4", "rnd_cfg": {"weight": 2}}}}
    config = from_dict(TrainConfig(), data)
    assert config.agent.ppo.learning_rate == 3e-4
    assert config.agent.ppo.rnd_cfg == RndConfig(weight=2.0)
    assert config.env == EnvConfig()
    # As earlier versions wrote it.
    assert from_dict(config, {"agent": {"logger": "wandb"}}).agent.logger == ("wandb",)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"env": {"nun_envs": 3}}, ["unknown key `env.nun_envs`", "known here: num_envs"]),
        ({"seed": 3}, ["unknown key `seed`; did you mean `agent.seed`?"]),
        ({"env": {"num-envs": 3}}, ["unknown key `env.num-envs`; did you mean `env.num_envs`?"]),
        ({"env": {"num_envs": True}}, ["`env.num_envs`", "an integer"]),
        ({"env": 3}, ["`env` is 3", "a mapping"]),
        ({"dry_run": 1}, ["`dry_run`", "true or false"]),
        ({"agent": {"actor": {"hidden_dims": [64, "x"]}}}, ["hidden_dims"]),
        ({"gpu_ids": "some"}, ["`gpu_ids` is 'some'", "'all'", "null"]),
        ({"agent": {"algorithm": {"gamma": 3}}}, ["--agent.algorithm.gamma is 3.0"]),
        ({"agent": {"algorithm": {"rnd_cfg": {"weight": "x"}}}}, ["rnd_cfg.weight", "a number"]),
        ({"env": {"ranges": {"x": [0, 1]}}}, ["`env.ranges, key` is 'x'", "an integer"]),
        ({"env": {"gait": "RUN"}}, ["`env.gait` is 'RUN'", "'WALK' or 'TROT'"]),
        ({"env": {"table": 3}}, ["`env.table` is 3", "the name of a file or folder"]),
        ({"env": {"mode": False}}, ["`env.mode` is False", "'auto' or 1 or True"]),
        ({"agent": {"algorithm": {"symmetry_cfg": {}}}}, ["data_augmentation_func` is missing"]),
    ],
)
def test_wrong_data_is_refused_by_its_dotted_name(data: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(UserError) as error:
        from_dict(TrainConfig(env=ManyKindsConfig()), data)
    for word in words:
        assert word in str(error.value)


@drawn(40)
@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["env", "agent"]), inner),
    )
)
def test_any_data_makes_a_configuration_or_a_user_error(value: Any) -> None:
    for key in ("env", "agent", "gpu_ids", "log_root"):
        try:
            from_dict(TrainConfig(), {key: value})
        except UserError:
            continue
