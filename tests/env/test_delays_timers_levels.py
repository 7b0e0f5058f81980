"""What tasks compose: delays, histories, timers, levels, and metrics of their own."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from mjfleet.env import Delay, Env, EnvShard, History, Levels, Timer, evaluation_levels
from mjfleet.errors import UserError

from .test_env import CartpoleEnv, build_cartpole


def with_part(make: Callable[[Any], Any], num_envs: int = 64, step_dt: float | None = None) -> Any:
    """Build an environment whose `setup` makes a helper, `part`."""

    class HelpedEnv(CartpoleEnv):
        def setup(self) -> None:
            self.step_dt = step_dt or self.step_dt
            self.part = make(self)

    return build_cartpole(HelpedEnv, num_envs)


def everywhere(env: Env[Any], value: float) -> torch.Tensor:
    return torch.full((env.num_envs, 1), value)


def end_episodes(env: Any, *envs: int) -> None:
    """Have the next step end the episodes of some environments."""
    env.episode_length_buf[list(envs)] = env.max_episode_length
    env.step(torch.zeros(env.num_envs, 1))


@pytest.mark.parametrize(
    "make",
    [
        lambda env: Delay(env, 1, 2, 1),
        lambda env: Delay(env, 1, -1, 1),
        lambda env: Delay(env, 1, *(0, 1.5)),  # pyright: ignore[reportArgumentType]
        lambda env: Timer(env, 2.0, 1.0),
        lambda env: Timer(env, -1.0, 1.0),
        lambda env: Timer(env, *("1", 1.0)),  # pyright: ignore[reportArgumentType]
        lambda env: Levels(env, 0),
        lambda env: Levels(env, *(2.5,)),  # pyright: ignore[reportArgumentType]
        lambda env: Levels(env, 3, 3),
    ],
)
def test_ranges_that_are_none_are_refused_in_setup(make: Callable[[Any], Any]) -> None:
    with pytest.raises(UserError, match=r"HelpedEnv: the numbers of .*\(.*\) must be"):
        with_part(make)


def test_a_delay_hands_on_what_came_before_and_resets_itself() -> None:
    env = with_part(lambda env: Delay(env, 1, 0, 3))
    delay, late = env.part, env.part.steps.clone()
    assert set(late.tolist()) == {0, 1, 2, 3}
    for now in range(1, 8):
        expected = (now - late).clamp(min=0).unsqueeze(1)
        assert torch.equal(delay(everywhere(env, now)), expected.float())
    end_episodes(env, *range(5, 64))
    assert torch.equal(delay.steps[:5], late[:5])
    assert set(delay(everywhere(env, 8.0))[5:].flatten().tolist()) == {0.0, 8.0}
    assert delay(everywhere(env, 8.0))[0] == (8.0 if late[0] < 2 else 9.0 - late[0])


def test_a_delay_of_observations_begins_with_the_first_one() -> None:
    env = with_part(lambda env: Delay(env, 1, 2, 2, repeat_first=True), 4)
    seen = [env.part(everywhere(env, now))[0].item() for now in (5.0, 6.0, 7.0, 8.0)]
    assert seen == [5.0, 5.0, 5.0, 6.0]
    end_episodes(env, 3)
    assert env.part(everywhere(env, 9.0)).flatten().tolist() == [7.0, 7.0, 7.0, 9.0]
    assert env.part(everywhere(env, 10.0)).flatten().tolist() == [8.0, 8.0, 8.0, 9.0]


def test_a_history_begins_with_the_first_observation() -> None:
    env = with_part(lambda env: History(env, 1, 3))
    history = env.part
    assert history(everywhere(env, 1.0))[0].tolist() == [1.0, 1.0, 1.0]
    assert history(everywhere(env, 2.0))[0].tolist() == [1.0, 1.0, 2.0]
    end_episodes(env, 3)
    seen = history(everywhere(env, 3.0))
    assert seen[0].tolist() == [1.0, 2.0, 3.0]
    assert seen[3].tolist() == [3.0, 3.0, 3.0]


def fired(env: Any, steps: int) -> torch.Tensor:
    """Return where the timer `part` is due after each of some steps, `(steps, num_envs)`."""
    due = []
    for _ in range(steps):
        env.step(torch.zeros(env.num_envs, 1))
        due.append(env.part.due.clone())
    return torch.stack(due)


def test_a_timer_fires_after_times_in_its_range() -> None:
    env = with_part(lambda env: Timer(env, 0.5, 1.0))
    when = fired(env, 200)
    for world in range(64):
        gaps = when[:, world].nonzero().squeeze(1).diff() * env.step_dt
        assert ((gaps >= 0.5 - 1e-6) & (gaps <= 1.0 + env.step_dt)).all()
        assert len(gaps) >= 8
    assert len({tuple(column) for column in when.T.tolist()}) > 32


@pytest.mark.parametrize(
    ("step_dt", "seconds", "steps"),
    [(0.02, 0.3, 15), (1 / 60, 10.0, 600), (0.02, 0.01, 1)],
)
def test_a_timer_fires_on_time_again_and_again(step_dt: float, seconds: float, steps: int) -> None:
    env = with_part(lambda env: Timer(env, seconds, seconds), 2, step_dt)
    env.max_episode_length = 10**6
    assert fired(env, 3 * steps)[:, 0].nonzero().flatten().tolist() == [
        n * steps - 1 for n in (1, 2, 3)
    ]


def test_a_timer_begins_anew_with_an_episode() -> None:
    env = with_part(lambda env: Timer(env, 0.5, 0.5), 2)
    period = round(0.5 / env.step_dt)
    fired(env, period - 3)
    end_episodes(env, 0)
    when = fired(env, period)
    assert when[:, 0].nonzero().flatten().tolist() == [period - 1]
    assert when[:, 1].nonzero().flatten().tolist() == [1]


def test_who_observes_the_end_of_an_episode_sees_timers_after_its_last_step() -> None:
    env = with_part(lambda env: Timer(env, 0.5, 0.5), 2)
    seen: list[float] = []
    env.before_reset = lambda _: seen.append(env.part.left[0].item())
    begun = env.part.left[0].item()
    env.step(torch.zeros(2, 1))
    end_episodes(env, 0)
    assert seen == [begun - 1, begun - 2]


def test_levels_move_and_who_has_mastered_all_starts_anywhere() -> None:
    env = with_part(lambda env: Levels(env, 4, torch.arange(64) % 4))
    levels, even = env.part, torch.arange(64) % 2 == 0
    levels.move(even, ~even)
    assert levels.now[:4].tolist() == [1, 0, 3, 2]
    levels.now.fill_(3)
    levels.move(torch.ones(64) > 0, torch.zeros(64) > 0)
    assert set(levels.now.tolist()) == {0, 1, 2, 3}
    levels.now.zero_()
    levels.move(torch.zeros(64) > 0, torch.ones(64) > 0)
    assert not levels.now.any()
    with pytest.raises(
        UserError, match=r"Levels was made for values \(64,\), and is given \(64, 1"
    ):
        levels.move(even.unsqueeze(1), ~even)


def test_a_checkpoint_keeps_what_helpers_hold() -> None:
    def make(env: Any) -> Any:
        seen = History(env, 1, 3), Delay(env, 1, 0, 3), Delay(env, 1, 1, 1, repeat_first=True)
        return *seen, Timer(env, 1.0, 2.0), Timer(env, 3.0, 4.0)

    env, other = with_part(make), with_part(make)
    for part in env.part[:3]:
        part(everywhere(env, 7.0))
    env.step(torch.ones(64, 1))
    assert other.load_state_dict(env.state_dict()) == []
    for mine, theirs in zip(env.part, other.part, strict=True):
        tensors = [name for name, value in vars(mine).items() if isinstance(value, torch.Tensor)]
        assert tensors
        assert all(torch.equal(getattr(mine, name), getattr(theirs, name)) for name in tensors)


class Measured(CartpoleEnv):
    def metrics(self) -> dict[str, torch.Tensor | tuple[torch.Tensor, torch.Tensor]]:
        number = self.episode_length_buf.float()
        return {"length": number, "ratio": (number, torch.tensor([1.0, 3.0]))}


def test_metrics_are_means_over_steps_or_quotients_of_sums() -> None:
    env = build_cartpole(Measured, 2)
    for _ in range(3):
        env.step(torch.zeros(2, 1))
    found, after = env.take_statistics(), env.take_statistics()
    assert (found["task/length"], found["task/ratio"]) == ((12.0, 6.0), (12.0, 12.0))
    assert (after["task/length"], after["task/ratio"]) == ((0.0, 0.0), (0.0, 0.0))


class LevelsEnv(CartpoleEnv):
    """Starts as fast as its level says."""

    def setup(self) -> None:
        self.max_episode_length = 3
        self.levels = Levels(self, 5)

    def end_episode(self, mask: torch.Tensor) -> None:
        self.levels.move(mask, ~mask)

    def reset_worlds(self, mask: torch.Tensor) -> None:
        super().reset_worlds(mask)
        start = self.levels.now.unsqueeze(1).to(self.sim.qvel) + torch.zeros(2)
        self.sim.qvel[:] = torch.where(mask.unsqueeze(1), start, self.sim.qvel)


class SomeLevelsEnv(LevelsEnv):
    def levels_to_evaluate(self, count: int) -> range:
        return range(1, count, 2)


def judged(kind: type, first: int, count: int, total: int) -> Any:
    return build_cartpole(kind, count, EnvShard(first, count, total))


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
        assert env.levels.now.tolist() == levels
    shards = [judged(kind, first, 1, total) for first in range(total)]
    assert [shard.levels.now.item() for shard in shards] == levels


def test_a_level_that_there_is_not_is_refused() -> None:
    class WrongEnv(LevelsEnv):
        def levels_to_evaluate(self, count: int) -> list[int]:
            return [0, count]

    with pytest.raises(UserError, match=r"levels_to_evaluate\(5\) returns \[0, 5\]"):
        judged(WrongEnv, 0, 8, 8)
    with pytest.raises(UserError, match=r"called where self\.is_evaluation is false"):
        evaluation_levels(with_part(lambda env: None), 5)
