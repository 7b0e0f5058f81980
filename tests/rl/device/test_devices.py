"""Every bundled task trains, is evaluated, saved, resumed, recorded and described without mixing
tensors of its device with those of the host, which a GPU refuses."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mjfleet.config import TrainConfig, from_dict
from mjfleet.env import Env, EnvShard, factory
from mjfleet.env.step_recorder import StepRecorder
from mjfleet.parts.rays import Rays, grid
from mjfleet.registry import FoundTask, discover
from mjfleet.rl.build_algorithm import policy_of
from mjfleet.rl.checkpoints.contents import Checkpointer
from mjfleet.rl.checkpoints.files import load_policy, read_checkpoint
from mjfleet.rl.checkpoints.initial_networks import take_networks
from mjfleet.rl.divergence import DivergedError
from mjfleet.rl.evaluation.evaluator import Evaluator
from mjfleet.rl.learner_state import on_cpu
from mjfleet.rl.runner import Runner
from mjfleet.tools.export.robot_metadata import describe
from mjfleet.tools.play.policy_episodes import Player, evaluate
from mjfleet.video.state_recording import StateRecorder

from ...helpers.second_device import (
    DEVICE,
    RoundedError,
    SecondDevice,
    WrongDeviceError,
    simulation_on,
)
from ..checkpoints.test_checkpoints import VARIANTS

TASKS = discover({}, None).tasks
FIRST = {(found.folder, found.task.env_class): name for name, found in reversed(TASKS.items())}
EACH = [
    pytest.param(name, marks=() if name in FIRST.values() else pytest.mark.slow) for name in TASKS
]
"""All tasks; those of an environment that an earlier one has, too, are slow."""
ENVS = 10
STEPS = 5
"""Most steps of an episode."""


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[SecondDevice]:
    """The device of all simulations of a test."""
    second = SecondDevice()
    kind = simulation_on(second)
    monkeypatch.setattr(
        factory, "make_simulation", lambda engine, model, count, **_: kind(model, count, 1)
    )
    with second:
        yield second


def build(found: FoundTask, config: TrainConfig, shard: EnvShard | None = None) -> Env[Any]:
    kind: Any = found.load(found.task.env_class, Env)
    with pytest.MonkeyPatch.context() as patch:
        if getattr(kind, "num_starts", 0):  # Poses to begin from, of which the suite tries many.
            patch.setattr(kind, "num_starts", 128)
        env = factory.build_env(found, config, "native", DEVICE, 1, shard=shard)
    # The evaluation of a clip lasts as long as the clip.
    env.max_episode_length = min(env.max_episode_length, STEPS)
    return env


def prepare(name: str, **agent: Any) -> tuple[FoundTask, TrainConfig]:
    """Return a task with the least to train, whose agent has other numbers."""
    found = TASKS[name]
    config = found.defaults().with_num_envs(ENVS)
    small = {"num_steps_per_env": 4, "algorithm": {"num_mini_batches": 2, "num_learning_epochs": 1}}
    changed = from_dict(from_dict(config.agent, small), agent)
    return found, replace(config, env=replace(config.env, episode_seconds=0.1), agent=changed)


def make(
    found: FoundTask, config: TrainConfig, judge: Env[Any], folder: Path, iterations: int
) -> tuple[Runner, Checkpointer]:
    """Build what trains and saves, and is evaluated in `judge` after each iteration."""
    agent, dump = replace(config.agent, max_iterations=iterations), folder / "nan.npz"
    runner = Runner(
        build(found, config), agent, DEVICE, 1, found.load, dump_to=dump,
        evaluator=Evaluator(judge, 1), capture=None,
    )  # fmt: skip
    return runner, Checkpointer(runner, found.name, folder, None)


def train_and_resume(
    found: FoundTask, config: TrainConfig, folder: Path
) -> tuple[Runner, Env[Any]]:
    """Train an iteration, and another one from its checkpoint; return the second runner and the
    environment of evaluations."""
    rows: list[Any] = []
    judge = build(found, config, EnvShard(0, ENVS, ENVS))
    runner, checkpointer = make(found, config, judge, folder, 1)
    runner.train(rows.append, lambda: None, checkpointer.save)
    runner, checkpointer = make(found, config, judge, folder, 2)
    assert checkpointer.resume(folder / "final_model.pt") == []
    runner.train(rows.append, lambda: None, checkpointer.save)
    assert all(row["eval/return"] is not None for row in rows)
    return runner, judge


@pytest.mark.parametrize("name", EACH)
def test_no_task_mixes_tensors_of_two_devices(
    name: str, tmp_path: Path, device: SecondDevice
) -> None:
    found, config = prepare(name)
    runner, played = train_and_resume(found, config, tmp_path)
    env, policy = runner.env, policy_of(played, config.agent, found.load)
    load_policy(tmp_path / "final_model.pt", policy)
    for tensor in (*runner.alg.actor.parameters(), env.terms, env.measured):
        assert device.has(tensor)
    env.take_over(env.env_ids)
    env.begin_from([on_cpu(env.state_dict())])
    played.on_nan = "reset"
    with torch.inference_mode():
        player = Player(played, policy, forget=policy.reset)
        played.recorder = StepRecorder(num_steps=1)
        recorder = StateRecorder(played, 0.1)
        sums = evaluate(player, 2 * ENVS, recorder)
    assert sums.episodes == 2 * ENVS
    assert recorder.finish("title")
    assert describe(played, policy.obs_groups)


@pytest.mark.parametrize("name", EACH)
def test_no_task_multiplies_matrices_that_tf32_would_round(name: str, device: SecondDevice) -> None:
    with device.exact():
        env = build(*prepare(name))
        for _ in range(2):
            env.step(torch.randn_like(env.action))
        env.debug_vis()


@pytest.mark.parametrize("variant", [name for name in VARIANTS if name != "plain"])
def test_no_network_or_library_mixes_tensors_of_two_devices(
    variant: str, tmp_path: Path, device: SecondDevice
) -> None:
    train_and_resume(*prepare("cartpole-balance", **VARIANTS[variant]), tmp_path)


@pytest.mark.parametrize("name", ["go1-velocity-flat", "cartpole-balance-depth"])
def test_sac_mixes_no_tensors_of_two_devices(
    name: str, tmp_path: Path, device: SecondDevice
) -> None:
    """With mirrored samples, and with images."""
    found = TASKS[name]
    config = found.defaults("sac").with_num_envs(ENVS)
    small = {"batch_size": 8, "updates_per_transition": 0.1, "replay_size": 400, "warm_up": 10}
    agent = from_dict(config.agent, {"num_steps_per_env": 4, "algorithm": {**small, "n_step": 3}})
    config = replace(config, env=replace(config.env, episode_seconds=0.1), agent=agent)
    runner, _ = train_and_resume(found, config, tmp_path)
    assert runner.alg.updates > 0
    taken = take_networks(runner, path := tmp_path / "final_model.pt", read_checkpoint(path), "it")
    assert taken[0].startswith("actor: taken")


def test_rays_take_a_pattern_on_the_device(device: SecondDevice) -> None:
    env = build(*prepare("go1-velocity-rough"))
    starts, directions = grid(1.0, 1.0, 0.5)
    around: Any = {"offset": (0.0, 0.0, 0.5), "max_distance": 3.0, "miss": 3.0}
    on_device = starts.to(DEVICE), directions.to(DEVICE)
    found = Rays(env, on_device, "trunk", **around)()
    assert torch.equal(found, Rays(env, (starts, directions), "trunk", **around)())


def test_a_dump_reads_the_device(tmp_path: Path, device: SecondDevice) -> None:
    found, config = prepare("cartpole-balance", init_at_random_ep_len=False)
    runner, _ = make(found, config, build(found, config, EnvShard(0, ENVS, ENVS)), tmp_path, 1)
    runner.env.sim.qvel[3, 1] = torch.nan
    with pytest.raises(DivergedError, match="in 1 of 10 worlds"):
        runner.train(lambda row: None, lambda: None)
    assert (tmp_path / "nan.npz").exists()


def test_what_a_gpu_refuses_is_refused(device: SecondDevice) -> None:
    ours, host = torch.ones(3, device=DEVICE), torch.ones(3)
    assert (ours + torch.tensor(1.0)).tolist() == [2, 2, 2]
    assert ours[host > 0].tolist() == ours.cpu()[host > 0].tolist() == [1, 1, 1]
    assert host.to(ours).device == torch.device(DEVICE)
    for wrong in (
        lambda: ours.add(host),
        lambda: host[ours > 0],
        lambda: host.add_(ours),
        lambda: torch.cat((ours, host)),
        lambda: ours.mul(torch.from_numpy(host.numpy())),
        lambda: ours.masked_fill_(host > 0, 0.0),
    ):
        with pytest.raises(WrongDeviceError, match="of the host beside one of the device"):
            wrong()
    with pytest.raises(WrongDeviceError, match="NumPy cannot read"):
        ours.numpy()
    with pytest.raises(RoundedError), device.exact():
        torch.ones(2, 2).matmul(torch.ones(2, 2))
