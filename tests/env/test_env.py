"""The environment's step: order, episodes, statistics, and that it never waits for the device."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar

import mujoco
import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mjfleet.config import EnvConfig
from mjfleet.env import Env
from mjfleet.errors import UserError
from mjfleet.registry import discover
from mjfleet.sim import make_simulation

from ..helpers.cuda_graph_stub import asks_for_a_value

BUNDLED = discover({}).tasks
OWN = [name for name, found in BUNDLED.items() if not found.task.packages]
"""Those with models of our own; tests/tasks looks at the others."""
KINDS = "cartpole-balance", "go1-velocity-rough", "panda-lift"
"""One of each kind; the others are slow."""
ENGINES = [("native", "cpu"), ("warp", "cpu")]
QUICK = {(KINDS[0], "warp"), *((name, "native") for name in KINDS)}
"""Warp compiles kernels for each model."""


def build_task(
    name: str, engine: Any, device: str, num_envs: int = 8, cone: int | None = None, **room: Any
) -> Env[Any]:
    """Build a bundled task, with another cone of friction or room for constraints where given."""
    found = BUNDLED[name]
    env_class = found.load(found.task.env_class)
    cfg = replace(found.task.env, num_envs=num_envs)
    model = env_class.make_model(cfg)
    model.opt.cone = model.opt.cone if cone is None else cone
    sim = make_simulation(engine, model, num_envs, device=device, **room)
    return env_class(cfg, sim, seed=1, places=(found.folder,))


def build_env(name: str, cfg: EnvConfig, *parts: Any, engine: Any = "native", **more: Any) -> Any:
    """Build a bundled task's environment on the CPU with other numbers and further arguments."""
    env_class = BUNDLED[name].load(BUNDLED[name].task.env_class)
    sim = make_simulation(engine, env_class.make_model(cfg), cfg.num_envs)
    return env_class(cfg, sim, *parts, **more)


def build_own(name: str, num_envs: int, **fields: Any) -> Any:
    """Build a bundled task's environment on MuJoCo's own engine with other numbers."""
    return build_env(name, replace(BUNDLED[name].task.env, num_envs=num_envs, **fields), 1)


CartpoleEnv: Any = BUNDLED["cartpole-balance"].load("env:CartpoleEnv")


def build_cartpole(kind: Any, num_envs: int, *more: Any) -> Any:
    """Build cart-poles of a class that extends CartpoleEnv."""
    cfg = replace(BUNDLED["cartpole-balance"].task.env, num_envs=num_envs)
    return kind(cfg, make_simulation("native", kind.make_model(cfg), num_envs), 1, *more)


class PlainEnv(Env[EnvConfig]):
    """Hands actions to its actuators, and observes positions."""

    def reset_worlds(self, mask: torch.Tensor) -> None:
        pass

    def apply(self, action: torch.Tensor) -> None:
        self.sim.ctrl[:] = action

    def observe(self) -> dict[str, torch.Tensor]:
        return {"actor": self.sim.qpos, "critic": self.sim.qpos}

    def rewards(self) -> dict[str, Any]:
        return {"none": torch.zeros(self.num_envs)}


class HostSynchronisationError(AssertionError):
    """A step would have waited for the device."""


class _RefuseOperators(TorchDispatchMode):
    """Refuses what makes a GPU's host wait: scalars, and shapes that depend on values."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if asks_for_a_value(func, args):
            raise HostSynchronisationError(str(func))
        with self:  # In inference mode, operators that consist of others come whole.
            found = func.decompose(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {})) if found is NotImplemented else found


@contextmanager
def no_host_synchronisation(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Refuse `.item()`, `.cpu()`, `.numpy()`, `.nonzero()`, `if tensor:` and the like."""

    def refuse(name: str) -> Any:
        def refused(self: torch.Tensor, *arguments: Any, **keywords: Any) -> None:
            raise HostSynchronisationError(name)

        return refused

    with monkeypatch.context() as patched, _RefuseOperators():
        for name in ("item", "cpu", "numpy", "tolist", "nonzero", "__bool__", "__array__"):
            patched.setattr(torch.Tensor, name, refuse(name))
        yield


