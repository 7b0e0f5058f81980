"""Two workers of n environments learn what one of 2n learns, by SAC."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from mjfleet.rl.learner import Setup, Step
from mjfleet.rl.ranks.collectives import Collectives
from mjfleet.rl.sac import SAC

from ...env.test_env import build_task
from ..checkpoints.test_checkpoints import FOUND
from ..test_ranks import WORLD_SIZE, Ranks, run_ranks
from .test_sac import agent

ENVS, BATCH, UPDATES = 4, 32, 6


def with_known_noise(actor: Any) -> None:
    """Let the noise of each sample follow from what is observed, whichever rank has the sample."""

    def sample(latent: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, log_std = actor.moments(latent)
        noise = torch.sin(100.0 * latent.sum(dim=1, keepdim=True)).expand_as(mean)
        before = mean + log_std.exp() * noise
        gaussian = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
        squashed = torch.log1p(-torch.tanh(before).square())
        return torch.tanh(before), (gaussian - squashed).sum(dim=1)

    actor.sample = sample


def learn(collectives: Collectives) -> dict[str, torch.Tensor]:
    """Learn from this rank's share of the environments and of the samples, in float64."""
    ranks, rank = collectives.world_size, collectives.rank
    env = build_task("cartpole-balance", "native", "cpu", num_envs=ENVS // ranks)
    env._observations = env.get_observations().to(torch.float64)
    torch.set_default_dtype(torch.float64)
    try:
        torch.manual_seed(1)
        config = agent(1, batch_size=BATCH, n_step=1)
        alg: Any = SAC(Setup(env, config, "cpu", 1, FOUND.load, collectives))
        with_known_noise(alg.actor)
        torch.manual_seed(2)
        share = slice(rank * ENVS // ranks, (rank + 1) * ENVS // ranks)
        never = torch.zeros(ENVS // ranks, dtype=torch.bool)
        seen = torch.randn(9, ENVS, 5)[:, share]
        for step in range(8):
            actions, rewards = torch.rand(ENVS, 1)[share], torch.rand(ENVS)[share]
            before, after = ({"actor": x, "critic": x} for x in (seen[step], seen[step + 1]))
            with torch.inference_mode():
                alg.record(before, actions, Step(after, rewards, never, never))  # pyright: ignore
        alg._learn_moments()
        for _ in range(UPDATES):
            rows = [torch.randn(BATCH, *size) for size in ((5,), (5,), (5,), (5,))]
            rows += [torch.rand(BATCH, 1), torch.rand(BATCH), torch.rand(BATCH), torch.ones(BATCH)]
            alg._batch = [x[rank::ranks] for x in rows]
            alg._learn_critics()
            alg._step("critic_optimizer")
            alg._learn_actor()
            alg._step("actor_optimizer")
        return {
            **{f"{n}.{k}": v for n, x in alg.networks().items() for k, v in x.state_dict().items()},
            "moments": alg.rewards.moments,
            "scale": alg.rewards.scale,
        }
    finally:
        torch.set_default_dtype(torch.float32)


def learn_together(ranks: Ranks, folder: str) -> dict[str, torch.Tensor]:
    return learn(ranks.collectives)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run_ranks(tmp_path_factory.mktemp("sac"), [learn_together])


def test_two_ranks_learn_what_one_does(found: list[dict[str, Any]], tmp_path: Path) -> None:
    assert len(found) == WORLD_SIZE
    first, second = (rank["learn_together"] for rank in found)
    alone = learn(Collectives())
    assert alone["temperature.log"] != math.log(0.01)
    for name, value in alone.items():
        assert torch.equal(first[name], second[name]), name
        torch.testing.assert_close(first[name], value, rtol=1e-9, atol=1e-9, msg=name)
