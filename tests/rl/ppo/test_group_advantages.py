"""GRPO: groups of environments that start from one state, and advantages within a group."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mjfleet.config import AgentConfig, from_dict
from mjfleet.env import Env
from mjfleet.env.random_numbers import seed_everything
from mjfleet.errors import UserError
from mjfleet.rl.build_algorithm import choose_algorithm
from mjfleet.rl.checkpoints.contents import Checkpointer
from mjfleet.rl.ppo.group_advantages import group_advantages
from mjfleet.rl.runner import Runner

from ...conftest import Output, Refusal, only_run, rows
from ...env.test_env import BUNDLED, ENGINES, build_env, no_host_synchronisation
from ...helpers.cuda_graph_stub import CudaGraphStub, refuse
from ..checkpoints.test_checkpoints import load, same, train
from ..test_ranks import weights

SIZE = 4
NAME = "cartpole-balance"


def build(name: str, engine: Any = "native", num_envs: int = 8, size: int = SIZE) -> Env[Any]:
    """Build grouped environments whose episodes last 20 steps."""
    cfg = replace(BUNDLED[name].task.env, num_envs=num_envs)
    env = build_env(name, cfg, engine=engine, seed=1, group_size=size)
    env.max_episode_length = 20
    return env


def agent(iterations: int, **algorithm: Any) -> AgentConfig:
    algorithm = {"name": "grpo", "group_size": SIZE, **algorithm}
    network = {"hidden_dims": [8], "obs_normalization": True}
    values = {"num_steps_per_env": 8, "max_iterations": iterations, "algorithm": algorithm}
    values |= {"actor": network, "critic": network, "save_interval": 100}
    return from_dict(BUNDLED[NAME].task.agent, values)


def runner_of(config: AgentConfig, engine: str = "native") -> Runner:
    seed_everything(config.seed)
    return Runner(build(NAME, engine), config, "cpu", 1, BUNDLED[NAME].load)


def members(tensor: torch.Tensor, dim: int = 0) -> torch.Tensor:
    """Return `(groups, members, ...)`."""
    return tensor.movedim(dim, 0).unflatten(0, (-1, SIZE))


def test_advantages_are_those_of_a_plain_loop() -> None:
    torch.manual_seed(3)
    steps, num_envs, gamma = 7, 12, 0.9
    rewards, dones = torch.randn(steps, num_envs), torch.rand(steps, num_envs) < 0.2
    found = group_advantages(rewards, dones, SIZE, gamma)
    lives = [next((t for t in range(steps) if dones[t, n]), steps - 1) for n in range(num_envs)]
    for step in range(steps):
        for first in range(0, num_envs, SIZE):
            envs = [n for n in range(first, first + SIZE) if step <= lives[n]]
            returns = {
                n: sum(
                    gamma ** (t - step) * rewards[t, n].item() for t in range(step, lives[n] + 1)
                )
                for n in envs
            }
            mean = sum(returns.values()) / max(1, len(envs))
            std = (sum((r - mean) ** 2 for r in returns.values()) / max(1, len(envs))) ** 0.5
            for n in range(first, first + SIZE):
                expected = (
                    (returns[n] - mean) / (std + 1e-8) if len(envs) > 1 and n in envs else 0.0
                )
                assert found[step, n].item() == pytest.approx(expected, rel=1e-3, abs=1e-4)
    assert min(lives) < steps - 1  # Some environments had left their groups.


@pytest.mark.parametrize(
    ("name", "engine"),
    [
        (NAME, "native"), ("go1-velocity-flat", "native"), ("go1-velocity-rough", "native"),
        (NAME, "warp"), ("go1-velocity-flat", "warp"),  # Rough ground is the same on both.
    ],
)  # fmt: skip
def test_a_group_starts_alike_and_its_actions_alone_make_it_differ(
    name: str, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = build(name, engine)
    built = env.sim.state()
    for field in (members(built[name]) for name in built if name.startswith("model ")):
        assert (field == field[:, :1]).all()
    env.start_at_random_times()
    for _ in range(3):
        differs: list[bool] = []
        for _ in range(6):  # Motors are late, and a time-out makes the whole group equal again.
            env.step(torch.randn_like(env.action))
            differs.append(not torch.equal(env.sim.qpos[0], env.sim.qpos[1]))
        assert any(differs)
        before, others = env.sim.qpos.clone(), env.env_ids.clone()
        with no_host_synchronisation(monkeypatch), torch.inference_mode():
            env.take_over(env.env_ids * SIZE)
        assert torch.equal(env.sim.qpos[::SIZE], before[::SIZE])
        assert torch.equal(env.env_ids, others)
        # From here on, a group with the same actions lives through the same, whatever is drawn.
        for _ in range(25):
            actions = torch.randn(2, env.num_actions).repeat_interleave(SIZE, dim=0)
            observations, rewards, dones, _ = env.step(actions)
            observed: Any = observations.values()
            for seen in (*observed, rewards, dones, env.episode_length_buf):
                assert (members(seen) == members(seen)[:, :1]).all()
            assert not torch.equal(rewards[0], rewards[SIZE])


@pytest.mark.parametrize("backprop", ["auto", "autograd"])
def test_an_update_learns_no_critic_and_follows_the_policys_gradient(backprop: str) -> None:
    """One step by SGD is the gradient of the clipped objective, by autograd and a plain formula."""
    config = agent(1, optimizer="sgd", num_learning_epochs=1, num_mini_batches=1, schedule="fixed",
                   backprop=backprop, max_grad_norm=1e6, learning_rate=1.0)  # fmt: skip
    runner = runner_of(config)
    alg = runner.alg
    alg.train_mode()
    critic = {k: v.clone() for k, v in alg.critic.state_dict().items()}
    with torch.inference_mode():
        getattr(runner, "_roll")()  # noqa: B009
    storage: Any = alg.storage
    before = [p.detach().clone() for p in alg.actor.parameters()]
    rollout = storage.rewards[:, :, 0], storage.dones[:, :, 0].bool()
    advantages = group_advantages(*rollout, SIZE, config.ppo.gamma).flatten()
    alg.actor(storage.observations.flatten(0, 1), stochastic_output=True)
    log_probs = alg.actor.get_output_log_prob(storage.actions.flatten(0, 1))
    # At the policy of the rollout the ratio is 1, whose gradient is that of the log-probability.
    loss = -(log_probs * advantages).mean()
    loss -= config.ppo.entropy_coef * alg.actor.output_entropy.mean()
    gradients = torch.autograd.grad(loss, list(alg.actor.parameters()))
    losses = alg.update()
    for old, gradient, now in zip(before, gradients, alg.actor.parameters(), strict=True):
        torch.testing.assert_close(now.detach(), old - gradient, rtol=1e-4, atol=1e-5)
    assert losses.keys() == {"surrogate", "entropy"}
    assert same(critic, dict(alg.critic.state_dict()))
    assert all(p.grad is None for p in alg.critic.parameters())


def test_training_by_graphs_is_training_by_calls(caplog: pytest.LogCaptureFixture) -> None:
    found: list[Any] = []
    names = "mean_reward", "loss/surrogate", "loss/entropy"
    for by_graphs in (True, False):
        env, config = build(NAME), agent(6, backprop="autograd")
        stub, measured = CudaGraphStub(), list[Any]()
        seed_everything(1)
        capture = stub.capture if by_graphs else refuse
        runner = Runner(env, config, "cpu", 1, BUNDLED[NAME].load, capture=capture)
        runner.train(measured.append, lambda: None)
        found.append(([[row[n] for n in names] for row in measured], weights(runner.alg)))
        if by_graphs:
            assert caplog.records == []
            assert [graph.replays > 1 for graph in stub.graphs] == [True, True]
    assert found[0][0] == found[1][0]
    assert same(found[0][1], found[1][1])


@pytest.mark.parametrize("engine", [engine for engine, _ in ENGINES])
def test_stopped_and_resumed_is_as_never_stopped(tmp_path: Path, engine: str) -> None:
    def make(folder: str, iterations: int) -> tuple[Runner, Checkpointer]:
        (tmp_path / folder).mkdir(exist_ok=True)
        runner = runner_of(agent(iterations), engine)
        return runner, Checkpointer(runner, NAME, tmp_path / folder, None)

    train(*make("whole", 6))
    train(*make("parts", 3))
    runner, checkpointer = make("parts", 6)
    seed_everything(99)
    assert checkpointer.resume(tmp_path / "parts/model_3.pt") == []
    train(runner, checkpointer)
    assert same(load(tmp_path / "whole", 6), load(tmp_path / "parts", 6))


REFUSED: dict[str, Any] = {
    "--agent.library skrl does not support --agent.algorithm.name grpo": {"library": "skrl"},
    "grpo does not support a recurrent network": {"actor": {"class_name": "RNNModel"}},
    "grpo does not support random network": {"algorithm": {"rnd_cfg": {"weight": 0.5}}},
    "grpo does not support the optimiser rmsprop": {"algorithm": {"optimizer": "rmsprop"}},
    "grpo does not support torch.compile": {"torch_compile_mode": "default"},
    "--agent.algorithm.group-size is 1; it must be": {"algorithm": {"group_size": 1}},
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_grpo_cannot_do_is_refused_by_name(words: str) -> None:
    with pytest.raises(UserError) as error:
        choose_algorithm(from_dict(agent(1), REFUSED[words]), BUNDLED[NAME].load)
    assert words in str(error.value)


def test_groups_divide_the_environments_of_a_worker(refusal: Refusal) -> None:
    flags = ("--agent.algorithm.name", "grpo", "--total-envs", "24", "--cpu-workers", "2")
    message = refusal("train", NAME, *flags)
    assert "group-size is 8" in message
    assert "12 environments" in message


@pytest.mark.slow
def test_two_workers_learn_are_evaluated_and_played(output: Output, tmp_path: Path) -> None:
    many = ("--cpu-workers", "2", "--env.num-envs", "64", "--env.episode-seconds", "5")
    enough = ("--agent.max-iterations", "30", "--eval-interval", "30")
    output("train", NAME, "--agent.algorithm.name", "grpo", *many, *enough)
    found = rows(only_run(tmp_path))
    assert float(found[-1]["mean_reward"]) > 2 * float(found[2]["mean_reward"])
    assert float(found[-1]["eval/length"]) == 100
    assert "loss/value" not in found[-1]
    output("play", NAME, "--resume", "latest", "--env.num-envs", "3", "--gpu-ids", "None")
