"""The bundled cart-pole against the published task."""

import pytest
import torch

from .test_env import build_task


@pytest.mark.parametrize("name", ["cartpole-balance", "cartpole-swingup"])
def test_episodes_have_a_thousand_steps_of_a_twentieth_second(name: str) -> None:
    env = build_task(name, "native", "cpu", 1)
    assert env.max_episode_length == 1000
    assert env.step_dt == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("name", "center", "spread"),
    [("cartpole-balance", 0.0, 0.034), ("cartpole-swingup", 3.14, 0.06)],
)
def test_start_distributions(name: str, center: float, spread: float) -> None:
    env = build_task(name, "native", "cpu", 4096)
    angle = env.sim.qpos[:, 1]
    assert (angle - center).abs().max() <= spread
    assert angle.std() > 0.005
    assert env.sim.qvel.std() == pytest.approx(0.01, rel=0.1)


# (cart, angle, control, pole speed) and the reward, computed by hand from the published terms:
# (1 + cos a) / 2 * (1 + 0.1^((x/2)^2)) / 2 * (4 + max(0, 1 - u^2)) / 5 * (1 + 0.1^((w/5)^2)) / 2
@pytest.mark.parametrize(
    ("state", "reward"),
    [
        ((0.0, 0.0, 0.0, 0.0), 1.0),
        ((0.0, torch.pi, 0.0, 0.0), 0.0),
        ((2.0, 0.0, 0.0, 0.0), 0.55),
        ((0.0, 0.0, 1.0, 0.0), 0.8),
        ((0.0, 0.0, 0.0, 5.0), 0.55),
        ((0.0, torch.pi / 2, 0.5, 0.0), 0.5 * 0.95),
    ],
)
def test_reward_is_the_published_product(state: tuple[float, ...], reward: float) -> None:
    env = build_task("cartpole-balance", "native", "cpu", 1)
    cart, angle, control, speed = state
    env.sim.qpos[:] = torch.tensor([[cart, angle]])
    env.sim.qvel[:] = torch.tensor([[0.0, speed]])
    env.sim.ctrl[:] = control
    (term,) = env.compute(env.rewards()).values()
    assert term.tolist() == pytest.approx([reward], abs=1e-6)


def test_actions_beyond_the_range_push_no_harder() -> None:
    env = build_task("cartpole-balance", "native", "cpu", 2)
    env.apply(torch.tensor([[1.0], [7.0]]))
    assert env.sim.ctrl.flatten().tolist() == [1.0, 1.0]
