"""SAC: its networks, its updates, and that a resumed run goes on as if it had not ended."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from tensordict import TensorDict

from mjfleet.config import (
    ActorConfig,
    AgentConfig,
    SACConfig,
    by_dotted_name,
    from_dict,
    to_dict,
)
from mjfleet.env.random_numbers import seed_everything
from mjfleet.errors import UserError
from mjfleet.launch.devices import choose_devices
from mjfleet.launch.launch_plan import make_plan
from mjfleet.rl.checkpoints.contents import Checkpointer
from mjfleet.rl.checkpoints.files import read_checkpoint
from mjfleet.rl.checkpoints.initial_networks import take_networks
from mjfleet.rl.divergence import DivergedError
from mjfleet.rl.runner import Runner
from mjfleet.rl.sac.networks import Critics, SquashedActor
from mjfleet.rl.sac.seeing import limits_of
from mjfleet.runs.config_yaml import from_file
from mjfleet.runs.start import NEW
from mjfleet.tools.export.policy_graph import compare, make_graph

from ...conftest import Run
from ...env.test_env import build_task
from ...helpers.cuda_graph_stub import CudaGraphStub
from ..checkpoints.test_checkpoints import FOUND, TASK, load, same, train

SMALL = SACConfig(
    batch_size=16, updates_per_transition=0.25, replay_size=8 * 8 * 3, warm_up=64, n_step=3,
    actor_hidden_dims=(16,), critic_hidden_dims=(16,), num_atoms=21, learning_rate_end_factor=1.0,
)  # fmt: skip


def agent(iterations: int, **changes: Any) -> AgentConfig:
    algorithm: Any = replace(SMALL, **changes)
    return replace(
        FOUND.task.agent, algorithm=algorithm, num_steps_per_env=8, max_iterations=iterations
    )


def begin(folder: Path, config: AgentConfig, capture: Any = None) -> tuple[Runner, Checkpointer]:
    seed_everything(1)
    env = build_task(TASK, "native", "cpu", num_envs=8)
    env.max_episode_length = 20
    runner = Runner(env, config, "cpu", 1, FOUND.load, capture=capture)
    return runner, Checkpointer(runner, TASK, folder, None)


def make_critics(count: int = 2) -> Critics:
    seen = TensorDict({"critic": torch.zeros(1, 3)}, batch_size=[1])
    return Critics(seen, {"critic": ["critic"]}, 1, (8,), 11, 5.0, 0.1, 1.0, count)


def test_projected_probabilities_keep_their_sum_and_their_mean() -> None:
    critics = make_critics()
    probabilities = torch.rand(7, 11).softmax(dim=1)
    values = 0.5 * critics.get_buffer("values") + torch.linspace(-1, 1, 7).unsqueeze(1)
    found, beyond = critics.project(probabilities, values)
    assert torch.allclose(found.sum(dim=1), torch.ones(7))
    expected = (probabilities * values).sum(dim=1)
    assert torch.allclose(found @ critics.get_buffer("values"), expected, atol=1e-5)
    assert beyond == 0
    _, beyond = critics.project(probabilities, values + 100.0)
    assert beyond.item() == pytest.approx(1.0)


def test_probabilities_go_to_the_nearest_atoms_as_by_a_plain_loop() -> None:
    critics, draw = make_critics(), np.random.default_rng(1)
    atoms = critics.get_buffer("values").numpy()
    shares = draw.dirichlet(np.ones(11), size=7)
    rewards, discounts = draw.normal(0, 3, size=7), draw.choice([0.0, 0.9, 0.81], size=7)
    expected, beyond = np.zeros((7, 11)), 0.0
    for row in range(7):
        for share, atom in zip(shares[row], atoms, strict=True):
            value = rewards[row] + discounts[row] * atom
            beyond += share / 7 * (abs(value) > 5.0)
            place = (np.clip(value, -5.0, 5.0) + 5.0) / (atoms[1] - atoms[0])
            for near in range(11):
                expected[row, near] += share * max(0.0, 1.0 - abs(place - near))
    values = torch.from_numpy(rewards[:, None] + discounts[:, None] * atoms)
    found, clipped = critics.project(torch.from_numpy(shares), values)
    assert found.numpy() == pytest.approx(expected, abs=1e-6)
    assert clipped.item() == pytest.approx(beyond)
    assert 0 < beyond < 1


def test_a_frozen_critic_gives_the_same_and_gets_no_gradient() -> None:
    critics = make_critics()
    seen, actions = torch.randn(4, 3), torch.randn(4, 1, requires_grad=True)
    logits = critics.logits(seen, actions, is_frozen=True)
    assert torch.equal(logits, critics.logits(seen, actions))
    logits.square().sum().backward()
    assert actions.grad is not None
    assert all(parameter.grad is None for parameter in critics.parameters())
    alone = make_critics(count=1)
    for own, both in zip(alone.parameters(), critics.parameters(), strict=True):
        own.data.copy_(both.data[1:])
    assert torch.allclose(
        alone.logits(seen, actions)[0], critics.logits(seen, actions)[1], atol=1e-6
    )


def test_log_probabilities_are_those_of_the_transformed_distribution() -> None:
    env = build_task(TASK, "native", "cpu", num_envs=8)
    groups, limit = {"actor": ["actor"]}, torch.full((env.num_actions,), 2.0)
    actor = SquashedActor(env.get_observations(), groups, limit, (16,), (-5.0, 2.0))
    latent = actor.get_latent(env.get_observations())
    mean, log_std = actor.moments(latent)
    torch.manual_seed(3)
    actions, log_probs = actor.sample(latent)
    normal = torch.distributions.Normal(mean, log_std.exp())
    known = torch.distributions.TransformedDistribution(
        normal, torch.distributions.TanhTransform(cache_size=0)
    )
    assert torch.allclose(known.log_prob(actions).sum(dim=1), log_probs, atol=1e-3)
    assert torch.equal(actor(env.get_observations()), limit * torch.tanh(mean))


def test_a_policy_can_have_the_largest_entropy_that_is_aimed_at(tmp_path: Path) -> None:
    runner, _ = begin(tmp_path, agent(1, target_std=0.47))
    actor, seen = runner.alg.actor, torch.zeros(200_000, 5)
    last = actor.mlp[-1]
    last.weight.data.zero_()
    found = []
    for raw in torch.linspace(0.35, 0.45, 5).tolist():  # Deviations before tanh: 0.72 to 0.98.
        last.bias.data.copy_(torch.tensor([0.0, raw]))
        _, log_probs = actor.sample(seen)
        found.append(-log_probs.mean().item())
    assert max(found) > runner.alg.target_entropy


def test_an_exported_policy_acts_as_its_checkpoint_up_to_the_limits(tmp_path: Path) -> None:
    env = build_task("go1-velocity-flat", "native", "cpu", num_envs=2)
    seen, groups = env.get_observations(), {"actor": ["actor"]}
    limit = limits_of(env)
    actor: Any = SquashedActor(seen, groups, limit, (16,), (-5.0, 2.0))
    actor.mlp[-1].bias.data.fill_(20.0)
    size = seen["actor"].shape[1]
    graph = make_graph(actor, [size], "onnx", "{}")
    difference, tolerated = compare(actor, [size], "onnx", graph)
    assert difference <= tolerated <= 2e-5
    session = onnxruntime.InferenceSession(graph)
    found: Any = session.run(None, {"observations": seen["actor"].numpy()})[0]
    assert len({*limit.tolist()}) > 1
    assert found == pytest.approx(limit.expand(2, -1).numpy())


@pytest.mark.parametrize("limit", [0.0, -1.0, math.inf, math.nan, torch.ones(3)])
def test_limits_of_actions_that_are_none_are_refused(
    limit: float | torch.Tensor, tmp_path: Path
) -> None:
    env = build_task(TASK, "native", "cpu", num_envs=8)
    env.action_limit = limit
    text = r"action_limit is .*; for sac it must be a finite number above 0, or 1 of them"
    with pytest.raises(UserError, match=text):
        Runner(env, agent(1), "cpu", 1, FOUND.load)


@pytest.mark.parametrize("saves", [True, False])
def test_a_resumed_run_goes_on_as_if_it_had_not_ended(
    saves: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    whole.mkdir()
    parts.mkdir()
    train(*begin(whole, agent(8, save_replay=saves)))
    first, _ = begin(parts, agent(5, save_replay=saves))
    train(first, Checkpointer(first, TASK, parts, None))
    assert first.alg.replay.count == first.alg.replay.length, "the ring has wrapped"
    runner, checkpointer = begin(parts, agent(8, save_replay=saves))
    seed_everything(99)
    assert checkpointer.resume(parts / "model_5.pt") == []
    runner.alg.begin()
    found = capsys.readouterr()
    assert ("replay begins with 0 steps" in found.out + found.err) != saves
    rows = train(runner, checkpointer)
    one, other = load(whole, 8), load(parts, 8)
    if saves:
        assert same(one, other)
    else:  # Updates wait until the policy has filled the replay again.
        assert not same(one["actor_state_dict"], other["actor_state_dict"])
        assert [row["loss/critic"] > 0 for row in rows] == [False, True, True]


def test_critics_learn_to_predict_a_known_return(tmp_path: Path) -> None:
    config = agent(60, gamma=0.5, learning_rate=3e-3, n_step=1, replay_size=8 * 8 * 16)
    runner, checkpointer = begin(tmp_path, config)
    (name,) = runner.env.reward_names
    runner.env.rewards = lambda: {name: torch.ones(8)}
    rows = train(runner, checkpointer)
    predicted = rows[-1]["loss/q"] * rows[-1]["loss/reward_scale"]
    assert predicted == pytest.approx(2.0, rel=0.1)  # 1 + 0.5 + 0.25 ...


def test_losses_of_the_actor_are_means_over_its_own_updates(tmp_path: Path) -> None:
    runner, checkpointer = begin(tmp_path, agent(6, updates_per_transition=1 / 64))
    learn, totals = runner.alg._learn_actor, list[float]()

    def note() -> None:
        before = runner.alg.losses.totals[1].item()
        learn()
        totals.append(runner.alg.losses.totals[1].item() - before)

    runner.alg._actors_step = note
    found = [row["loss/actor"] for row in train(runner, checkpointer)]
    assert runner.alg.num_updates == 1
    first, second, third = totals  # Every second update is one of the actor too.
    assert found == pytest.approx([0.0, first, first, second, second, third])


@pytest.mark.parametrize("first", [1e-3, 0.25e-3])
def test_learning_rates_fall_along_a_cosine_also_one_that_was_set(
    tmp_path: Path, first: float
) -> None:
    runner, checkpointer = begin(tmp_path, agent(4, learning_rate_end_factor=0.2))
    runner.alg.set_learning_rate(first)
    found = [row["learning_rate"] for row in train(runner, checkpointer)]
    shares = [0.2 + 0.4 * (1.0 + math.cos(math.pi * part / 4)) for part in range(4)]
    assert found == pytest.approx([first * share for share in shares])


def test_a_fork_learns_with_the_numbers_that_it_is_given(tmp_path: Path) -> None:
    falling: Any = {"learning_rate_end_factor": 0.1, "noise_memory": 16}
    train(*begin(tmp_path, agent(4, **falling)))
    more: Any = {"learning_rate": 2e-3, "noise_memory": 4, "support": 50.0}
    runner, checkpointer = begin(tmp_path, agent(8, **falling | more))
    assert checkpointer.resume(tmp_path / "model_4.pt") == []
    rows = train(runner, checkpointer)
    shares = [0.1 + 0.45 * (1.0 + math.cos(math.pi * part / 8)) for part in range(4, 8)]
    assert [row["learning_rate"] for row in rows] == pytest.approx([2e-3 * x for x in shares])
    for critics in (runner.alg.critic, runner.alg.target):
        assert critics.values[[0, -1]].tolist() == [-50.0, 50.0]


def test_a_hidden_layer_may_have_the_size_of_the_input(tmp_path: Path) -> None:
    sizes: Any = {"actor_hidden_dims": (7, -1), "critic_hidden_dims": (-1,)}
    runner, checkpointer = begin(tmp_path, agent(2, **sizes))
    assert [layer.out_features for layer in runner.alg.actor.mlp[::3]] == [7, 5, 2]
    assert runner.alg.critic.weights[0].shape == (2, 6, 6)
    train(runner, checkpointer)


def test_a_rate_that_is_set_is_in_the_metrics_also_after_a_resume(tmp_path: Path) -> None:
    runner, checkpointer = begin(tmp_path, agent(2))
    runner.alg.set_learning_rate(0.25e-3)
    assert [row["learning_rate"] for row in train(runner, checkpointer)] == [0.25e-3] * 2
    runner, checkpointer = begin(tmp_path, agent(3))
    checkpointer.resume(tmp_path / "model_2.pt")
    assert [row["learning_rate"] for row in train(runner, checkpointer)] == [0.25e-3]


def test_samples_that_do_not_count_leave_the_temperature_as_it_is(tmp_path: Path) -> None:
    runner, _ = begin(tmp_path, agent(1))
    alg, found = runner.alg, []
    for weight in (1.0, 0.5, 0.0):
        alg._rest[-1].fill_(weight)
        torch.manual_seed(1)
        alg._learn_actor()
        found.append(alg.temperature["log"].grad.item())
    assert found == pytest.approx([found[0], found[0] / 2, 0.0])
    assert found[0] != 0


@pytest.mark.parametrize("is_captured", [False, True])
def test_numbers_that_are_not_finite_are_explained_where_the_ring_begins_again(
    is_captured: bool, tmp_path: Path
) -> None:
    capture = CudaGraphStub().capture if is_captured else None  # It is then found after updates.
    runner, checkpointer = begin(tmp_path, agent(4), capture)
    rewards: Any = runner.env.rewards
    steps, last = iter(range(100)), runner.alg.replay.length - 1

    def spoil() -> dict[str, torch.Tensor]:
        factor = torch.nan if next(steps) == last else 1.0
        return {name: values * factor for name, values in rewards().items()}

    runner.env.rewards = spoil
    with pytest.raises(DivergedError, match="is not finite in 8 of 8 worlds"):
        train(runner, checkpointer)


def test_updates_wait_for_the_steps_of_a_window_and_the_replay_holds_the_warm_up(
    tmp_path: Path,
) -> None:
    config = replace(agent(5, warm_up=1, n_step=3), num_steps_per_env=1)
    rows = train(*begin(tmp_path, config))
    assert [row["loss/critic"] > 0 for row in rows] == [False, False, False, True, True]
    text = r"is {}, which holds {} transitions in whole .* must be more than the {} of"
    with pytest.raises(UserError, match=text.format(192, 192, 192)):
        begin(tmp_path, agent(1, warm_up=192))
    with pytest.raises(UserError, match=text.format(192, 192, 400)):
        begin(tmp_path, agent(1, n_step=50))
    with pytest.raises(UserError, match=text.format(63, 0, 64)):
        begin(tmp_path, agent(1, replay_size=63))


def test_iterations_that_share_an_update_make_no_more_of_them(tmp_path: Path) -> None:
    runner, checkpointer = begin(tmp_path, agent(9, updates_per_transition=0.5 / 64))
    losses = [row["loss/critic"] for row in train(runner, checkpointer)]
    shown = losses[next(i for i, loss in enumerate(losses) if loss > 0) :]
    assert runner.alg.updates == len({*shown}) == 4
    assert len(shown) > 4, "an iteration without updates shows the newest losses"
    assert all(shown)


def test_a_run_that_ends_before_its_first_update_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for iterations, share, expected in ((1, 0.25, 1), (2, 0.25, 0), (9, 1e-4, 1), (9, 1e-2, 0)):
        runner, _ = begin(tmp_path, agent(iterations, updates_per_transition=share))
        runner.alg.begin()
        found = capsys.readouterr()
        assert (found.out + found.err).count("this run ends before, and learns nothing") == expected


@pytest.mark.parametrize("length", [1, 2])
def test_episodes_of_one_step_are_warned_of(
    length: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runner, checkpointer = begin(tmp_path, agent(3))
    runner.env.max_episode_length = length
    runner.alg.begin()
    found = capsys.readouterr()
    learns_nothing = length == 1
    assert ("an episode has one step" in found.out + found.err) == learns_nothing
    assert (train(runner, checkpointer)[-1]["loss/critic"] == 0) == learns_nothing


def test_updates_by_graphs_give_what_calls_give(tmp_path: Path) -> None:
    found = []
    for captures in (True, False):
        stub = CudaGraphStub()
        runner, checkpointer = begin(tmp_path, agent(5), capture=stub.capture if captures else None)
        train(runner, checkpointer)
        assert len(stub.graphs) == (4 if captures else 0)
        found.append([p.tolist() for n in runner.alg.networks().values() for p in n.parameters()])
    assert found[0] == found[1]


def test_clipped_returns_are_warned_of_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runner, checkpointer = begin(tmp_path, agent(30, support=0.01))
    runner.alg.rewards.scale = runner.alg.rewards.scale.clone()  # It stays at 1.
    train(runner, checkpointer)
    said = capsys.readouterr()
    assert (said.out + said.err).count("raise --agent.algorithm.support, which is 0.01") == 1


def test_a_row_has_what_the_policy_does(tmp_path: Path) -> None:
    runner, checkpointer = begin(tmp_path, agent(4))
    row = train(runner, checkpointer)[-1]
    parts = runner.alg.replay.newest(8)
    actions = torch.cat([runner.alg.replay.actions[part] for part in parts])
    assert row["saturated_actions"] == pytest.approx(float((actions.abs() > 0.99).float().mean()))
    changes = (actions[1:] - actions[:-1]).abs().mean()
    assert row["action_rate"] == pytest.approx(float(changes), rel=1e-5)
    assert row["loss/updates_per_second"] > 0


def test_gpus_bring_their_numbers_where_nobody_gave_others() -> None:
    task = FOUND
    config = task.defaults("sac")
    assert (config.env.num_envs, config.agent.algorithm) == (96, SACConfig())
    on_gpu = task.with_usual_on_gpu(config, {"agent.algorithm.batch_size"})
    usual = by_dotted_name(to_dict(on_gpu))
    for name, value in SACConfig.usual_on_gpu.items():
        given = name == "agent.algorithm.batch_size"
        expected = 256 if given else value
        assert usual[name] == expected, name
    assert task.with_usual_on_gpu(task.defaults(), ()) == task.defaults()


@pytest.mark.parametrize(
    ("length", "share"),
    [
        ({"total_steps": 300_000}, 1.0),
        ({"total_steps": 300_001}, 0.25),
        ({"agent": {"max_iterations": 1041}}, 1.0),  # Of 288 transitions each.
        ({"agent": {"max_iterations": 1042}}, 0.25),
        ({"total_steps": 1_000_000, "agent": {"algorithm": {"updates_per_transition": 2.0}}}, 2.0),
    ],
)
def test_a_long_run_makes_fewer_updates_for_each_transition(
    length: dict[str, Any], share: float
) -> None:
    config = from_dict(FOUND.defaults("sac"), {"gpu_ids": None, **length})
    plan = make_plan(FOUND, config, [choose_devices(config, {})], start=NEW)
    assert plan.config.agent.algorithm == SACConfig(updates_per_transition=share)


def test_ppo_takes_of_a_file_of_sacs_what_it_knows_itself() -> None:
    data = {"agent": {"algorithm": {"gamma": 0.9, "n_step": 3}}}
    assert from_file(FOUND, data, "it").agent.ppo == replace(FOUND.task.agent.ppo, gamma=0.9)


def test_a_fork_has_the_replay_and_a_policy_of_another_kind_is_refused(
    run: Run, tmp_path: Path
) -> None:
    words = ("train", "cartpole-balance", "--env.num-envs", "16", "--run-dir")
    sac = ("--agent.algorithm.name", "sac", "--agent.algorithm.warm-up", "64",
           "--agent.algorithm.updates-per-transition", "0.05")  # fmt: skip
    assert run(*words, "ppo", "--max-iterations", "1").returncode == 0
    done = run(*words, "sac", *sac, "--init-from", "ppo")
    assert done.returncode == 2
    assert "ppo and sac have different policies" in done.stderr
    assert not (tmp_path / "sac").exists()
    assert run(*words, "sac", *sac, "--max-iterations", "2").returncode == 0
    done = run(*words, "other", "--resume", "ppo", "--fork", *sac, "--max-iterations", "2")
    assert (done.returncode, "begin a new run." in done.stderr) == (2, True), done.stderr
    pupil = ("--agent.algorithm.name", "distillation", "--teacher", "sac")
    done = run(*words, "other", *pupil)
    assert (done.returncode, "a run of sac, whose" in done.stderr) == (2, True), done.stderr
    assert not (tmp_path / "other").exists()
    done = run(*words, "fork", "--resume", "sac", "--fork", "--max-iterations", "3")
    assert done.returncode == 0, done.stderr
    assert "not kept" not in done.stdout + done.stderr
    assert "updates wait until" not in done.stdout + done.stderr
    assert [file.name for file in tmp_path.glob("fork/checkpoints/rank*")] == ["rank0_3.pt"]


def test_a_run_goes_on_in_place_whether_its_replay_is_saved_or_not(
    run: Run, tmp_path: Path
) -> None:
    words = ("train", "cartpole-balance", "--agent.algorithm.name", "sac", "--env.num-envs", "16",
             "--agent.algorithm.warm-up", "64", "--agent.algorithm.updates-per-transition", "0.05",
             "--run-dir", "it", "--max-iterations")  # fmt: skip
    assert run(*words, "2").returncode == 0
    for iterations, flag, files in (
        ("3", "--agent.algorithm.no-save-replay", []),
        ("4", "--agent.algorithm.save-replay", ["rank0_4.pt"]),
    ):
        done = run(*words, iterations, flag)
        assert done.returncode == 0, done.stderr
        # The checkpoint of iteration 2 holds the replay, and that of iteration 3 does not.
        assert ("updates wait until" in done.stdout + done.stderr) == (iterations == "4")
        assert [file.name for file in tmp_path.glob("it/checkpoints/rank*")] == files


def test_what_the_length_of_a_run_decides_stays_where_a_file_leaves_it_open(
    run: Run, tmp_path: Path
) -> None:
    (tmp_path / "it.yaml").write_text(
        "env: {num_envs: 16}\n"
        "agent: {algorithm: {name: sac, warm_up: 100, batch_size: 8, updates_per_transition: null}}"
    )
    words = "train", "cartpole-balance", "--config", "it.yaml", "--max-iterations"
    done = run(*words, "2", "--seeds", "1", "--run-dir", "group")
    assert done.returncode == 0, done.stderr
    assert "updates_per_transition: 1.0" in (tmp_path / "group/config.yaml").read_text()
    done = run("train", "--resume", "group", "--max-iterations", "3")
    assert done.returncode == 0, done.stdout + done.stderr
    # A trial of a sweep goes on like this. As a new run it would be a long one.
    done = run(*words, "6251", "--run-dir", "group/seed_1", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "updates" not in done.stdout


def test_networks_are_taken_whatever_the_layers_of_ppo_would_be(tmp_path: Path) -> None:
    train(*begin(tmp_path, agent(1)))
    other = replace(agent(1), actor=ActorConfig(hidden_dims=(8,), activation="relu"))
    runner, _ = begin(tmp_path, other)
    path = tmp_path / "model_1.pt"
    notes = take_networks(runner, path, read_checkpoint(path), "it")
    assert notes[0].startswith("actor: taken")


def test_a_replay_that_does_not_fit_is_refused_with_the_number_that_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of 50 steps of 8 environments: two groups of 5 observations, action, reward and end.
    memory = (4 * (5 + 5 + 1 + 1) + 1) * 8 * 50
    monkeypatch.setattr("mjfleet.rl.sac.sac.free_memory", lambda device: memory)
    with pytest.raises(UserError, match=r"is 500, which takes .* at most 400 fit\."):
        begin(tmp_path, agent(1, replay_size=500))
    begin(tmp_path, agent(1, replay_size=400))


def test_its_numbers_are_flags_and_those_of_networks_that_it_lacks_are_refused(
    run: Run, tmp_path: Path
) -> None:
    words = ("train", "cartpole-balance", "--agent.algorithm.name", "sac", "--dry-run")
    done = run(*words, "--agent.algorithm.n-step", "3", "--agent.algorithm.batch-size", "64")
    assert done.returncode == 0, done.stderr
    for flag in ("--agent.actor.hidden-dims", "--agent.critic.hidden-dims"):
        done = run(*words, flag, "8")
        assert (done.returncode, "has no effect" in done.stderr) == (2, True)
    for flag, value in (("obs-groups.rnd-state", "actor"), ("torch-compile-mode", "default")):
        done = run(*words, f"--agent.{flag}", value)
        assert (done.returncode, "has no effect" in done.stderr) == (2, True), done.stderr
    for flag, value, allowed in (
        ("target-std", "0.48", "between 0.001 and 0.47"),
        ("log-std-min", "-inf", "between -20 and 10"),
        ("log-std-max", "-5", "more than --agent.algorithm.log-std-min, -5"),
        ("tau", "0", "above 0, at most 1"),
        ("updates-per-transition", "1e9", "greater than 0, at most 100"),
        ("batch-size", "1000001", "at most --agent.algorithm.replay-size, 1000000"),
    ):
        done = run(*words, f"--agent.algorithm.{flag}", value)
        assert (done.returncode, allowed in done.stderr) == (2, True), done.stderr
    done = run(*words, "--agent.algorithm.clip-param", "0.1")
    assert (done.returncode, "there is no flag" in done.stderr) == (2, True)
    assert not list(tmp_path.glob("logs/*"))
