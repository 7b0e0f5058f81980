"""What a sweep tries: how it is written, and how it is checked by the task's configuration."""

from pathlib import Path

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from mjfleet.errors import UserError
from mjfleet.registry import discover
from mjfleet.sweep.arguments import SweepArguments
from mjfleet.sweep.definition import define
from mjfleet.sweep.space import (
    Distribution,
    Space,
    defaults_in,
    read_space,
    with_seeds_apart,
    with_values,
)

FOUND = discover({}).find("go1-velocity-flat")
CONFIG = FOUND.defaults()


def read(*words: str, file: Path | None = None) -> Space:
    """Return what is tried."""
    return read_space(words, str(file) if file else None, CONFIG, FOUND.name)[0]


FLOAT, INT, LIST = FloatDistribution, IntDistribution, CategoricalDistribution


@pytest.mark.parametrize(
    ("word", "wanted"),
    [
        ("agent.algorithm.learning-rate=1e-4..1e-2:log", FLOAT(1e-4, 1e-2, log=True)),
        ("--agent.algorithm.learning_rate=1e-3,1e-4", LIST([1e-3, 1e-4])),
        ("env.weights.slip=-1..0:0.25", FLOAT(-1, 0, step=0.25)),
        ("agent.num-steps-per-env=16..64:16", INT(16, 64, step=16)),
        ("env.num-envs=1e2..1e3:log", INT(100, 1000, log=True)),
        ("agent.actor.activation=elu,tanh", LIST(["elu", "tanh"])),
        ("agent.actor.hidden-dims=[64,64],[128]", LIST(["[64, 64]", "[128]"])),
        ("agent.init-at-random-ep-len=true,false", LIST([True, False])),
        ("total-envs=None,512", LIST([None, 512])),
    ],
)
def test_values_have_the_types_of_their_fields(word: str, wanted: Distribution) -> None:
    assert [*read(word).values()] == [wanted]


@pytest.mark.parametrize(
    ("word", "wanted", "warns"),
    [
        ("agent.seed=1..8", INT(1, 7, step=3), False),
        ("agent.seed=1..9:2", INT(1, 9, step=2), True),
        ("agent.seed=1..10:3", INT(1, 10, step=3), False),
        ("agent.seed=0,9,2", LIST([0, 9, 2]), True),
        ("agent.seed=0,9,6", LIST([0, 9, 6]), False),
        ("agent.algorithm.gamma=0.9,0.99", LIST([0.9, 0.99]), False),
    ],
)
def test_seeds_of_trials_are_as_far_apart_as_a_trial_has_workers(
    word: str, wanted: Distribution, warns: bool
) -> None:
    space, warning = with_seeds_apart(read(word), 3)
    assert ([*space.values()], bool(warning)) == ([wanted], warns)
    assert with_seeds_apart(read(word), 1) == (read(word), "")


def test_a_file_is_nested_or_dotted_and_flags_count_more(tmp_path: Path) -> None:
    file = tmp_path / "space.yaml"
    file.write_text(
        "agent: {algorithm: {gamma: [0.9, 0.99], lam: 0.9..1}}\nenv.decimation: '2,4'\n"
    )
    assert read("agent.algorithm.lam=0.95,1", file=file) == {
        "agent.algorithm.gamma": LIST([0.9, 0.99]),
        "agent.algorithm.lam": LIST([0.95, 1.0]),
        "env.decimation": LIST([2, 4]),
    }


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("agent.algorithm.gama=0..1", "agent.algorithm.gamma"),
        ("agent.algorithm.gamma", "a list"),
        ("agent.algorithm.gamma=0.9..0.5", "empty"),
        ("agent.algorithm.gamma=0.9..1.5", "between 0 and 1"),
        ("agent.algorithm.gamma=0.5,-1", "between 0 and 1"),
        ("agent.algorithm.gamma=", "a list"),
        ("agent.algorithm.gamma=[1", "a list"),
        ("agent.algorithm.gamma=0..nan", "empty"),
        ("agent.algorithm.gamma=0..x", "x"),
        ("agent.algorithm.learning-rate=1..inf", "finite"),
        ("agent.algorithm.gamma=0..1:log", "low > 0"),
        ("agent.algorithm.gamma=0..0.5:-1", "step"),
        ("env.decimation=1.5..3", "whole"),
        ("env.decimation=0..3", "at least 1"),
        ("agent.actor.activation=elu,exp", "'exp'"),
        ("agent.actor.activation=a..b", "no number"),
        ("log-root=a,b", "log-root"),
        ("agent.algorithm.gamma=1,{a: 2}", "a number"),
    ],
)
def test_what_a_field_does_not_allow_is_refused(word: str, said: str) -> None:
    with pytest.raises(UserError, match=said) as error:
        read(word)
    assert word.partition("=")[0] in str(error.value)


def test_defaults_and_grids_are_points_of_the_space() -> None:
    words = ("agent.algorithm.lam=0.9,0.95,1", "agent.actor.activation=tanh,elu")
    inside = {"agent.algorithm.lam": 0.95, "agent.actor.activation": "elu"}
    assert defaults_in(read(*words), CONFIG) == inside
    assert with_values(CONFIG, inside) == CONFIG
    assert not defaults_in(read("agent.algorithm.lam=0.5..0.9"), CONFIG)
    grid = define(SweepArguments(try_=words, sampler="grid"), FOUND, CONFIG)
    assert grid.most == 6
    assert len({tuple(grid.given(place).values()) for place in range(6)}) == 6
