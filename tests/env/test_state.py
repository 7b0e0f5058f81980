"""State is declared: where it is written, what a reset fills, and what is not declared."""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from mjfleet.errors import UserError
from mjfleet.sim import make_simulation

from .test_env import BUNDLED, build_task

FOUND = BUNDLED["cartpole-balance"]
CartpoleEnv: Any = FOUND.load(FOUND.task.env_class)
Method = Callable[[Any], object]


def build(setup: Method, each_step: Method = lambda env: None, num_envs: int = 4) -> Any:
    """Build an environment with a `setup`, and something that it does in each step."""

    class StatefulCartpole(CartpoleEnv):
        model_file = str(FOUND.folder / "cartpole.xml")

        def setup(self) -> None:
            setup(self)

        def after_physics(self) -> None:
            each_step(self)

    cfg = replace(FOUND.task.env, num_envs=num_envs)
    sim = make_simulation("native", StatefulCartpole.make_model(cfg), num_envs)
    return StatefulCartpole(cfg, sim, 1)


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


def test_an_episode_ends_before_its_state_is_reset() -> None:
    seen: list[Any] = []

    class EndingEnv(CartpoleEnv):
        model_file = str(FOUND.folder / "cartpole.xml")

        def setup(self) -> None:
            self.count = self.add_state("count")

        def after_physics(self) -> None:
            self.count += 1

        def end_episode(self, mask: torch.Tensor) -> None:
            seen.append((mask.tolist(), self.count.tolist(), self.episode_length_buf.tolist()))

        def reset_worlds(self, mask: torch.Tensor) -> None:
            super().reset_worlds(mask)
            seen.append(self.count.tolist())

    cfg = replace(FOUND.task.env, num_envs=2)
    env = EndingEnv(cfg, make_simulation("native", EndingEnv.make_model(cfg), 2), 1)
    seen.clear()
    step(env, 1)
    last = env.max_episode_length + 1
    assert seen == [([False, True], [1, 1], [1, last]), [1, 0]]


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
        (lambda env: env.add_state("action", 1), "called twice"),
        (lambda env: env.add_state("a", 0), "whole numbers above 0"),
        (lambda env: env.add_state("a", 2, start=torch.zeros(3)), "`start` must be"),
        (lambda env: env.add_state("a", 2, reset=lambda mask: mask), "its `reset` returns"),
    ],
)
def test_a_wrong_declaration_is_refused(setup: Method, message: str) -> None:
    with pytest.raises(UserError, match=message):
        build(setup)


def test_state_is_declared_in_setup_alone() -> None:
    env = build(lambda env: None)
    with pytest.raises(UserError, match="outside `setup`"):
        env.add_state("late")


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


@pytest.mark.parametrize("name", ["cartpole-balance", "go1-velocity-rough", "panda-reach"])
def test_bundled_tasks_declare_all_and_rewards_write_nothing(name: str) -> None:
    env = build_task(name, "native", "cpu", num_envs=4)
    with torch.inference_mode():
        for _ in range(5):
            env.step(torch.rand_like(env.action))
        env.check_undeclared()
        before = env.state_dict()
        for method in (env.rewards, env.terminated, env.metrics):
            method()
        after = env.state_dict()
    for key, buffer in before["states"]["buffers"].items():
        assert torch.equal(buffer, after["states"]["buffers"][key]), key
