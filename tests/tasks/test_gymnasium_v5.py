"""Gymnasium's MuJoCo tasks against gymnasium itself, which is asked for one world after another."""

from dataclasses import replace
from typing import Any

import gymnasium
import mujoco
import numpy as np
import pytest
import torch
from gymnasium.envs.registration import load_env_creator

from mjfleet.env import Env
from mjfleet.errors import UserError

from ..env.test_env import BUNDLED, build_task

TASKS = [name for name, found in BUNDLED.items() if found.folder.name == "gymnasium_v5"]
WITHOUT = {"include_cfrc_ext_in_observation": False, "contact_cost_weight": 0.0}
NO_FORCES = {"ant-v5": WITHOUT, "humanoid-v5": WITHOUT}
KINDS = "hopper-v5", "inverted-pendulum-v5"
"""What each commit is tested with; the others are slow."""
NAMES = [name if name in KINDS else pytest.param(name, marks=pytest.mark.slow) for name in TASKS]
STATES = 200
STARTS = 500


def spec_of(name: str) -> Any:
    """Return what Gymnasium registers, of half-cheetah-v5 as HalfCheetah-v5."""
    words = name.removesuffix("-v5").split("-")
    return gymnasium.spec("".join(word.capitalize() for word in words) + "-v5")


def oracle(name: str) -> Any:
    """Build Gymnasium's task so that it reads the new state, and no contact forces."""
    spec = spec_of(name)
    env_class: Any = load_env_creator(spec.entry_point)

    class Oracle(env_class):
        def do_simulation(self, ctrl: np.ndarray, n_frames: int) -> None:
            super().do_simulation(ctrl, n_frames)
            mujoco.mj_step1(self.model, self.data)  # The part of mj_forward that forgets no force.

    env = Oracle(**spec.kwargs, **NO_FORCES.get(name, {}))
    env.reset(seed=1)
    return env


def random_states(env: Env[Any]) -> None:
    """Bring all worlds into states of their own: with contacts, and many that are unhealthy."""
    torch.manual_seed(5)
    for _ in range(12):
        env.step(env.action_limit * (2 * torch.rand_like(env.action) - 1))
    env.sim.qvel[:] += 0.3 * torch.randn(env.sim.qvel.shape)
    env.sim.state()["qacc_warmstart"].zero_()  # As after a reset: PGS does not converge.
    env.sim.forward()


def compare(
    name: str, engine: str, tolerance: float, share: float = 1.0, cone: int | None = None
) -> None:
    """Take two steps from random states; the second begins where the first has ended.

    `share` of the worlds, at least, agrees.
    """
    env, other = build_task(name, engine, "cpu", STATES, cone), oracle(name)
    other.model.opt.cone = env.sim.model.opt.cone
    random_states(env)
    states = [field.double().numpy().copy() for field in (env.sim.qpos, env.sim.qvel)]
    first, second = env.action_limit * (2 * torch.rand(2, *env.action.shape) - 1)
    mine: list[list[np.ndarray]] = []

    def note(_: torch.Tensor) -> None:
        found = (env.observe()["actor"], env.terms.sum(dim=0), env.terminated(), env.sim.qpos)
        mine.append([x.double().numpy().copy() for x in (*found, env.sim.qvel)])

    env.before_reset = note
    alive = ~env.step(first)[2].numpy()
    env.step(second)
    theirs: list[list[Any]] = [[], []]
    for world in range(STATES):
        other.reset()
        other.set_state(states[0][world], states[1][world])
        for step, actions in enumerate((first, second)):
            observation, reward, failed, _, _ = other.step(actions[world].numpy())
            state = other.data.qpos.copy(), other.data.qvel.copy()
            theirs[step].append((observation, reward, failed, *state))
    for step, compared in enumerate((np.ones_like(alive), alive)):
        agree = np.ones(STATES, dtype=bool)
        for ours, rows in zip(mine[step], zip(*theirs[step], strict=True), strict=True):
            wanted = np.stack(rows).astype(float)
            near = np.isclose(ours, wanted, rtol=tolerance, atol=tolerance)
            agree &= near.reshape(STATES, -1).all(axis=1)
        assert agree[compared].mean() >= share, (name, step, agree[compared].mean())
    if name not in ("half-cheetah-v5", "swimmer-v5"):
        assert not mine[0][2].all()
    assert env.max_episode_length == spec_of(name).max_episode_steps
    assert env.step_dt == pytest.approx(other.dt)


@pytest.mark.parametrize("name", NAMES)
def test_native_steps_are_gymnasiums(name: str) -> None:
    compare(name, "native", 1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_warp_steps_are_gymnasiums(name: str, request: pytest.FixtureRequest) -> None:
    if name != "inverted-pendulum-v5" and not request.config.getoption("--all-tasks"):
        pytest.skip("--all-tasks compiles its kernels")
    # Where a steep capsule touches the floor, MuJoCo-Warp turns the pyramid of friction otherwise.
    # A cone is the same however it is turned.
    cone = int(mujoco.mjtCone.mjCONE_ELLIPTIC) if name == "ant-v5" else None
    compare(name, "warp", 1e-3, share=0.99, cone=cone)


@pytest.mark.parametrize("name", NAMES)
def test_episodes_start_as_gymnasiums(name: str) -> None:
    other = oracle(name)
    theirs = np.stack([other.reset()[0] for _ in range(STARTS)])
    env = build_task(name, "native", "cpu", STARTS)
    ours = env.get_observations()["actor"].double().numpy()
    spread = theirs.std(axis=0)
    assert np.abs(ours.mean(axis=0) - theirs.mean(axis=0)).max() <= 0.3 * spread.max() + 1e-6
    assert np.allclose(ours.std(axis=0), spread, rtol=0.2, atol=1e-6)
    edge = 1.2 * (theirs.max(axis=0) - theirs.min(axis=0))
    assert (np.abs(ours - theirs.mean(axis=0)) <= edge + 1e-6).all()
    assert env.action_limit == other.action_space.high[0]


def test_a_range_of_health_that_nothing_is_in_is_refused() -> None:
    usual: Any = BUNDLED["hopper-v5"].task.env
    with pytest.raises(UserError, match="must be two numbers, the lower one first"):
        replace(usual, healthy_angle=(0.2, -0.2))
