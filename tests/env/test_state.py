"""State is declared: where it is written, what a reset fills, and what is not declared."""

import math
import random
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from mjfleet.env import Delay, Timer
from mjfleet.env.undeclared_changes import changes, look
from mjfleet.errors import UserError
from mjfleet.sim.deferred import read
from mjfleet.tools.check_task.state_checks import WRITERS

from .test_env import BUNDLED, KINDS, CartpoleEnv, build_cartpole, build_task

Method = Callable[[Any], object]


def build(setup: Method, each_step: Method = lambda env: None, **methods: Any) -> Any:
    """Build four cart-poles with a `setup`, something that they do in each step, and methods."""
    methods |= {"setup": setup, "after_physics": each_step}
    return build_cartpole(type("StatefulCartpole", (CartpoleEnv,), methods), 4)


def step(env: Any, *ends: int) -> None:
    """Take a step, with which the episodes of some environments end."""
    env.episode_length_buf[list(ends)] = env.max_episode_length
    env.step(torch.zeros(env.num_envs, 1))


def test_a_reset_fills_keeps_or_draws() -> None:
    rows = 4

    def setup(env: Any) -> None:
        env.add_state("count")
        env.add_state("far", 2, reset=5.0)
        env.add_state("age", dtype=torch.long, reset="keep", start=torch.arange(rows))
        env.add_state("drawn", 3, reset=lambda mask: env.uniform(3, 1.0, 2.0))
        env.add_state("steps", dtype=torch.long, shared=True)

    def each_step(env: Any) -> None:
        env.count += 1
        env.far[:] = 0
        env.age += 1
        env.steps += 1

    env = build(setup, each_step)
    assert env.far.tolist() == [[5.0, 5.0]] * rows
    first = env.drawn.clone()
    assert (first >= 1.0).all()
    step(env)
    step(env, 2)
    assert env.count.tolist() == [2, 2, 0, 2]
    assert env.far.tolist() == [[0, 0], [0, 0], [5, 5], [0, 0]]
    assert env.age.tolist() == [2, 3, 4, 5]
    assert env.steps == 2
    assert torch.equal(env.drawn[[0, 1, 3]], first[[0, 1, 3]])
    assert not torch.equal(env.drawn[2], first[2])


def test_python_types_and_the_sizes_of_a_model_declare_state() -> None:
    def setup(env: Any) -> None:
        env.add_state("force", env.sim.model.actuator_trnid[0, 0] + 1, dtype=float)

    env = build(setup)
    assert (env.force.shape, env.force.dtype) == ((4, 1), torch.float64)
    env.load_state_dict(env.state_dict())


def test_summed_state_becomes_the_value_before_and_what_all_workers_have_added() -> None:
    followed: list[Any] = []

    def setup(env: Any) -> None:
        env.add_state("falls", 2, shared=True, reduce="sum", start=1.0)
        env.add_state("seen", dtype=torch.long, shared=True, reduce="sum")
        env.each_iteration(lambda: followed.append(env.falls.tolist()))

    env = build(setup, lambda env: (env.falls[0].add_(0.5), env.seen.add_(3)))
    step(env)
    step(env)
    (added,) = read(env.deferred_additions())
    assert added == [1.0, 0.0, 6.0]
    env.end_iteration([one + other for one, other in zip(added, (2.0, 4.0, 5.0), strict=True)])
    assert followed == [[4.0, 5.0]]
    assert (env.falls.tolist(), env.seen.item()) == ([4.0, 5.0], 11)
    saved = env.state_dict()
    step(env)
    env.load_state_dict(saved)  # Nothing has been added since.
    assert read(env.deferred_additions()) == [[0.0] * 3]
    assert (env.falls.tolist(), env.seen.item()) == ([4.0, 5.0], 11)


def test_an_episode_ends_before_its_state_is_reset() -> None:
    seen: list[Any] = []

    def end_episode(env: Any, mask: torch.Tensor) -> None:
        seen.append((mask.tolist(), env.count.tolist(), env.episode_length_buf.tolist()))

    def reset_worlds(env: Any, mask: torch.Tensor) -> None:
        seen.append(env.count.tolist())

    own = {"end_episode": end_episode, "reset_worlds": reset_worlds}
    env = build(lambda env: env.add_state("count"), lambda env: env.count.add_(1), **own)
    seen.clear()
    step(env, 1, 3)
    last = env.max_episode_length + 1
    assert seen == [([False, True] * 2, [1] * 4, [1, last] * 2), [1, 0] * 2]


def test_state_is_written_in_place_alone() -> None:
    env = build(lambda env: env.add_state("level", dtype=torch.long))
    level = env.level
    env.level += 3
    env.level[:] = env.level + 1
    assert env.level is level
    for name, value in (("level", level + 1), ("action", torch.zeros(4, 1))):
        with pytest.raises(AttributeError, match=rf"`self.{name}\[...\] = ...`"):
            setattr(env, name, value)
    assert level.tolist() == [4] * 4


@pytest.mark.parametrize(
    ("setup", "message"),
    [
        (lambda env: [env.add_state("a"), env.add_state("a")], "called twice"),
        (lambda env: env.add_state("commands", 3), "has something of this name; choose another"),
        (lambda env: env.add_state("a", 0), "whole numbers above 0"),
        (lambda env: env.add_state("a", 2, start=torch.zeros(3)), r"`start` a number or \(4, 2\)"),
        (
            lambda env: env.add_state("a", 2, reset=lambda mask: mask),
            "`reset` returns \\(4,\\); it",
        ),
        (lambda env: env.add_state("a", reset="kept"), "`reset` a number"),
        (lambda env: env.add_state("a", dtype=np.float32), "`dtype` must be torch's"),
        (lambda env: env.add_state("a", shared=True, reset=lambda mask: mask), "no reset draws"),
        (lambda env: env.add_state("a", reduce="sum"), '`reduce` must be "sum" with `shared=True`'),
        (lambda env: env.add_state("a", reset=math.nan), "self.a is not finite where episodes"),
        (lambda env: [Delay(env, 2, 0, 3)(env.sim.qpos[:, :1])], r"values \(4, 2\), and is given"),
    ],
)
def test_a_wrong_declaration_is_refused(setup: Method, message: str) -> None:
    with pytest.raises(UserError, match=message):
        build(setup)


