"""The tasks of the DeepMind Control Suite against dm_control itself.

dm_control is asked for one world after the other: what follows from a state and an action, and
where episodes begin. `--all-tasks` compares all models on MuJoCo-Warp, which compiles for minutes.
"""

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from inspect import signature
from typing import Any

import mujoco
import numpy as np
import pytest
import torch

from mjfleet.env import Env, EnvShard
from mjfleet.tools.export.robot_metadata import describe

from ..env.test_env import BUNDLED, build_env, build_own, build_task, no_host_synchronisation

TASKS = [name for name, found in BUNDLED.items() if found.folder.name == "dm_control"]
DOMAINS = {name.partition("-")[0]: name for name in reversed(TASKS)}
"""The first task of each."""
KINDS = "cheetah-run", "humanoid-walk", "reacher-hard"
"""What each commit is tested with; the others are slow."""
STATES = 200
STATE = "qpos", "qvel", "qacc_warmstart", "mocap_pos"


@pytest.fixture(scope="module")
def load() -> Any:
    """Return the function that builds a task of dm_control, without rendering."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MUJOCO_GL", "disable")
        from dm_control.mujoco.wrapper.mjbindings import sizes

        # dm_control 1.0.50 lists fields that MuJoCo 4 no longer has, and looks each of them up.
        model = mujoco.MjModel.from_xml_string("<mujoco/>")
        for name, struct in (("mjmodel", model), ("mjdata", mujoco.MjData(model))):
            for field in [f for f in sizes.array_sizes[name] if not hasattr(struct, f)]:
                patch.delitem(sizes.array_sizes[name], field)
        yield lambda name: definition(name)(random=1)


def definition(name: str) -> Callable[..., Any]:
    """Return the function of dm_control that makes a task."""
    domain, _, task = name.partition("-")
    return import_module(f"dm_control.suite.{domain}").SUITE[task]


def random_states(env: Env[Any]) -> None:
    """Bring all worlds into states of their own, with contacts, from slow ones to fast ones."""
    env.reset()
    speeds = torch.linspace(0.0, 10.0, env.num_envs).unsqueeze(1)
    for _ in range(20):
        env.step(2 * torch.rand_like(env.action) - 1)
    env.sim.qvel[:] += speeds * torch.randn(env.sim.qvel.shape)
    env.sim.forward()


def oracle_step(oracle: Any, env: Env[Any], world: int, action: Any) -> list[Any]:
    """Step dm_control's task from a world's state; return observation, reward and new state."""
    physics = oracle.physics
    state = {name: field[world].numpy() for name, field in env.sim.state().items() if name in STATE}
    with physics.reset_context():
        physics.data.qpos[:], physics.data.qvel[:] = state["qpos"], state["qvel"]
        if physics.model.name == "two-link planar reacher":
            physics.named.model.geom_pos["target", ["x", "y"]] = state["mocap_pos"][0, :2]
    physics.data.qacc_warmstart[:] = state["qacc_warmstart"]
    step = oracle.step(action)
    return [observed(step), step.reward, physics.data.qpos.copy(), physics.data.qvel.copy()]


def observed(step: Any) -> np.ndarray:
    """Return all that dm_control's task observes."""
    return np.concatenate([np.ravel(part) for part in step.observation.values()])


def largest_error(env: Env[Any], oracle: Any) -> float:
    """Return by how much one step from random states differs, relative to numbers above 1."""
    torch.manual_seed(5)
    oracle.reset()
    theirs, actions = [np.zeros(1)] * 4, env.action
    for _ in range(9):
        if theirs[1].std() > 0:
            break  # Hoppers earn nothing where all have fallen.
        random_states(env)
        actions = 2 * torch.rand_like(env.action) - 1
        steps = [oracle_step(oracle, env, i, actions[i].numpy()) for i in range(env.num_envs)]
        theirs = [np.stack(column) for column in zip(*steps, strict=True)]
    rewards, dones = env.step(actions)[1:3]
    assert not dones.any()
    assert theirs[1].std() > 0  # Also of rewards that are 0 or 1.
    ours = env.observe()["actor"], rewards, env.sim.qpos, env.sim.qvel
    pairs = [(a.numpy(), b) for a, b in zip(ours, theirs, strict=True)]
    return max(float((abs(a - b) / np.maximum(1.0, abs(b))).max()) for a, b in pairs)


