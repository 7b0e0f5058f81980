"""Images that a policy sees: bytes stay bytes, encoders are shared, exports take images alone."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from tensordict import TensorDict

from mjfleet.config import AgentConfig, from_dict
from mjfleet.errors import UserError
from mjfleet.rl.checks.rollout_guard import RolloutGuard
from mjfleet.rl.learner import Setup
from mjfleet.rl.networks import build_networks, image_dtypes, make_storage
from mjfleet.rl.ppo import PPO
from mjfleet.rl.ranks.collectives import Collectives
from mjfleet.tools.export.policy_graph import compare, make_graph

from ..helpers.cuda_graph_stub import CudaGraphStub
from .ppo import test_ppo
from .ppo.test_ppo import learn, weights

WORLDS = 16
ENCODER = {
    "class_name": "CNNModel",
    "hidden_dims": [8],
    "cnn_cfg": {"output_channels": [4], "kernel_size": [3], "stride": [2]},
}


def agent(**changed: Any) -> AgentConfig:
    """Actor and critic see `camera` alone."""
    plain = {
        "num_steps_per_env": 6,
        "obs_groups": {"actor": ["camera"], "critic": ["camera"]},
        "actor": ENCODER,
        "critic": ENCODER,
    }
    return from_dict(AgentConfig(), plain | changed)


def env_with(image: torch.Tensor) -> Any:
    numbers = torch.zeros(len(image), 2)
    groups = {"camera": image, "actor": numbers, "critic": numbers}
    observations = TensorDict(groups, batch_size=[len(image)])  # pyright: ignore[reportArgumentType]
    return SimpleNamespace(
        get_observations=lambda: observations, num_envs=len(image), num_actions=2, device="cpu"
    )


def bytes_like(*size: int) -> torch.Tensor:
    return torch.randint(256, (WORLDS, *size), dtype=torch.uint8)


def test_a_network_scales_images_of_bytes_by_itself() -> None:
    image, found = bytes_like(3, 9, 9), []
    for seen in (image, image / 255.0):
        torch.manual_seed(0)
        networks, _ = build_networks(env_with(seen), agent(), "cpu", str)
        found.append([network(env_with(seen).get_observations()) for network in networks.values()])
        assert image_dtypes(networks["actor"]) == {"camera": seen.dtype}
    torch.testing.assert_close(found[0], found[1])


def test_bytes_stay_bytes_in_a_rollout_and_no_check_looks_at_them() -> None:
    env = env_with(bytes_like(3, 9, 9))
    storage = make_storage(env, agent(), "cpu")
    rollout = storage.observations["camera"]
    assert rollout.dtype == torch.uint8
    guard = RolloutGuard.__new__(RolloutGuard)
    guard._env = SimpleNamespace(on_nan="stop")  # pyright: ignore[reportAttributeAccessIssue]
    numbers = storage.observations["actor"]
    parts = {"observation/camera": [rollout], "observation/actor": [numbers]}
    assert [part is numbers for part in guard._checked(parts)] == [True]


def test_actor_and_critic_share_an_encoder_by_a_flag_and_learn_it_together() -> None:
    found, shared = list[Any](), {"share_cnn_encoders": True, "num_mini_batches": 2}
    both = {"actor": ["camera"], "critic": ["camera"]}
    for backprop in ("auto", "autograd"):
        config = test_ppo.agent(images=both, algorithm=shared | {"backprop": backprop})
        alg, _ = learn(PPO, config, updates=2)
        assert alg.actor.cnns is alg.critic.cnns
        (group,) = alg.optimizer.param_groups
        assert len({*group["params"]}) == len(group["params"])
        found.append(weights(alg))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)
    config = test_ppo.agent(images=both, algorithm=shared | {"backprop": "autograd"})
    graphs = CudaGraphStub()
    captured, _ = learn(PPO, config, updates=2, capture=graphs.capture)
    assert graphs.graphs
    torch.testing.assert_close(weights(captured), found[1], rtol=1e-4, atol=1e-4)


def test_a_shared_encoder_needs_the_same_images_or_is_one_message() -> None:
    env = env_with(bytes_like(3, 9, 9))
    shared = {"algorithm": {"share_cnn_encoders": True}}
    groups = {"actor": ["camera"], "critic": ["critic"]}
    other = agent(**shared, critic={"class_name": "MLPModel"}, obs_groups=groups)
    with pytest.raises(
        UserError, match="share-cnn-encoders needs a critic that encodes the same images"
    ):
        build_networks(env, other, "cpu", str)
    groups = {"actor": ["actor"], "critic": ["camera"]}
    other = agent(**shared, actor={"class_name": "MLPModel"}, obs_groups=groups)
    with pytest.raises(UserError, match="share-cnn-encoders needs an actor that encodes images"):
        build_networks(env, other, "cpu", str)


def test_a_student_and_its_teacher_share_no_encoder() -> None:
    """The teacher's weights would be the student's, and neither would be learned."""
    learning = {"name": "distillation", "share_cnn_encoders": True}
    config = agent(algorithm=learning, teacher=ENCODER | {"obs_groups": ["camera"]})
    networks, _ = build_networks(env_with(bytes_like(3, 9, 9)), config, "cpu", str)
    assert not {*networks["actor"].parameters()} & {*networks["critic"].parameters()}


def test_grpo_learns_the_encoder_of_its_actor_although_it_learns_no_critic() -> None:
    learning = {"name": "grpo", "group_size": 4, "share_cnn_encoders": True}
    config = agent(algorithm=learning)
    setup = Setup(env_with(bytes_like(3, 9, 9)), config, "cpu", 1, str, Collectives())
    alg: Any = PPO(setup)
    assert all(p.requires_grad for p in alg.actor.parameters())


def test_too_little_memory_is_known_before_training_with_the_number_that_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A step of an environment has an image of 243 bytes and 6 numbers, a rollout 6 steps.
    total = 5 * 6 * (243 + 6 * 4)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=total))
    make_storage(env_with(bytes_like(3, 9, 9)[:5]), agent(), "cpu")
    text = "96 steps of a rollout need at least .* of 16 environments 5 would fit: lower --env.num-"
    with pytest.raises(UserError, match=text):
        make_storage(env_with(bytes_like(3, 9, 9)), agent(), "cpu")


@pytest.mark.parametrize("is_bytes", [True, False])
def test_a_policy_of_images_alone_exports_to_onnx(is_bytes: bool) -> None:
    image = bytes_like(3, 9, 9)
    env = env_with(image if is_bytes else image / 255.0)
    policy = build_networks(env, agent(), "cpu", str)[0]["actor"].eval()
    graph = make_graph(policy, [], "onnx", "{}")
    difference, tolerated = compare(policy, [], "onnx", graph)
    assert difference <= tolerated
    import onnxruntime

    session = onnxruntime.InferenceSession(graph)
    (taken,) = session.get_inputs()
    assert (taken.name, taken.type) == ("camera", f"tensor({'uint8' if is_bytes else 'float'})")
    (actions,) = session.run(None, {"camera": env.get_observations()["camera"][:3].numpy()})
    assert np.asarray(actions).shape == (3, 2)
    with pytest.raises(UserError, match="images alone is exported to ONNX"):
        make_graph(policy, [], "torchscript", "{}")