@pytest.mark.parametrize(
    "declare", [lambda env: env.add_state("late"), lambda env: Timer(env, 1.0, 2.0)]
)
def test_state_is_declared_and_helpers_are_made_in_setup_alone(declare: Method) -> None:
    env = build(lambda env: None, each_step=declare)
    with pytest.raises(UserError, match=r"outside `setup`, where .* Timer and Levels are made"):
        step(env)


def increment(env: Any) -> None:
    env.count = getattr(env, "count", 0) + 1


def swap(env: Any) -> None:
    env.one, env.other = env.other, env.one


UNDECLARED: dict[str, tuple[Method, Method]] = {
    "count": (lambda env: None, increment),
    "one": (lambda env: vars(env).update(one=torch.zeros(1), other=torch.zeros(1)), swap),
    "table": (lambda env: vars(env).update(table=np.zeros(2)), lambda env: env.table.fill(1)),
    "name": (lambda env: vars(env).update(name="a"), lambda env: vars(env).update(name="b")),
    "seen": (lambda env: vars(env).update(seen=deque([1])), lambda env: env.seen.append(2)),
    "held": (lambda env: vars(env).update(held={"a": torch.zeros(2)}),
             lambda env: env.held["a"].add_(1)),
    "dice": (lambda env: vars(env).update(dice=random.Random(1)), lambda env: env.dice.random()),
    "noise": (lambda env: vars(env).update(noise=np.random.default_rng(1)),
              lambda env: env.noise.random()),
    "torch_noise": (lambda env: vars(env).update(torch_noise=torch.Generator()),
                    lambda env: torch.rand(1, generator=env.torch_noise)),
}  # fmt: skip


@pytest.mark.parametrize("name", UNDECLARED)
def test_what_changes_and_is_not_declared_is_named(name: str) -> None:
    env = build(*UNDECLARED[name])
    with torch.inference_mode():
        step(env)
    with pytest.raises(UserError, match=rf"\.{name} changes in a step.*self.add_state\('{name}'"):
        env.check_undeclared()
    env.cache(name, "other")
    env.check_undeclared()


def test_views_of_what_is_known_may_change() -> None:
    def setup(env: Any) -> None:
        env.add_state("level", 2)
        env.views = [env.level[:, 0], env.sim.qpos, env.action]
        env.masses = env.sim.expand("body_mass")
        env.constant = torch.ones(3)

    def each_step(env: Any) -> None:
        env.level += 1
        env.masses += 1

    env = build(setup, each_step)
    step(env)
    env.check_undeclared()


@pytest.mark.parametrize(
    "name", [n if n in KINDS else pytest.param(n, marks=pytest.mark.slow) for n in BUNDLED]
)
def test_bundled_tasks_declare_all_and_rewards_write_nothing(name: str) -> None:
    env = build_task(name, "native", "cpu", num_envs=4)
    with torch.inference_mode():
        for _ in range(5):
            env.step(torch.rand_like(env.action))
        env.check_undeclared()
        memory = [*env._states.buffers(), *env.sim.state().values()]
        before, generator = [one.clone() for one in memory], env.generator.get_state()
        for method in WRITERS[:-1]:  # Without `observe`, which draws noise.
            getattr(env, method)()
    assert all(map(torch.equal, before, memory))
    assert torch.equal(env.generator.get_state(), generator)


def test_an_extra_call_of_observe_can_be_undone() -> None:
    env = build_task("go1-velocity-rough", "native", "cpu", num_envs=4)
    before, first = [one.clone() for one in env._states.buffers()], env.get_observations()
    restore = env.keep()
    seen = env.observe()["actor"]
    assert not all(map(torch.equal, before, env._states.buffers()))
    restore()
    assert all(map(torch.equal, before, env._states.buffers()))
    assert env.get_observations() is first
    assert torch.equal(env.observe()["actor"], seen)


def test_state_of_one_dtype_is_one_tensor_in_a_checkpoint() -> None:
    def setup(env: Any) -> None:
        env.add_state("count")
        env.add_state("kept", 2, 3, reset="keep", start=torch.arange(6.0).view(2, 3))
        env.add_state("passing", 2, persistent=False)
        env.add_state("age", dtype=torch.long, reset=7)

    env, other = build(setup), build(setup)
    env.kept += torch.arange(4.0).view(4, 1, 1)
    env.passing += 1.0
    saved = env.state_dict()
    assert {name: len(rows) for name, rows in saved["states"]["rows"].items()} == {
        "torch.float32": 1 + 1 + 1 + 6 + 2, "torch.int64": 2, "torch.bool": 2,
    }  # fmt: skip
    assert other.load_state_dict(saved) == []
    assert torch.equal(other.kept, env.kept)
    assert other.age.tolist() == [7] * 4
    assert not other.passing.any()
    env.take_over(torch.tensor([1, 1, 3, 3]))
    assert env.kept[:, 0, 0].tolist() == [1.0, 1.0, 3.0, 3.0]


def test_a_column_of_one_number_is_looked_at() -> None:
    with torch.inference_mode():
        low, high = torch.zeros(1, 2).T
        before = look({"low": low, "high": high})
        high += 1.0
        assert changes(before, look({"low": low, "high": high})) == ["high"]
