"""The cart-pole that is seen alone: its images, a short training, and an export."""

import json
from pathlib import Path

import torch

import mjfleet

from ..conftest import SMALL, Output


def test_a_policy_sees_the_images_of_this_step_and_of_the_step_before() -> None:
    with mjfleet.make("cartpole-balance-depth", num_envs=3) as env:
        first = env.get_observations()["actor"].clone()
        assert first.shape == (3, 2, 32, 32)
        assert first[:, 0].equal(first[:, 1])
        assert first.min() == 0.0  # Behind cart and pole.
        assert 0.4 < first.max() < 0.8
        env.sim.qpos[:] = torch.tensor([0.5, 0.3])
        second = env.step(torch.zeros(3, 1))[0]["actor"]
        assert second[:, 0].equal(first[:, 1])
        assert (second[:, 1] != first[:, 1]).flatten(1).any(dim=1).all()


def test_a_policy_of_images_alone_trains_resumes_and_exports(
    output: Output, tmp_path: Path
) -> None:
    sizes = (*SMALL, "--cpu-workers", "1", "--plain")
    trained = output("train", "cartpole-balance-depth", *sizes, "--agent.max-iterations", "1")
    assert "slower" not in trained
    more = ("--resume", "latest", "--plain", "--agent.max-iterations", "2")
    assert "continues in place" in output("train", "cartpole-balance-depth", *more)
    output("mjfleet", "export", "latest")
    (file,) = tmp_path.glob("logs/*/*/**/policy.json")
    described = json.loads(file.read_text())
    assert described["images"] == [{"name": "actor", "shape": [2, 32, 32], "type": "float32"}]
    (camera,) = described["cameras"]
    assert (camera["name"], camera["body"], camera["width"]) == ("eye", "world", 32)
    assert abs(camera["intrinsics"]["fx"] - 16 / 3**0.5 * 3) < 1e-6