def starts(env: Env[Any]) -> np.ndarray:
    """Return positions, velocities and observations at the start of 1000 episodes."""
    drawn = []
    for _ in range(1000 // env.num_envs):
        env.reset()
        drawn.append(torch.cat((env.sim.qpos, env.sim.qvel, env.observe()["actor"]), dim=1))
    return torch.cat(drawn).numpy()


def check_starts(env: Env[Any], oracle: Any) -> None:
    """Check that dm_control's episodes start from the same distributions."""
    from scipy.stats import ks_2samp

    rows = []
    for _ in range(STATES):
        first, data = oracle.reset(), oracle.physics.data
        rows.append(np.concatenate((data.qpos, data.qvel, observed(first))))
    for ours, theirs in zip(starts(env).T, np.stack(rows).T, strict=True):
        if oracle.physics.model.name != "hopper" or ours.any():  # Touch is 0 before the first step.
            result: Any = ks_2samp(ours, theirs)
            assert result.pvalue > 1e-4


@pytest.mark.parametrize(
    "name", [n if n in KINDS else pytest.param(n, marks=pytest.mark.slow) for n in TASKS]
)
def test_steps_and_starts_are_those_of_dm_control(
    name: str, load: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    env, oracle = build_task(name, "native", "cpu", STATES), load(name)
    assert env.step_dt == pytest.approx(oracle.control_timestep())
    seconds = signature(definition(name)).parameters["time_limit"].default
    assert round(seconds / env.step_dt) == env.max_episode_length == 1000
    if name == DOMAINS[name.partition("-")[0]]:  # The others begin likewise.
        check_starts(env, oracle)
    assert largest_error(env, oracle) < 1e-6

    (group,) = describe(env, ("actor",))["observations"]
    assert [part["name"] for part in group["parts"]] == list(oracle.observation_spec())
    env.episode_length_buf[:] = 998  # An episode has 1000 steps.
    assert not env.step(env.action)[2].any()
    with torch.inference_mode(), no_host_synchronisation(monkeypatch):
        *_, extras = env.step(env.action)
    assert extras["time_outs"].all()


@pytest.mark.parametrize(
    ("name", "angle", "spread"),
    [("cartpole-balance", 0.0, 0.034), ("cartpole-swingup", np.pi, 0.06)],
)
def test_the_cart_pole_is_that_of_dm_control_at_a_fifth_of_its_rate(
    name: str, angle: float, spread: float, load: Callable[[str], Any]
) -> None:
    env, oracle = build_own(name, STATES, decimation=1), load(name)
    assert env.step_dt == pytest.approx(oracle.control_timestep())
    assert (env.sim.qpos[:, 1] - angle).abs().max() <= spread
    assert env.sim.qvel.std() == pytest.approx(0.01, rel=0.1)
    check_starts(env, oracle)
    oracle.physics.model.opt.integrator = env.sim.model.opt.integrator
    assert largest_error(env, oracle) < 1e-6
    env = build_own(name, 2)
    assert (env.step_dt, env.max_episode_length) == (pytest.approx(0.05), 1000)
    env.apply(torch.tensor([[1.0], [7.0]]))  # An action beyond the range pushes no harder.
    assert env.sim.ctrl.flatten().tolist() == [1.0, 1.0]


@pytest.mark.parametrize("name", DOMAINS.values())
def test_warp_steps_as_dm_control_does(
    name: str, load: Callable[[str], Any], request: pytest.FixtureRequest
) -> None:
    is_quick = name.partition("-")[0] in ("pendulum", "acrobot", "reacher")
    if not is_quick and not request.config.getoption("--all-tasks"):
        pytest.skip("compiles kernels for a minute; see --all-tasks")
    # Where a steep capsule touches the floor, MuJoCo-Warp turns the pyramid of friction otherwise.
    # A cone is the same however it is turned.
    cone = int(mujoco.mjtCone.mjCONE_ELLIPTIC) if name.startswith("humanoid") else None
    env, oracle = build_task(name, "warp", "cpu", STATES, cone, njmax=400), load(name)
    oracle.physics.model.opt.cone = env.sim.model.opt.cone
    assert largest_error(env, oracle) < 1e-3


def humanoid(shard: EnvShard | None = None, **fields: Any) -> Env[Any]:
    """Build the humanoid's task with four environments."""
    cfg: Any = replace(BUNDLED["humanoid-stand"].task.env, num_envs=4, **fields)
    return build_env("humanoid-stand", cfg, 1, shard)


def motor_strength(env: Env[Any]) -> np.ndarray:
    """Return by how much torques are larger than the model's after a step, `(num_envs, 21)`."""
    env.step(torch.ones_like(env.action))
    model = env.sim.model
    dofs = model.jnt_dofadr[model.actuator_trnid[:, 0]]
    return env.sim.qfrc_actuator[:, dofs].numpy() / model.actuator_gear[:, 0]


def test_a_humanoid_that_lies_on_the_ground_gets_help_until_it_stands() -> None:
    env: Any = humanoid()
    top = env.levels.now[0].item()

    def end_episode(standing: float, share: float) -> None:
        """End an episode with so much reward for standing per step and share of its steps."""
        env.steps[:] = share * env.max_episode_length
        env.stood[:] = standing * env.steps
        env.episode_length_buf[:] = env.max_episode_length - 1
        env.step(env.action)

    end_episode(0.0, 0.4)  # Too short to count.
    assert (env.levels.now == top).all()
    for expected in (*range(top - 1, -1, -1), 0):
        end_episode(0.0, 1.0)
        assert (env.levels.now == expected).all()

    # Motors are twice as strong, and the head's height earns reward.
    assert motor_strength(env) == pytest.approx(2.0)
    helped = env.step(env.action)[1]
    head = env.sim.xpos[:, env.sim.model.body("head").id, 2]
    env.levels.now[:] = top
    difference = helped - env.rewards()["stand"]
    assert difference.numpy() == pytest.approx(0.3 * (head / 1.4).clamp(max=1.0).numpy(), abs=1e-6)
    env.levels.now[:] = 0
    assert env.metrics()["level"].tolist() == [0.0] * 4

    for expected in range(1, top + 1):
        end_episode(0.2, 1.0)  # Neither good nor bad.
        end_episode(0.4, 1.0)
        assert (env.levels.now == expected).all()
    end_episode(0.4, 1.0)
    assert (env.levels.now == top).all()
    assert motor_strength(env) == pytest.approx(1.0)


def test_humanoids_are_evaluated_without_help() -> None:
    envs = humanoid(EnvShard(0, 4, 4)), humanoid(curriculum=False)
    for _ in range(2):  # The end of an episode, long enough to count.
        for env in envs:
            env.episode_length_buf[:] = env.max_episode_length // 2
        for _ in range(envs[0].max_episode_length // 2):
            rewards = [env.step(torch.ones(4, 21))[1] for env in envs]
            assert torch.equal(*rewards)
        assert all(motor_strength(env) == pytest.approx(1.0) for env in envs)
