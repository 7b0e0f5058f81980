"""What a sweep tries: how it is written, and how it is checked by the task's configuration."""

from dataclasses import replace
from pathlib import Path

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from mjfleet.errors import UserError
from mjfleet.registry import discover
from mjfleet.sweep.arguments import SweepArguments
from mjfleet.sweep.space import Distribution, Space, defaults_in, read_space, with_values
from mjfleet.sweep.study import Study
from mjfleet.sweep.trials import TrialRun

FOUND = discover({}).find("go1-velocity-flat")
CONFIG = FOUND.defaults()


def read(*tried: str) -> Space:
    """Return what is tried."""
    return read_space(tried, CONFIG)[0]


FLOAT, INT, LIST = FloatDistribution, IntDistribution, CategoricalDistribution


@pytest.mark.parametrize(
    ("tried", "wanted"),
    [
        ("agent.algorithm.learning-rate=1e-4..1e-2:log", FLOAT(1e-4, 1e-2, log=True)),
        ("--agent.algorithm.learning_rate=1e-3,1e-4", LIST([1e-3, 1e-4])),
        ("env.weights.slip=-1..0:0.25", FLOAT(-1, 0, step=0.25)),
        ("agent.num-steps-per-env=16..64:16", INT(16, 64, step=16)),
        ("env.num-envs=1e2..1e3:log", INT(100, 1000, log=True)),
        ("agent.actor.activation=elu,tanh", LIST(["elu", "tanh"])),
        ("agent.actor.hidden-dims=[64,64],[128]", LIST(["[64, 64]", "[128]"])),
        ("total-envs=None,512", LIST([None, 512])),
    ],
)
def test_values_have_the_types_of_their_fields(tried: str, wanted: Distribution) -> None:
    assert [*read(tried).values()] == [wanted]


@pytest.mark.parametrize(
    ("tried", "message"),
    [
        ("agent.algorithm.gama=0..1", "gamma"),
        ("agent.algorithm.gamma=0.9..0.5", "low <= high"),
        ("agent.algorithm.gamma=0.9..1.5", "between 0 and 1"),
        ("agent.algorithm.gamma=[1", "a list"),
        ("agent.algorithm.gamma=0..x", "x"),
        ("agent.algorithm.learning-rate=1..inf", "finite"),
        ("agent.algorithm.gamma=0..1:log", "low > 0"),
        ("agent.algorithm.gamma=0..0.5:-1", "step"),
        ("agent.algorithm.gamma=0..0.5:nan", "greater than 0"),
        ("agent.algorithm.gamma=0..0.5:lin", "greater than 0"),
        ("agent.num-steps-per-env=16..64:0.5", "whole numbers"),
        ("env.decimation=1.5..3", "an integer"),
        ("agent.actor.activation=elu,exp", "'exp'"),
        ("agent.actor.hidden-dims=64..128", "no number"),
        ("log-root=a,b", "log_root"),
        ("agent.algorithm.group_size=4,8", "has no effect with --agent.algorithm.name ppo"),
        ("agent.algorithm.gamma=0.1..0.95:0.3", "steps of 0.3 do not lead from 0.1 to 0.95"),
        ("env.num_envs=1..8:3", "steps of 3 do not lead from 1 to 8"),
    ],
)
def test_what_a_field_does_not_allow_is_refused(tried: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        read(tried)
    assert f"--try {tried}" in str(error.value)


def test_defaults_and_grids_are_points_of_the_space() -> None:
    tried = ("agent.algorithm.lam=0.9,0.95,1", "agent.actor.activation=tanh,elu")
    inside = {"agent.algorithm.lam": 0.95, "agent.actor.activation": "elu"}
    assert defaults_in(read(*tried), CONFIG) == inside
    assert with_values(CONFIG, inside) == CONFIG
    assert not defaults_in(read("agent.algorithm.lam=0.5..0.9"), CONFIG)


def test_a_trial_is_evaluated_sixteen_times_by_any_number_of_workers() -> None:
    steps = CONFIG.env.num_envs * CONFIG.agent.num_steps_per_env
    config = replace(CONFIG, total_steps=320 * steps)
    wanted = SweepArguments(try_=("agent.algorithm.lam=0.9,0.95",))
    studies = [Study(wanted, FOUND, config, workers) for workers in (1, 2)]
    assert [study.config.eval_interval for study in studies] == [20, 10]


def test_a_grid_has_each_point_once_also_on_two_machines(tmp_path: Path) -> None:
    tried = ("agent.algorithm.lam=0.9,0.95,1", "agent.actor.activation=tanh,elu")
    machines = [Study(SweepArguments(try_=tried, sampler="grid"), FOUND, CONFIG) for _ in range(2)]
    points = []
    for i, study in enumerate(machines):
        study.open(f"sqlite:///{tmp_path}/study.db", str(i), is_new=True)
    while trial := (machine := machines[len(points) % 2]).begin_trial():
        points.append(tuple(trial.params.values()))
        machine.record.tell(trial, 1.0)
    assert len(points) == len({*points}) == 6


def test_a_trial_leaves_out_what_has_no_effect_beside_its_other_values() -> None:
    for schedule, number in (("fixed", 1), ("adaptive", 2)):
        typed = (f"agent.algorithm.schedule={schedule}", "agent.algorithm.desired-kl=0.02")
        trial = optuna.create_study().ask({**read(*typed)})
        assert len(TrialRun(trial, CONFIG).flags) == number