@pytest.mark.parametrize(
    ("name", "engine"),
    [
        pytest.param(name, engine, marks=() if (name, engine) in QUICK else pytest.mark.slow)
        for name in OWN
        for engine, _ in ENGINES
    ],
)
def test_no_bundled_task_waits_for_the_device(
    name: str, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = build_task(name, engine, "cpu")
    env.episode_length_buf[:4] = env.max_episode_length - 1  # So that worlds are reset too.
    actions = torch.zeros(env.num_envs, env.num_actions)
    with torch.inference_mode():
        env.step(actions)  # A graph is captured in the first step.
        env.episode_length_buf[:4] = env.max_episode_length - 1
        with no_host_synchronisation(monkeypatch):
            _, _, dones, _ = env.step(actions)
    assert dones.tolist() == [True] * 4 + [False] * 4


@pytest.mark.gpu
@pytest.mark.parametrize("name", BUNDLED)
def test_no_bundled_task_waits_for_a_gpu(name: str) -> None:
    env = build_task(name, "warp", "cuda:0")
    actions = torch.zeros(env.num_envs, env.num_actions, device="cuda:0")
    env.step(actions)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            env.step(actions)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize(
    "wait",
    [
        lambda t: t.sum().item(),
        lambda t: t.cpu(),
        lambda t: t.numpy(),
        lambda t: bool(t.any()),
        lambda t: float(t.sum()),
        lambda t: torch.where(t > 0),
        lambda t: t.repeat_interleave(torch.tensor([1, 2, 3])),
        lambda t: t[t > 0],  # As any operator that test_cuda_graph_stub has.
    ],
)
def test_the_check_for_waiting_finds_every_kind(wait: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = torch.ones(3)
    for mode in (False, True):
        check = no_host_synchronisation(monkeypatch)
        with torch.inference_mode(mode), check, pytest.raises(HostSynchronisationError):
            wait(tensor)


class ReachEnv(Env[EnvConfig]):
    """An arm that fails in the worlds it is told to; rewards are easy to add up."""

    model_file: ClassVar[str] = "../models/arm.xml"

    def setup(self) -> None:
        self.failing = torch.zeros(self.num_envs, dtype=torch.bool)
        self.at_end = self.failing.clone()
        self.order: list[str] = []

    def reset_worlds(self, mask: torch.Tensor) -> None:
        self.order.append("reset_worlds")
        start = torch.full_like(self.sim.qpos, 0.5)
        self.sim.qpos[:] = torch.where(mask.unsqueeze(1), start, self.sim.qpos)

    def apply(self, action: torch.Tensor) -> None:
        self.order.append("apply")
        self.sim.ctrl[:] = action

    def observe(self) -> dict[str, torch.Tensor]:
        self.order.append("observe")
        return {"actor": self.sim.qpos, "critic": self.sim.sensor("hand")}

    def rewards(self) -> dict[str, torch.Tensor]:
        self.order.append("rewards")
        ones = torch.ones(self.num_envs)
        return {"alive": 2 * ones, "effort": -0.5 * ones}

    def terminated(self) -> torch.Tensor:
        self.order.append("terminated")
        return self.failing

    def truncated(self) -> torch.Tensor:
        self.order.append("truncated")
        return self.at_end


def reach(
    kind: type[ReachEnv] = ReachEnv, episode_steps: int = 5, num_envs: int = 3, **attributes: Any
) -> Any:
    """Build an arm's environment, whose class has further attributes."""
    kind = type("Kind", (kind,), attributes)
    cfg = EnvConfig(num_envs=num_envs, decimation=2, episode_seconds=episode_steps * 2 * 0.004)
    return kind(cfg, make_simulation("native", kind.make_model(cfg), num_envs), seed=7)


class CountingEnv(ReachEnv):
    """Writes state in methods that are called while it is built."""

    def setup(self) -> None:
        super().setup()
        self.counts = self.add_state("counts")
        self.noise = self.add_state("noise", 2, reset="keep")

    def rewards(self) -> dict[str, torch.Tensor]:
        self.counts += 1
        self.sim.qvel[:] = 1.0
        return super().rewards()

    def observe(self) -> dict[str, torch.Tensor]:
        self.noise += self.normal(2)
        return super().observe() | {"noise": self.noise}


def test_building_leaves_what_setup_a_reset_and_an_observation_leave() -> None:
    env = reach(CountingEnv)
    generator = torch.Generator().manual_seed(7 + 2**31)
    assert torch.equal(env.noise, torch.randn(3, 2, generator=generator))
    assert env.counts.sum() == 0
    assert (env.order[0], env.order[-1]) == ("reset_worlds", "observe")
    assert not env.sim.qvel.any()
    assert env.sim.qpos.tolist() == [[0.5, 0.5]] * 3
    env.step(torch.zeros(3, 2))
    assert env.counts.sum() == 3


def test_a_step_keeps_its_order() -> None:
    env = reach()
    env.order.clear()
    env.step(torch.zeros(3, 2))
    assert env.order == ["apply", "terminated", "truncated", "rewards", "reset_worlds", "observe"]
    assert env.sim.time[0] == pytest.approx(2 * 0.004)


def test_time_outs_are_told_apart_from_failures() -> None:
    env = reach(episode_steps=2)
    env.failing[0] = True
    _, _, dones, extras = env.step(torch.zeros(3, 2))
    assert dones.tolist() == [True, False, False]
    assert extras["time_outs"].tolist() == [False, False, False]
    _, _, dones, extras = env.step(torch.zeros(3, 2))
    assert dones.tolist() == [True, True, True]
    assert extras["time_outs"].tolist() == [False, True, True]


def test_which_environments_failed_is_known_until_the_next_step_also_if_a_reset_clears_it() -> None:
    class RememberingEnv(CountingEnv):
        def setup(self) -> None:
            super().setup()
            self.fell = self.add_state("fell", dtype=torch.bool)

        def after_physics(self) -> None:
            self.fell[0] = True

        def terminated(self) -> torch.Tensor:
            return self.fell

    env = reach(RememberingEnv)
    env.step(torch.zeros(3, 2))
    assert not env.fell.any()
    assert env.failed.tolist() == [True, False, False]


def test_an_episode_that_is_truncated_is_a_time_out_unless_it_has_failed() -> None:
    env = reach(episode_steps=9)
    env.failing[0] = True
    env.at_end[:2] = True
    _, _, dones, extras = env.step(torch.zeros(3, 2))
    assert dones.tolist() == [True, True, False]
    assert extras["time_outs"].tolist() == [False, True, False]
    assert env.episode_length_buf.tolist() == [0, 0, 1]
    assert env.at_end.tolist() == [True, True, False]  # It is read alone.
    assert env.take_statistics()["length"] == (2, 2)


def test_a_done_world_observes_the_start_of_its_next_episode() -> None:
    env = reach(episode_steps=100)
    first = moved = env.get_observations()
    for _ in range(5):
        moved, _, _, _ = env.step(torch.ones(3, 2))
    env.failing[1] = True
    observations, _, _, _ = env.step(torch.ones(3, 2))
    assert torch.allclose(observations["actor"][1], first["actor"][1])
    assert torch.allclose(observations["critic"][1], first["critic"][1], atol=1e-6)
    assert not torch.allclose(observations["actor"][0], moved["actor"][1], atol=1e-6)
    assert env.episode_length_buf.tolist() == [6, 0, 6]
    assert env.action[1].tolist() == [0.0, 0.0]
    for name in ("qvel", "ctrl", "time"):  # What `reset_worlds` does not write.
        assert getattr(env.sim, name).view(3, -1).any(dim=1).tolist() == [True, False, True], name


def test_a_step_takes_actions_with_a_gradient_and_refuses_those_of_another_shape() -> None:
    env = reach()
    env.step(torch.ones(3, 2, requires_grad=True) * 2.0)
    assert env.action.tolist() == [[2.0, 2.0]] * 3
    assert not env.action.requires_grad
    wrong: Any
    for wrong, found in (
        (torch.ones(2), r"\(2,\) on cpu"),  # torch would broadcast it.
        (torch.ones(3, 1), r"\(3, 1\) on cpu"),
        (np.ones((3, 2)), "ndarray"),
    ):
        must = r"it must be a tensor \(3, 2\) on cpu"
        with pytest.raises(UserError, match=rf"step\(\): `actions` is {found}; {must}"):
            env.step(wrong)
    assert env.step_count == 1


def test_observations_are_copies_of_the_live_state() -> None:
    env = reach(CountingEnv)  # What it observes is float32 already, or becomes it.
    before = env.get_observations()
    kept = before.clone()
    env.step(torch.ones(3, 2))
    assert (before == kept).all()
    assert {group.dtype for group in before.values()} == {torch.float32}


def test_statistics_are_those_of_the_episodes_that_ended() -> None:
    env = reach(episode_steps=4)
    for step in range(6):
        env.failing[0] = step == 1
        env.step(torch.zeros(3, 2))
    # World 0: a failure after 2 steps and a time-out after 4; worlds 1 and 2: one time-out each.
    assert env.take_statistics() == {
        "return": (14 * 1.5, 4),
        "length": (2 + 4 + 4 + 4, 4),
        "reward/alive": (14 * 2.0, 4),
        "reward/effort": (14 * -0.5, 4),
        "reward": (18 * 1.5, 18),
        "nan_resets": (0, 1),
    }
    assert env.take_statistics()["return"] == (0, 0)


def test_worlds_started_in_mid_episode_count_from_their_second_episode() -> None:
    env = reach(episode_steps=50, num_envs=64)
    env.order.clear()
    env.start_at_random_times()
    assert env.order == ["reset_worlds", "observe"]  # What is remembered is remembered once.
    assert env.episode_length_buf.unique().numel() > 10
    shortened = int((env.episode_length_buf > 0).sum())
    for _ in range(50):
        env.step(torch.zeros(64, 2))
    assert env.take_statistics()["return"][1] == 64 - shortened
    for _ in range(50):
        env.step(torch.zeros(64, 2))
    assert env.take_statistics()["length"] == (64 * 50, 64)


class Misshapen(ReachEnv):
    what: ClassVar[str]

    def count_actions(self) -> Any:
        counts = {"no count": None, "half a count": 1.5, "count of 0": 0, "motors": 1.0}
        return counts.get(self.what, super().count_actions())

    def observe(self) -> Any:
        groups: dict[Any, Any] = super().observe()
        if self.what == "no critic":
            del groups["critic"]
        if self.what == "number for a name":
            groups |= {3: groups["actor"]}
        if self.what == "array":
            groups["actor"] = groups["actor"].numpy()
        return self.sim.qpos if self.what == "tensor" else groups

    def rewards(self) -> Any:
        terms: dict[str, Any] = super().rewards()
        columns = {k: v.unsqueeze(1) for k, v in terms.items()}
        if self.what == "number":
            terms["alive"] = 1.0
        return columns if self.what == "column" else terms

    def metrics(self) -> Any:
        one = torch.ones(self.num_envs)
        return {"three": (one, one, one)} if self.what == "three" else super().metrics()

    def debug_vis(self) -> Any:
        flat = torch.zeros(self.num_envs, 2)
        return {"target": (flat, flat)} if self.what == "flat arrow" else super().debug_vis()

    def reward_weights(self) -> dict[str, Any]:
        return {
            "weight of nothing": {"bonus": 1.0},
            "no weight": {"alive": float("nan")},
            "text weight": {"alive": "1"},
        }.get(self.what, {})

    def terminated(self) -> torch.Tensor:
        return torch.zeros(self.num_envs) if self.what == "float mask" else super().terminated()

    def truncated(self) -> Any:
        wrong = {"long mask": torch.zeros(self.num_envs, dtype=torch.long), "one end": False}
        return wrong.get(self.what, super().truncated())


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("no count", r"count_actions\(\) returns None; it must return a whole"),
        ("half a count", r"count_actions\(\) returns 1\.5; it must return"),
        ("motors", r"count_actions\(\) returns 1\.0; it must return"),
        ("count of 0", r"count_actions\(\) returns 0; it must return"),
        ("no critic", r"observe\(\) has actor; it must have actor and critic"),
        ("column", r"rewards\(\)\['alive'\] is \(2, 1\) on cpu; it must be a tensor \(2,\) on cpu"),
        ("float mask", r"terminated\(\) is torch.float32, not torch.bool"),
        ("long mask", r"truncated\(\) is torch.int64, not torch.bool"),
        ("one end", r"truncated\(\) is bool; it must be a tensor \(2,\) on cpu"),
        ("number", r"rewards\(\)\['alive'\] is float; it must be a tensor \(2,\) on cpu"),
        ("three", r"metrics\(\)\['three'\] is tuple; it must be a tensor"),
        ("array", r"observe\(\)\['actor'\] is ndarray; it must be a tensor"),
        ("tensor", r"observe\(\) must return a dictionary"),
        ("number for a name", r"observe\(\) must return a dictionary of names to tensors"),
        ("flat arrow", r"debug_vis\(\)\['target'\] is \(2, 2\)"),
        ("weight of nothing", r"reward_weights\(\) names bonus; rewards\(\) has alive, effort"),
        ("no weight", r"reward_weights\(\) returns .* finite numbers"),
        ("text weight", r"reward_weights\(\) returns .* finite numbers"),
    ],
)
def test_wrong_shapes_are_refused_before_training(what: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        reach(Misshapen, num_envs=2, what=what)


class Powered(PlainEnv):
    """Takes motors and joints, of which there is not the same number, for each other."""

    def rewards(self) -> dict[str, Any]:
        return {"power": self.sim.actuator_force * self.sim.qvel}


class Misnamed(ReachEnv):
    """Reads a sensor that is not there."""

    def rewards(self) -> dict[str, Any]:
        return {"height": self.sim.sensor("height")[:, 0]}


def test_a_term_of_motors_and_joints_of_different_number_says_which_there_are() -> None:
    model = mujoco.MjModel.from_xml_string("""<mujoco><worldbody><body>
      <joint name="hip"/><geom size="0.1"/><body><joint name="knee"/><joint name="ankle"/>
      <geom size="0.1"/></body></body></worldbody><actuator><motor name="upper" joint="hip"/>
      <motor name="lower" joint="knee"/></actuator></mujoco>""")
    with pytest.raises(RuntimeError, match="size") as raised:
        Powered(EnvConfig(num_envs=4), make_simulation("native", model, 4), 1)
    (note,) = raised.value.__notes__
    assert "motors (upper, lower) with 2 controls" in note
    assert "joints (hip, knee, ankle) with 3 speeds" in note
    with pytest.raises(ValueError, match="no sensor 'height'") as other:
        reach(Misnamed, num_envs=2)  # Which has as many motors as joints.
    assert not hasattr(other.value, "__notes__")


class Weighted(ReachEnv):
    """Counts calls of a term, in a list that it does not own."""

    calls: ClassVar[list[str]]
    weights: ClassVar[dict[str, float]]

    def rewards(self) -> dict[str, Any]:
        def effort() -> torch.Tensor:
            self.calls.append("effort")
            return -torch.ones(self.num_envs)

        return {"alive": 1.0 - self.failed.float(), "effort": effort}

    def reward_weights(self) -> dict[str, float]:
        return self.weights


@pytest.mark.parametrize(("effort", "calls"), [(0.5, 2), (0.0, 0)])
def test_terms_are_weighted_once_and_not_computed_without_weight(effort: float, calls: int) -> None:
    env = reach(Weighted, calls=[], weights={"alive": 2.0, "effort": effort})
    env.failing[0] = True
    _, rewards, _, _ = env.step(torch.zeros(3, 2))
    assert env.reward_names == ("alive", "effort")
    assert env.terms.tolist() == [[0, 2, 2], [-effort] * 3]
    assert rewards.tolist() == [-effort, 2 - effort, 2 - effort]
    assert len(env.calls) == calls  # When it was built, and in the step.
    assert env.take_statistics()["reward/alive"] == (0, 1)


def test_random_numbers_have_the_ranges_of_their_columns() -> None:
    env = reach(num_envs=500)
    low, high = torch.tensor((-1.0, 5.0)), torch.tensor((1.0, 5.5))
    drawn = env.uniform(2, low, high)
    assert drawn.shape == (500, 2)
    assert ((drawn >= low) & (drawn < high)).all()
    assert drawn.mean(dim=0).tolist() == pytest.approx([0, 5.25], abs=0.1)
    assert (env.uniform(1, -3.0, -2.0) + 2.5).abs().max() <= 0.5
    of_model = torch.tensor(env.sim.model.jnt_range)  # float64.
    assert env.uniform(2, of_model[:, 0], of_model[:, 1]).dtype == torch.float32
    assert env.normal(1, 0.1).std().item() == pytest.approx(0.1, rel=0.2)
    numbers = env.integers(1, 2, 5)
    assert numbers.dtype == torch.long
    assert sorted(set(numbers.flatten().tolist())) == [2, 3, 4]


def test_values_are_written_where_the_mask_is_true() -> None:
    env = reach(num_envs=3)
    mask = torch.tensor((True, False, True))
    env.sim.qpos[:] = 1.0
    env.write(mask, env.sim.qpos, torch.full((3, 2), 2.0))
    env.write(mask, env.sim.qpos[:, 1], torch.tensor((7.0, 8.0, 9.0)))
    env.write(mask, env.sim.qvel, 3)
    assert env.sim.qpos.tolist() == [[2, 7], [1, 1], [2, 9]]
    assert (env.sim.qvel == 3).all(dim=1).tolist() == mask.tolist()
    values: Any = [0.5, 0.1]
    with pytest.raises(UserError, match=r"is \[0.5, 0.1\]; it must be a tensor \(3, 2\), or a num"):
        env.write(mask, env.sim.qpos, values)


def test_terms_that_come_in_another_order_and_other_metrics_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    env = build_task("go1-velocity-flat", "native", "cpu")
    actions, terms = torch.zeros(env.num_envs, env.num_actions), env.rewards
    env.step(actions)
    monkeypatch.setattr(env, "rewards", lambda: dict([*terms().items()][::-1]))
    with pytest.raises(UserError, match=r"rewards\(\) returns .* the same order each time"):
        env.step(actions)
    monkeypatch.setattr(env, "rewards", terms)
    monkeypatch.setattr(env, "metrics", dict)
    with pytest.raises(UserError, match=r"metrics\(\) returns nothing, and at first"):
        env.step(actions)
