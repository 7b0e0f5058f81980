"""What tasks compose: delays, histories, timers, levels, and metrics of their own."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from mjfleet.env import Delay, Env, History, Timer, next_levels
from mjfleet.env.env_state import EnvState
from mjfleet.sim import make_simulation

from .test_env import BUNDLED, build_task


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
