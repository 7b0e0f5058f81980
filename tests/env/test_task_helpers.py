"""What tasks compose: delays, histories, timers, levels, and metrics of their own."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from mjfleet.env import Delay, Env, EnvShard, History, Timer, next_levels
from mjfleet.env.env_state import EnvState
from mjfleet.errors import UserError
from mjfleet.sim import make_simulation

from .test_env import BUNDLED, build_task

FOUND = BUNDLED["cartpole-balance"]
CartpoleEnv: Any = FOUND.load(FOUND.task.env_class)


@pytest.fixture
def env() -> Env[Any]:
    return build_task("cartpole-balance", "native", "cpu", num_envs=64)


def everywhere(env: Env[Any], value: float) -> torch.Tensor:
    return torch.full((env.num_envs, 1), value)


def masked(env: Env[Any], *worlds: int) -> torch.Tensor:
    mask = torch.zeros(env.num_envs, dtype=torch.bool)
    mask[list(worlds)] = True
    return mask


def test_a_delay_hands_on_what_came_before(env: Env[Any]) -> None:
    delay = Delay(env, 1, 0, 3)
    delay.reset(masked(env, *range(64)))
    late = delay.steps.clone()
    assert set(late.tolist()) == {0, 1, 2, 3}
    for now in range(1, 8):
        expected = (now - late).clamp(min=0).unsqueeze(1)
        assert torch.equal(delay(everywhere(env, now)), expected.float())
    delay.reset(masked(env, 5))
    assert torch.equal(delay.steps[:5], late[:5])
    assert delay(everywhere(env, 8.0))[5] in (0.0, 8.0)


def test_a_history_begins_with_the_first_observation(env: Env[Any]) -> None:
    history = History(env, 1, 3)
    assert history(everywhere(env, 1.0))[0].tolist() == [1.0, 1.0, 1.0]
    assert history(everywhere(env, 2.0))[0].tolist() == [1.0, 1.0, 2.0]
    history.reset(masked(env, 3))
    seen = history(everywhere(env, 3.0))
    assert seen[0].tolist() == [1.0, 2.0, 3.0]
    assert seen[3].tolist() == [3.0, 3.0, 3.0]


def test_a_timer_goes_off_after_times_in_its_range(env: Env[Any]) -> None:
    timer = Timer(env, 0.5, 1.0)
    timer.reset(masked(env, *range(64)))
    when = torch.stack([timer() for _ in range(200)])
    for world in range(64):
        gaps = when[:, world].nonzero().squeeze(1).diff() * env.step_dt
        assert ((gaps >= 0.5 - 1e-6) & (gaps <= 1.0 + env.step_dt)).all()
        assert len(gaps) >= 8
    assert len({tuple(column) for column in when.T.tolist()}) > 32


@pytest.mark.parametrize(
    ("step_dt", "seconds", "steps"),
    [
        (0.02, 1.0, 50),
        (0.02, 0.3, 15),
        (0.05, 20.0, 400),
        (0.002, 30.0, 15_000),
        (0.005, 60.0, 12_000),
        (1 / 60, 10.0, 600),
        (0.02, 0.01, 1),
    ],
)
def test_a_timer_fires_on_time_again_and_again(step_dt: float, seconds: float, steps: int) -> None:
    env = build_task("cartpole-balance", "native", "cpu", num_envs=2)
    env.step_dt = step_dt
    timer = Timer(env, seconds, seconds)
    timer.reset(masked(env, 0, 1))
    fired = [step for step in range(1, 3 * steps + 1) if timer()[0]]
    assert fired == [steps, 2 * steps, 3 * steps]


def test_levels_move_and_who_has_mastered_all_starts_anywhere(env: Env[Any]) -> None:
    levels = torch.arange(64) % 4
    up, down = torch.arange(64) % 2 == 0, torch.arange(64) % 2 == 1
    moved = next_levels(env, levels, up, down, count=4)
    assert moved[:4].tolist() == [1, 0, 3, 2]
    mastered = next_levels(env, torch.full((64,), 3), torch.ones(64) > 0, torch.zeros(64) > 0, 4)
    assert set(mastered.tolist()) == {0, 1, 2, 3}
    lowest = next_levels(env, torch.zeros(64).long(), torch.zeros(64) > 0, torch.ones(64) > 0, 4)
    assert not lowest.any()


def test_a_checkpoint_keeps_what_parts_hold(env: Env[Any]) -> None:
    other = build_task("cartpole-balance", "native", "cpu", num_envs=64)
    for each in (env, other):
        setattr(each, "seen", History(each, 1, 3))  # noqa: B010
        setattr(each, "late", Delay(each, 1, 0, 3))  # noqa: B010
    state, others = EnvState(env), EnvState(other)
    for name in ("seen", "late"):
        part = getattr(env, name)
        part.reset(masked(env, *range(0, 64, 2)))
        part(everywhere(env, 7.0))
    others.restore(state.changed())
    for name in ("seen", "late"):
        mine, theirs = (getattr(each, name).state_dict() for each in (env, other))
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[key], theirs[key]) for key in mine)


class Measured(BUNDLED["cartpole-balance"].load("env:CartpoleEnv")):
    def metrics(self) -> dict[str, torch.Tensor | tuple[torch.Tensor, torch.Tensor]]:
        number = self.episode_length_buf.float()
        return {"length": number, "ratio": (number, torch.tensor([1.0, 3.0]))}


def test_metrics_are_means_over_steps_or_quotients_of_sums() -> None:
    cfg = replace(BUNDLED["cartpole-balance"].task.env, num_envs=2)
    env = Measured(cfg, make_simulation("native", Measured.make_model(cfg), 2), 1)
    for _ in range(3):
        env.step(torch.zeros(2, 1))
    assert env.take_statistics().metrics == {"length": (12.0, 6.0), "ratio": (12.0, 12.0)}
    assert env.take_statistics().metrics == {"length": (0.0, 0.0), "ratio": (0.0, 0.0)}


class LevelsEnv(CartpoleEnv):
    """Starts as fast as its level says, which is renewed after the start has been written."""

    model_file = str(FOUND.folder / "cartpole.xml")

    def setup(self) -> None:
        self.max_episode_length = 3
        self.level = torch.zeros(self.num_envs, dtype=torch.long)

    def reset_worlds(self, mask: torch.Tensor) -> None:
        super().reset_worlds(mask)
        start = self.level.unsqueeze(1).to(self.sim.qvel) + torch.zeros(2)
        self.sim.qvel[:] = torch.where(mask.unsqueeze(1), start, self.sim.qvel)
        self.level = next_levels(self, self.level, mask, ~mask, 5)


class SomeLevelsEnv(LevelsEnv):
    def levels_to_evaluate(self, count: int) -> range:
        return range(1, count, 2)


def judged(kind: type, first: int, count: int, total: int) -> Any:
    cfg = replace(FOUND.task.env, num_envs=count)
    sim = make_simulation("native", kind.make_model(cfg), count)
    return kind(cfg, sim, 7, EnvShard(first, count, total))


@pytest.mark.parametrize(
    ("kind", "total", "levels"),
    [
        (LevelsEnv, 10, [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]),
        (LevelsEnv, 5, [0, 1, 2, 3, 4]),
        (LevelsEnv, 2, [1, 3]),
        (LevelsEnv, 1, [2]),
        (SomeLevelsEnv, 4, [1, 1, 3, 3]),
    ],
)
def test_an_evaluation_stays_on_all_levels_that_the_task_names(
    kind: type, total: int, levels: list[int]
) -> None:
    env = judged(kind, 0, total, total)
    assert env.sim.qvel[:, 0].tolist() == levels
    for _ in range(2 * env.max_episode_length):
        env.step(torch.zeros(total, 1))
        assert env.level.tolist() == levels
    shards = [judged(kind, first, 1, total) for first in range(total)]
    assert [shard.level.item() for shard in shards] == levels


def test_a_level_that_there_is_not_is_refused() -> None:
    class WrongEnv(LevelsEnv):
        def levels_to_evaluate(self, count: int) -> list[int]:
            return [0, count]

    with pytest.raises(UserError, match=r"levels_to_evaluate\(5\) returns \[0, 5\]"):
        judged(WrongEnv, 0, 8, 8)
