"""SAC learns from images: bytes stay bytes, encoders are shared, and a resumed run goes on."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mjfleet.config import ActorConfig, AgentConfig, CnnConfig, CriticConfig, ObsGroups
from mjfleet.env.random_numbers import seed_everything
from mjfleet.errors import UserError
from mjfleet.rl.checkpoints.contents import Checkpointer
from mjfleet.rl.networks import image_dtypes
from mjfleet.rl.runner import Runner
from mjfleet.tools.export.policy_graph import compare, images_of, make_graph

from ...env.test_env import build_task
from ..checkpoints.test_checkpoints import FOUND, TASK, load, same, train
from . import test_sac

CNN = CnnConfig(output_channels=(4,), kernel_size=(3,), stride=(2,))
SIZE = 5
"""Width and height of an image, which shows one number by how light it is."""


def agent(iterations: int, critic: tuple[str, ...] = ("camera",), **changes: Any) -> AgentConfig:
    """The actor sees `camera` alone."""
    return replace(
        test_sac.agent(iterations, **changes),
        obs_groups=ObsGroups(actor=("camera",), critic=critic),
        actor=ActorConfig(cnn_cfg=CNN),
        critic=CriticConfig(cnn_cfg=CNN),
    )


def with_images(env: Any, dtype: torch.dtype = torch.uint8) -> Any:
    """Let an environment show light and darkness in turn, where opposite actions are right."""
    observe, (name,) = env.observe, env.reward_names

    def light(steps: torch.Tensor) -> torch.Tensor:
        return steps % 2

    def show() -> dict[str, torch.Tensor]:
        image = ((255 if dtype == torch.uint8 else 1) * light(env.episode_length_buf)).to(dtype)
        return observe() | {"camera": image.view(-1, 1, 1, 1).expand(-1, 1, SIZE, SIZE)}

    env.observe = show
    env.rewards = lambda: {name: env.action[:, 0] * (2 * light(env.episode_length_buf - 1) - 1)}
    env.reset()
    return env


def begin(
    folder: Path, config: AgentConfig, dtype: torch.dtype = torch.uint8
) -> tuple[Runner, Checkpointer]:
    seed_everything(1)
    env = with_images(build_task(TASK, "native", "cpu", num_envs=8), dtype)
    env.max_episode_length = 20
    runner = Runner(env, config, "cpu", 1, FOUND.load)
    return runner, Checkpointer(runner, TASK, folder, None)


class Images(TorchDispatchMode):
    """Notes how many float images each operation returns at most."""

    most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **kwargs or {})
        if isinstance(found, torch.Tensor) and found.is_floating_point() and found.ndim >= 4:
            self.most = max(self.most, found.shape[:-3].numel())
        return found


@pytest.mark.parametrize("is_shared", [True, False])
def test_bytes_stay_bytes_and_no_float_copy_exceeds_a_minibatch(
    is_shared: bool, tmp_path: Path
) -> None:
    config = agent(3, ("camera", "critic"), share_cnn_encoders=is_shared)
    runner, checkpointer = begin(tmp_path, config)
    alg, modes = runner.alg, list[Images]()
    learn = alg.learn

    def watched() -> Any:
        modes.append(Images())
        with modes[-1]:
            return learn()

    alg.learn = watched
    before = {name: x.detach().clone() for name, x in alg.critic.named_parameters()}
    train(runner, checkpointer)
    assert alg.replay.observations["camera"].dtype == torch.uint8
    assert alg.updates > 0
    assert modes[-1].most == config.algorithm.batch_size == 16  # pyright: ignore
    assert alg.critic.obs_normalizer._mean.shape == (1, 5)
    assert alg.critic.obs_normalizer.count == 3 * 8 * 8
    changed = {name for name, x in alg.critic.named_parameters() if not x.equal(before[name])}
    assert {name for name in before if "cnns" in name} <= changed
    assert (alg.actor.cnns is alg.critic.cnns) == is_shared
    taught = {p for group in alg.optimizers()["actor_optimizer"].param_groups
              for p in group["params"]}  # fmt: skip
    assert taught.isdisjoint(alg.actor.cnns.parameters()) == is_shared
    pairs = zip(alg.target.cnns.parameters(), alg.critic.cnns.parameters(), strict=True)
    assert all(0 < (own - followed).abs().max() < 0.1 for own, followed in pairs)


def test_a_resumed_run_with_images_goes_on_as_if_it_had_not_ended(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("whole", "parts")]
    for folder in folders:
        folder.mkdir()
    train(*begin(folders[0], agent(6, share_cnn_encoders=True)))
    train(*begin(folders[1], agent(4, share_cnn_encoders=True)))
    runner, checkpointer = begin(folders[1], agent(6, share_cnn_encoders=True))
    seed_everything(99)
    assert checkpointer.resume(folders[1] / "model_4.pt") == []
    train(runner, checkpointer)
    one, other = (load(folder, 6) for folder in folders)
    assert same(one, other)


def test_encoders_that_become_shared_are_those_of_the_critics(tmp_path: Path) -> None:
    alone, _ = begin(tmp_path, agent(1))
    both, _ = begin(tmp_path, agent(1, share_cnn_encoders=True))
    state, names = alone.alg.save(), sorted(alone.alg.networks(), reverse=True)
    both.alg.restore(state, names)
    pairs = zip(both.alg.actor.cnns.parameters(), alone.alg.critic.cnns.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


@pytest.mark.parametrize(
    ("dtype", "groups"), [(torch.uint8, ["camera"]), (torch.float32, ["actor", "camera"])]
)
def test_a_policy_learns_what_an_image_shows_and_exports(
    dtype: torch.dtype, groups: list[str], tmp_path: Path
) -> None:
    samples: Any = {"batch_size": 32, "updates_per_transition": 0.5, "replay_size": 8 * 8 * 8}
    numbers: Any = {"gamma": 0.1, "n_step": 1, "learning_rate": 3e-3}
    config = agent(20, share_cnn_encoders=True, **samples, **numbers)
    config = replace(config, obs_groups=replace(config.obs_groups, actor=tuple(groups)))
    runner, checkpointer = begin(tmp_path, config, dtype)
    train(runner, checkpointer)
    policy = type(runner.alg).policy_of(runner.env, config, FOUND.load)
    policy.load_state_dict(runner.alg.save()["actor_state_dict"])
    light = torch.tensor([0, 255] if dtype == torch.uint8 else [0, 1], dtype=dtype)
    images = light.view(-1, 1, 1, 1).expand(-1, 1, SIZE, SIZE)
    dark, bright = policy({"camera": images, "actor": torch.zeros(2, 5)})[:, 0].tolist()
    assert dark < -0.1 < 0.1 < bright
    assert image_dtypes(policy) == {"camera": dtype}
    assert images_of(policy) == {"camera": (1, SIZE, SIZE)}
    sizes = [5] * (len(groups) - 1)
    graph = make_graph(policy, sizes, "onnx", "{}")
    difference, tolerated = compare(policy, sizes, "onnx", graph)
    assert difference <= tolerated
    with pytest.raises(UserError, match=r"export(ed| it) to ONNX"):
        make_graph(policy, sizes, "torchscript", "{}")


def test_images_and_networks_that_do_not_fit_are_one_message(tmp_path: Path) -> None:
    config = agent(1)
    without = replace(config, critic=CriticConfig())
    with pytest.raises(
        UserError, match=r"`camera` is an image, which needs agent\.critic\.cnn_cfg"
    ):
        begin(tmp_path, without)
    large = replace(CNN, kernel_size=(9,))
    for name, network in (("actor", ActorConfig), ("critic", CriticConfig)):
        text = rf"networks cannot be built: agent\.{name}\.cnn_cfg, images of `camera`: .*[Kk]ernel"
        with pytest.raises(UserError, match=text):
            begin(tmp_path, replace(config, **{name: network(cnn_cfg=large)}))
    with pytest.raises(UserError, match="needs a critic that encodes the same images"):
        begin(tmp_path, agent(1, ("critic",), share_cnn_encoders=True))


def test_images_that_do_not_fit_in_memory_are_refused_with_the_number_that_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = (SIZE * SIZE + 4 * 2 + 1) * 8 * 50
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=memory))
    with pytest.raises(UserError, match=r"is 500, which takes .* at most 400 fit\."):
        begin(tmp_path, agent(1, replay_size=500))
