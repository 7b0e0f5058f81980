"""Two workers of n environments learn what one of 2n learns, by SAC."""

import math
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mjfleet.errors import UserError
from mjfleet.rl.checkpoints.contents import Checkpointer
from mjfleet.rl.learner import Setup, Step
from mjfleet.rl.ranks.collectives import Collectives
from mjfleet.rl.sac import SAC

from ...env.test_env import build_task
from ..checkpoints.test_checkpoints import FOUND, load, same, train
from ..test_ranks import WORLD_SIZE, Ranks, run_ranks
from . import test_images
from .test_images import SIZE
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


def draw(name: str, *shape: int) -> torch.Tensor:
    """Return random observations of a group."""
    if name == "camera":
        return torch.randint(256, (*shape, 1, SIZE, SIZE), dtype=torch.uint8)
    return torch.randn(*shape, 5)


def learn(collectives: Collectives, sees: bool = False) -> dict[str, torch.Tensor]:
    """Learn from this rank's share of the environments and of the samples, in float64."""
    ranks, rank = collectives.world_size, collectives.rank
    env = build_task("cartpole-balance", "native", "cpu", num_envs=ENVS // ranks)
    env._observations = env.get_observations().to(torch.float64)
    env._observations["camera"] = draw("camera", ENVS // ranks)
    torch.set_default_dtype(torch.float64)
    try:
        torch.manual_seed(1)
        config = agent(1, batch_size=BATCH, n_step=1)
        if sees:
            both, shared = ("camera", "critic"), {"share_cnn_encoders": True}
            config = test_images.agent(1, both, batch_size=BATCH, n_step=1, **shared)
        alg: Any = SAC(Setup(env, config, "cpu", 1, FOUND.load, collectives))
        with_known_noise(alg.actor)
        torch.manual_seed(2)
        share = slice(rank * ENVS // ranks, (rank + 1) * ENVS // ranks)
        never = torch.zeros(ENVS // ranks, dtype=torch.bool)
        seen = {name: draw(name, 9, ENVS)[:, share] for name in alg.replay.observations}
        for step in range(8):
            actions, rewards = torch.rand(ENVS, 1)[share], torch.rand(ENVS)[share]
            before, after = ({name: x[i] for name, x in seen.items()} for i in (step, step + 1))
            with torch.inference_mode():
                alg.record(before, actions, Step(after, rewards, never, never))  # pyright: ignore
        alg._learn_moments()
        for _ in range(UPDATES):
            for room in (alg._before, alg._following):
                room.update({name: draw(name, BATCH)[rank::ranks] for name in room})
            rows = torch.rand(BATCH, 1), torch.rand(BATCH), torch.rand(BATCH), torch.ones(BATCH)
            alg._rest = [x[rank::ranks] for x in rows]
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


def see_together(ranks: Ranks, folder: str) -> dict[str, torch.Tensor]:
    return learn(ranks.collectives, sees=True)


def resume_together(ranks: Ranks, folder: str) -> dict[str, Any]:
    """Train in two parts, whose checkpoints hold rings that have wrapped, and at once."""
    states, found = list[Any](), dict[str, Any]()
    for name, ends in (("parts", (4, 6)), ("whole", (6,))):
        path = Path(folder) / name
        for iterations in ends:
            config = agent(iterations, updates_per_transition=0.25, replay_size=2 * 8 * 8 * 2)
            runner = ranks.runner(replace(config, save_interval=100))
            runner.env.max_episode_length = 20
            checkpointer = Checkpointer(runner, "cartpole-balance", path, None)
            if iterations == 6 and name == "parts":
                torch.manual_seed(99)
                found["lost"] = checkpointer.resume(path / "model_4.pt")
            train(runner, checkpointer)
            found["rows"] = runner.alg.replay.count
            ranks.collectives.total([1.0])  # Both have written.
        states.append([load(path, 6), torch.load(path / f"rank{ranks.rank}_6.pt")])
    return found | {"same": same(*states)}


def resume_without_a_file(ranks: Ranks, folder: str) -> dict[str, Any]:
    """Resume from a checkpoint of which rank 1 has lost the file with its replay."""
    found, path = dict[str, Any](), Path(folder) / "lost"
    for iterations in (3, 6):
        config = agent(iterations, warm_up=300, replay_size=10_000, updates_per_transition=0.05)
        runner = ranks.runner(replace(config, save_interval=100))
        checkpointer = Checkpointer(runner, "cartpole-balance", path, None)
        if iterations == 6:
            found["lost"] = checkpointer.resume(path / "model_3.pt")
        runner.alg.begin()
        found["rows"] = train(runner, checkpointer)
        ranks.collectives.total([1.0])  # Both have written.
        if ranks.rank == 1:
            (path / "rank1_3.pt").unlink(missing_ok=True)
    return found


def refuse_a_batch(ranks: Ranks, folder: str) -> dict[str, Any]:
    """Return why a batch of one sample is refused."""
    with pytest.raises(UserError) as refused:
        ranks.runner(agent(1, batch_size=1))
    return {"text": str(refused.value)}


@pytest.fixture(scope="module")
def found(
    tmp_path_factory: pytest.TempPathFactory, warm: "subprocess.Popen[str]"
) -> list[dict[str, Any]]:
    return run_ranks(
        warm,
        tmp_path_factory.mktemp("sac"),
        [learn_together, see_together, resume_together, resume_without_a_file, refuse_a_batch],
    )


@pytest.mark.parametrize("sees", [False, True])
def test_two_ranks_learn_what_one_does(found: list[dict[str, Any]], sees: bool) -> None:
    assert len(found) == WORLD_SIZE
    name = "see_together" if sees else "learn_together"
    first, second = (rank[name] for rank in found)
    alone = learn(Collectives(), sees)
    assert any("cnns" in name for name in alone) == sees
    assert alone["temperature.log"] != math.log(0.01)
    for name, value in alone.items():
        assert torch.equal(first[name], second[name]), name
        torch.testing.assert_close(first[name], value, rtol=1e-9, atol=1e-9, msg=name)


def test_two_ranks_resume_as_if_they_had_not_ended(found: list[dict[str, Any]]) -> None:
    for rank in (one["resume_together"] for one in found):
        assert rank["lost"] == []
        assert rank["rows"] == 16 < 6 * 8, "the ring has wrapped"
        assert rank["same"]


def test_ranks_stay_in_step_where_one_has_lost_its_replay(found: list[dict[str, Any]]) -> None:
    first, second = (rank["resume_without_a_file"] for rank in found)
    lost = "what the learner remembers on rank 1: rank1_3.pt: No such file or directory"
    others = "what the learner remembers on the other ranks, which have to learn in step"
    assert first["lost"] == second["lost"] == [lost, others]
    assert [row["loss/critic"] > 0 for row in first["rows"]] == [False, False, True]


def test_a_batch_has_a_sample_for_each_rank(found: list[dict[str, Any]]) -> None:
    text = "--agent.algorithm.batch-size is 1; it must be at least 2, one a worker."
    assert [rank["refuse_a_batch"]["text"] for rank in found] == [text] * WORLD_SIZE
