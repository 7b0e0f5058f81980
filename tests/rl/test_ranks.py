"""Several ranks that learn together: two real processes, connected by gloo."""

import copy
import os
import pickle
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from rsl_rl import algorithms
from torch.nn.parallel import DistributedDataParallel

from mjfleet.config import AgentConfig, from_dict
from mjfleet.config.agent_config import TeacherConfig
from mjfleet.env import Env, EnvShard
from mjfleet.loggers.logger import Row
from mjfleet.rl.algorithm import Algorithm
from mjfleet.rl.checkpoints.contents import Checkpointer
from mjfleet.rl.checks.replicas import OutOfStepError
from mjfleet.rl.divergence import DivergedError
from mjfleet.rl.evaluation.evaluator import Evaluator
from mjfleet.rl.learner import Learner, Setup, Step
from mjfleet.rl.libraries.rsl_rl import Distillation
from mjfleet.rl.libraries.skrl import SkrlPPO
from mjfleet.rl.networks import rsl_rl_config
from mjfleet.rl.ppo import PPO
from mjfleet.rl.ranks.collectives import PIECE_BYTES, Collectives
from mjfleet.rl.runner import Runner
from mjfleet.runs.checkpoints import BEST
from mjfleet.sim.deferred import read

from ..conftest import PATIENCE, REPOSITORY, WarmCommand
from ..env.test_env import BUNDLED, CartpoleEnv, build_cartpole, build_env, build_task
from ..helpers.cuda_graph_stub import CudaGraphStub, refuse

WORLD_SIZE = 2
FOUND = BUNDLED["cartpole-balance"]


def agent(**algorithm: Any) -> AgentConfig:
    return agent_with(algorithm)


def agent_with(algorithm: dict[str, Any], **network: Any) -> AgentConfig:
    network = {"obs_normalization": True, "hidden_dims": [16, 8], **network}
    actor = network | {"distribution": {"learn_std": not algorithm.pop("constant_std", False)}}
    return from_dict(
        FOUND.task.agent,
        {
            "num_steps_per_env": 8,
            "max_iterations": 3,
            "actor": actor,
            "critic": network,
            "algorithm": {"num_learning_epochs": 2, **algorithm},
        },
    )


class Ranks:
    """What a rank needs in the functions below."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.collectives = Collectives(rank, WORLD_SIZE)

    def runner(self, config: AgentConfig, **parts: Any) -> Runner:
        """Networks drawn alike on every rank only once `train` has begun."""
        torch.manual_seed(self.rank)
        env = build_task("cartpole-balance", "native", "cpu", num_envs=8)
        return Runner(env, config, "cpu", 1, FOUND.load, self.collectives, **parts)

    def algorithm(self, kind: type[Learner] | None, config: AgentConfig) -> Any:
        """An algorithm with the same networks on every rank and a rollout that differs.

        None stands for rsl_rl's stock PPO.
        """
        env = build_task("cartpole-balance", "native", "cpu", num_envs=16)
        torch.manual_seed(1)
        if kind is None:
            cfg = rsl_rl_config(config, FOUND.load)
            cfg["multi_gpu"] = {"global_rank": self.rank, "world_size": WORLD_SIZE}
            first = env.get_observations()
            alg: Any = algorithms.PPO.construct_algorithm(first, env, cfg, "cpu")
        else:
            setup = Setup(env, config, "cpu", 1, FOUND.load, self.collectives)
            alg = kind(setup)
        alg.train_mode()
        self.env = env
        torch.manual_seed(100 + self.rank)
        return alg

    def rollout(self, alg: Any, steps: int = 8) -> None:
        with torch.inference_mode():
            after = self.env.get_observations()
            for _ in range(steps):
                before, actions = after, alg.act(after)
                after, rewards, dones, extras = self.env.step(actions)
                rewards = rewards + self.rank
                if isinstance(alg, Learner):
                    alg.record(before, actions, Step(after, rewards, dones, extras["time_outs"]))
                else:
                    alg.process_env_step(after, rewards, dones, extras)
            if not isinstance(alg, Learner):
                alg.compute_returns(after)

    def learn(self, kind: type[Learner] | None, config: AgentConfig, updates: int = 3) -> Any:
        alg = self.algorithm(kind, config)
        for _ in range(updates):
            self.rollout(alg)
            read(alg.learn()) if isinstance(alg, Learner) else alg.update()
        return alg


def weights(alg: Any) -> dict[str, torch.Tensor]:
    modules = {"actor": alg.actor, "critic": alg.critic} | ({"rnd": alg.rnd} if alg.rnd else {})
    return {
        f"{name}.{key}": value.clone()
        for name, module in modules.items()
        for key, value in module.state_dict().items()
    }


Part = Callable[[Ranks, str], dict[str, Any]]
Found = list[dict[str, Any]]
"""What each part returned, by its name, on every rank."""


def enter(rank: int, folder: str, wanted: Sequence[Part]) -> None:
    """The main function of a rank's process."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=WORLD_SIZE,
        timeout=timedelta(seconds=PATIENCE),
    )
    try:
        parts = {part.__name__: part(Ranks(rank), folder) for part in wanted}
        torch.save(parts, Path(folder, f"{rank}.pt"))
    finally:
        dist.destroy_process_group()


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, warm: "subprocess.Popen[str]") -> Found:
    """What the functions of PARTS returned."""
    return run_ranks(warm, tmp_path_factory.mktemp("ranks"), PARTS)


@pytest.fixture(scope="module")
def of_libraries(tmp_path_factory: pytest.TempPathFactory, warm: "subprocess.Popen[str]") -> Found:
    """What the functions of OF_LIBRARIES returned; their imports take long."""
    return run_ranks(warm, tmp_path_factory.mktemp("libraries"), OF_LIBRARIES)


ENTER = f"""
import multiprocessing, pickle, sys
from pathlib import Path
sys.path.insert(0, {str(REPOSITORY)!r})
enter, *arguments = pickle.loads(Path("call").read_bytes())
context = multiprocessing.get_context("fork")
ranks = [context.Process(target=enter, args=(rank, *arguments)) for rank in range({WORLD_SIZE})]
for rank in ranks:
    rank.start()
for rank in ranks:
    rank.join()
sys.exit(any(rank.exitcode for rank in ranks))
"""
"""Imports what the ranks need, and forks them."""


def run_ranks(warm: "subprocess.Popen[str]", folder: Path, parts: Sequence[Part]) -> Found:
    """Call the functions one after the other, on two ranks at once."""
    (folder / "enter.py").write_text(ENTER)
    (folder / "call").write_bytes(pickle.dumps((enter, str(folder), parts)))
    environ = os.environ | {
        "GLOO_SOCKET_IFNAME": "lo",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",  # What is compiled here runs once.
    }
    command = WarmCommand(warm, folder, "python", "enter.py", environ=environ)
    texts = command.communicate()
    assert command.returncode == 0, texts
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(WORLD_SIZE)]


LENGTHS = (2 * PIECE_BYTES + 5, 3)
"""Bytes that each rank sends: several pieces, and less than one."""


def exchange(ranks: Ranks, folder: str) -> dict[str, Any]:
    """A text, or none, and bytes of every rank."""
    collectives, rank = ranks.collectives, ranks.rank
    data = bytes(i % 251 for i in range(LENGTHS[rank]))
    return {
        "texts": collectives.all_gather_text("né\n" if rank else None),
        "bytes": collectives.gather_bytes(data),
    }


def test_texts_and_bytes_of_any_length_arrive(found: list[dict[str, Any]]) -> None:
    first, second = (rank["exchange"] for rank in found)
    assert first["texts"] == second["texts"] == [None, "né\n"]
    assert first["bytes"] == [bytes(i % 251 for i in range(length)) for length in LENGTHS]
    assert second["bytes"] is None


VARIANTS: dict[str, dict[str, Any]] = {
    "fixed": {"schedule": "fixed"},
    "rnd": {"schedule": "fixed", "rnd_cfg": {"weight": 0.5, "state_normalization": True}},
    "constant deviation": {"schedule": "fixed", "optimizer": "adamw", "constant_std": True},
    "mixed precision": {"schedule": "fixed", "use_mixed_precision": True},
    "adaptive": {"schedule": "adaptive", "desired_kl": 0.002},
    "recurrent, adaptive": {"schedule": "adaptive", "desired_kl": 0.002},
}


def learn_fast(ranks: Ranks, folder: str) -> dict[str, Any]:
    """One update by the fast path and by rsl_rl's, normalised and not."""
    found = {}
    for name in ("fixed", "adaptive"):
        for normalised in (False, True):
            config = agent_with(
                {"normalize_advantage_per_mini_batch": True, **VARIANTS[name]},
                obs_normalization=normalised,
            )
            ours, theirs = (ranks.learn(kind, config, updates=1) for kind in (PPO, None))
            rates = ours.learning_rate, theirs.learning_rate
            found[f"{name}, normalised: {normalised}"] = (weights(ours), weights(theirs), rates)
    return found


def test_the_fast_update_is_that_of_rsl_rl(found: list[dict[str, Any]]) -> None:
    first, second = (rank["learn_fast"] for rank in found)
    for name, (ours, theirs, rates) in first.items():
        again, _, other_rates = second[name]
        assert all(torch.equal(ours[key], again[key]) for key in ours), name
        assert rates[0] == other_rates[0]
        assert rates[0] == pytest.approx(rates[1], rel=1e-6)
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5, msg=lambda m, n=name: n + m)


def learn_both_ways(ranks: Ranks, folder: str) -> dict[str, Any]:
    found = {}
    for name, changes in VARIANTS.items():
        # Normalised in each minibatch, advantages are the same for both.
        network = {"class_name": "RNNModel", "rnn_hidden_dim": 8} if "recurrent" in name else {}
        config = agent_with({"normalize_advantage_per_mini_batch": True, **changes}, **network)
        ours, theirs = ranks.learn(Algorithm, config), ranks.learn(None, config)
        found[name] = (weights(ours), weights(theirs), ours.learning_rate, theirs.learning_rate)
    return found


def test_the_update_is_that_of_rsl_rl(found: list[dict[str, Any]]) -> None:
    first, second = (rank["learn_both_ways"] for rank in found)
    for name in VARIANTS:
        ours, theirs, rate, their_rate = first[name]
        again, _, other_rate, _ = second[name]
        assert all(torch.equal(ours[key], again[key]) for key in ours), name
        assert rate == other_rate
        if "adaptive" in name:  # rsl_rl rounds the learning rate to float32 on its way.
            assert rate != agent().ppo.learning_rate
            assert rate == pytest.approx(their_rate, rel=1e-6)
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
        else:
            assert all(torch.equal(ours[key], theirs[key]) for key in ours), name


def learn_with_libraries(ranks: Ranks, folder: str) -> dict[str, Any]:
    """By rates that adapt; and, where all do the same, beside rsl_rl."""
    from mjfleet.rl.libraries.rl_games import RlGamesPPO
    from mjfleet.rl.libraries.skrl_jax import JaxPPO

    adaptive = agent(schedule="adaptive", desired_kl=0.002)
    kinds = (SkrlPPO, JaxPPO, RlGamesPPO)
    algs = {kind.__name__: ranks.learn(kind, adaptive, updates=2) for kind in kinds}
    alike = agent(schedule="fixed", num_mini_batches=1, use_clipped_value_loss=False)
    return {
        "adaptive": {name: (weights(alg), alg.learning_rate) for name, alg in algs.items()},
        "alike": [
            weights(ranks.learn(kind, alike, updates=1)) for kind in (SkrlPPO, RlGamesPPO, None)
        ],
    }


@pytest.mark.slow
def test_ranks_that_learn_with_libraries_stay_the_same(of_libraries: Found) -> None:
    first, second = (rank["learn_with_libraries"] for rank in of_libraries)
    for name, (ours, rate) in first["adaptive"].items():
        again, other_rate = second["adaptive"][name]
        assert all(torch.equal(ours[key], again[key]) for key in ours), name
        assert rate == other_rate != agent().ppo.learning_rate
    *ours, theirs = first["alike"]
    for each in ours:
        torch.testing.assert_close(each, theirs, rtol=1e-4, atol=1e-5)


class Both(torch.nn.Module):
    """Actor and critic as one module, for DistributedDataParallel."""

    def __init__(self, alg: Any) -> None:
        super().__init__()
        self.actor, self.critic = alg.actor, alg.critic

    def forward(self, observations: Any) -> torch.Tensor:
        action = self.actor(observations, stochastic_output=True)
        log_prob = self.actor.get_output_log_prob(action.detach())
        return log_prob.mean() + self.critic(observations).square().mean()


def follow_gradients(ranks: Ranks, folder: str) -> dict[str, Any]:
    """Steps by our reduction, with things on the way that could part gradients and buffer."""
    found: dict[str, Any] = {}

    def gradients(module: torch.nn.Module) -> list[torch.Tensor | None]:
        return [None if p.grad is None else p.grad.clone() for p in module.parameters()]

    for fused in (False, True):
        flat = ranks.algorithm(Algorithm, agent(schedule="fixed"))
        other = ranks.algorithm(None, agent(schedule="fixed"))
        ddp = DistributedDataParallel(Both(other))
        both = Both(flat)
        for alg in (flat, other):
            for group in alg.optimizer.param_groups:
                group["fused"] = fused
        observations = ranks.env.get_observations()
        states: dict[Any, Any] = {}
        for step in range(6):
            observations = ranks.env.step(torch.randn(16, 1))[0]
            for module, alg in ((both, flat), (ddp, other)):
                torch.manual_seed(1000 * step + ranks.rank)
                if step == 2:
                    module.zero_grad(set_to_none=True)
                elif step == 3:
                    alg.load(states[alg], None, strict=True)
                    alg.optimizer.zero_grad()
                else:
                    alg.optimizer.zero_grad()
                module(observations).backward()
                if alg is flat:
                    alg.reduce_parameters()
                for part in (alg.actor, alg.critic):
                    torch.nn.utils.clip_grad_norm_(part.parameters(), 0.5)
                alg.optimizer.step()
                if step == 0:
                    states[alg] = copy.deepcopy(alg.save())
        found[f"fused={fused}"] = (weights(flat), weights(other))
        grads = [p.grad for p in both.parameters() if p.grad is not None]
        found[f"buffers {fused}"] = len({grad.untyped_storage().data_ptr() for grad in grads})
        # A step in which each rank has a gradient for one network only.
        both.zero_grad(set_to_none=True)
        network = flat.actor if ranks.rank == 0 else flat.critic
        network(observations).mean().backward()
        own = gradients(both)
        flat.reduce_parameters()
        found[f"reduced {fused}"] = (gradients(both), own)
    return found


def test_gradients_stay_in_one_buffer_and_steps_are_those_of_ddp(
    found: list[dict[str, Any]],
) -> None:
    first, second = (rank["follow_gradients"] for rank in found)
    for fused in (False, True):
        ours, ddps = first[f"fused={fused}"]
        torch.testing.assert_close(ours, ddps, rtol=1e-5, atol=1e-6)
        assert all(torch.equal(ours[k], v) for k, v in second[f"fused={fused}"][0].items())
        assert first[f"buffers {fused}"] == 1
        reduced, own = first[f"reduced {fused}"]
        for mean, a, b in zip(reduced, own, second[f"reduced {fused}"][1], strict=True):
            assert (a is None) or (b is None)
            zero = torch.zeros_like(mean)
            expected = ((zero if a is None else a) + (zero if b is None else b)) / 2
            assert torch.equal(mean, expected)


def learn_in_groups(ranks: Ranks, folder: str) -> dict[str, Any]:
    """Update by GRPO with other rewards on each rank, and sum what each would learn alone."""
    config = agent(name="grpo", schedule="fixed", optimizer="sgd", num_learning_epochs=1,
                   num_mini_batches=1, max_grad_norm=1e6, learning_rate=0.1)  # fmt: skip
    before = weights(ranks.algorithm(PPO, config))
    together = weights(ranks.learn(PPO, config, updates=1))
    ranks.collectives = Collectives()
    alone = weights(ranks.learn(PPO, config, updates=1))
    ranks.collectives = Collectives(ranks.rank, WORLD_SIZE)
    return {"before": before, "together": together, "alone": alone}


def test_groups_of_all_ranks_share_a_step(found: list[dict[str, Any]]) -> None:
    first, second = (rank["learn_in_groups"] for rank in found)
    for key, value in first["together"].items():
        assert torch.equal(value, second["together"][key])
        if "normalizer" in key:
            continue
        mean = (first["alone"][key] + second["alone"][key]) / 2
        torch.testing.assert_close(value, mean, rtol=1e-5, atol=1e-6)
        is_learned = key.startswith("actor")
        assert torch.equal(first["alone"][key], second["alone"][key]) != is_learned, key
        assert torch.equal(value, first["before"][key]) != is_learned, key


def count_reductions(ranks: Ranks, folder: str) -> dict[str, int]:
    """How often each of our algorithms reduces its gradients in one update."""
    return reductions(ranks, (PPO, Algorithm))


def count_of_libraries(ranks: Ranks, folder: str) -> dict[str, int]:
    """The same of other libraries."""
    from mjfleet.rl.libraries.skrl_jax import JaxPPO

    return reductions(ranks, (SkrlPPO, JaxPPO))


def reductions(ranks: Ranks, kinds: Sequence[type[Any]]) -> dict[str, int]:
    counts = dict.fromkeys((kind.__name__ for kind in kinds), 0)

    def counted(kind: type[Any]) -> type[Any]:
        def reduce_parameters(self: Any) -> None:
            counts[kind.__name__] += 1
            kind.reduce_parameters(self)

        return type(kind.__name__, (kind,), {"reduce_parameters": reduce_parameters})

    for kind in kinds:
        ranks.learn(counted(kind), agent(num_learning_epochs=3, num_mini_batches=2), updates=1)
    return counts


def test_every_minibatch_is_reduced_once_on_every_path(found: list[dict[str, Any]]) -> None:
    for rank in found:
        assert rank["count_reductions"] == {"PPO": 6, "Algorithm": 6}


@pytest.mark.slow
def test_every_minibatch_of_a_library_is_reduced_once(of_libraries: Found) -> None:
    for rank in of_libraries:
        assert rank["count_of_libraries"] == {"SkrlPPO": 6, "JaxPPO": 6}


def learn_by_graphs(ranks: Ranks, folder: str) -> dict[str, Any]:
    """Train by graphs, by calls, and by graphs on rank 0 alone."""
    found: dict[str, Any] = {}
    config = replace(agent(desired_kl=0.002, backprop="autograd"), max_iterations=6)
    cases = {"graphs": True, "calls": False, "graphs on rank 0": ranks.rank == 0}
    for case, captures in cases.items():
        stub = CudaGraphStub()
        runner = ranks.runner(config, capture=stub.capture if captures else refuse)
        losses: list[Any] = []

        def note(row: Row, losses: list[Any] = losses) -> None:
            losses.append([value for name, value in row.items() if name.startswith("loss/")])

        runner.train(note, lambda: None)
        found[case] = weights(runner.alg), losses, len(stub.graphs)
    return found


def test_graphs_between_reductions_give_what_calls_give(found: list[dict[str, Any]]) -> None:
    for rank, parts in enumerate(found):
        results = parts["learn_by_graphs"]
        # Gradients, and the step after their reduction.
        assert [n for _, _, n in results.values()] == [2, 0, 0 if rank else 2]
        expected, losses, _ = results["calls"]
        for learned, own_losses, _ in results.values():
            assert all(torch.equal(learned[key], value) for key, value in expected.items())
            assert own_losses == losses


def normalise(ranks: Ranks, folder: str) -> dict[str, Any]:
    alg = ranks.algorithm(Algorithm, agent())
    ranks.rollout(alg)
    with torch.inference_mode():
        alg.compute_returns(ranks.env.get_observations())
    rollout = alg.storage
    found = {
        "advantages": rollout.advantages.clone(),
        "raw": (rollout.returns - rollout.values).clone(),
        "observations": rollout.observations["actor"].flatten(0, 1).clone(),
    }
    alg.update()
    found["normaliser"] = {
        key: value for key, value in weights(alg).items() if "actor.obs_normalizer" in key
    }
    return found


def test_advantages_and_observations_are_normalised_over_all_ranks(
    found: list[dict[str, Any]],
) -> None:
    found = [rank["normalise"] for rank in found]
    raw = torch.cat([rank["raw"] for rank in found])
    expected = (raw - raw.mean()) / (raw.std() + 1e-8)
    torch.testing.assert_close(
        torch.cat([rank["advantages"] for rank in found]), expected, rtol=1e-4, atol=1e-5
    )
    assert abs(found[0]["advantages"].mean()) > 0.1  # The ranks' rewards differ by one.
    seen = torch.cat([rank["observations"] for rank in found])
    for rank in found:
        state = rank["normaliser"]
        torch.testing.assert_close(state["actor.obs_normalizer._mean"][0], seen.mean(0))
        assert state["actor.obs_normalizer.count"] == len(seen)


def short(share: EnvShard) -> Env[Any]:
    """Worlds to be evaluated in, with short episodes."""
    env = build_env(FOUND.name, replace(FOUND.task.env, num_envs=share.count), 1, share)
    env.max_episode_length = 20
    return env


def train(ranks: Ranks, folder: str) -> dict[str, Any]:
    """Runs of a few iterations: what all ranks come to know, and how they end together."""
    found: dict[str, Any] = {}

    # Everything as it should be; episodes of five steps.
    evaluator = Evaluator(short(EnvShard(3 * ranks.rank, 3 - ranks.rank, 5)), interval=2)
    runner = ranks.runner(agent(), evaluator=evaluator)
    runner.env.max_episode_length = 5
    own, rows = [], []
    unread = runner.env.deferred_statistics

    def keep() -> Any:
        found = unread()
        own.extend(read(found))
        return found

    runner.env.deferred_statistics = keep
    runner.train(rows.append, lambda: None)
    found["well"] = (own, rows, weights(runner.alg))

    # Rank 1 is asked to stop in the second iteration.
    runner = ranks.runner(agent())

    def signal_received() -> int | None:
        return 15 if ranks.rank == 1 and runner.current_learning_iteration == 1 else None

    found["signal"] = runner.train(lambda _: None, signal_received)
    found["stopped"] = runner.current_learning_iteration

    # Rank 1 changes a parameter by little, but by more than the next update's rounding hides.
    runner = ranks.runner(agent())

    def disturb(metrics: Any) -> None:
        if ranks.rank == 1 and runner.current_learning_iteration == 2:
            with torch.no_grad():
                next(runner.alg.actor.parameters())[0] += 1e-6

    try:
        runner.train(disturb, lambda: None)
    except OutOfStepError as error:
        found["out of step"] = str(error)

    # An observation of rank 1 is spoilt.
    runner = ranks.runner(agent())
    observe = runner.env.observe

    def spoilt() -> Any:
        groups = observe()
        if ranks.rank == 1 and runner.current_learning_iteration == 1:
            groups["critic"] = groups["critic"].clone()
            groups["critic"][3] = torch.nan
        return groups

    runner.env.observe = spoilt
    try:
        runner.train(lambda _: None, lambda: None)
    except DivergedError as error:
        found["diverged"] = str(error)
    found["finite"] = all(p.isfinite().all() for p in runner.alg.actor.parameters())
    return found


def test_ranks_know_stop_and_fail_together(found: list[dict[str, Any]]) -> None:
    found = [rank["train"] for rank in found]
    (own, rows, first), (others, other_rows, second) = (rank["well"] for rank in found)
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert len(rows) == 3
    for index, (row, other_row) in enumerate(zip(rows, other_rows, strict=True)):
        clocks = {name: other_row[name] for name in row if name.endswith("steps_per_second")}
        assert row | clocks == other_row
        assert row["world_size"] == 2
        assert row["total_steps"] == 2 * 8 * 8 * (index + 1)
        ended = [s for rank in (own, others) for s in rank[: index + 1]]
        returns, episodes = (sum(s["return"][i] for s in ended) for i in range(2))
        assert row["mean_return"] == pytest.approx(returns / episodes)
        assert row["mean_episode_length"] == 5
        now = own[index], others[index]
        assert row["mean_reward"] == pytest.approx(sum(s["reward"][0] for s in now) / (2 * 8 * 8))
    # What they reach together is what one would.
    actor = {k.removeprefix("actor."): v for k, v in first.items() if k.startswith("actor.")}
    alone = Runner(short(EnvShard(0, 5, 5)), agent(), "cpu", 1, FOUND.load)
    alone.alg.actor.load_state_dict(actor)
    reached = Evaluator(short(EnvShard(0, 5, 5)), 1).evaluate(alone.alg.actor, lambda: None)
    assert [row["eval/length"] for row in rows] == [None, 20, 20]
    assert rows[2]["eval/return"] == pytest.approx(reached["return"][0] / 5, rel=1e-4)
    # The ranks do not live through the same episodes.
    assert [s["reward"] for s in own] != [s["reward"] for s in others]

    assert [(rank["stopped"], rank["signal"]) for rank in found] == [(2, 15), (2, 15)]
    assert "rank 1 differ" in found[0]["out of step"]
    assert found[0]["out of step"] == found[1]["out of step"]
    assert found[0]["out of step"].startswith("iteration 3")
    for rank in found:
        assert "on rank 1 observation/critic[0] is not finite in 1 of 8" in rank["diverged"]
        assert rank["finite"]


class FallsEnv(CartpoleEnv):
    """Counts what happens, and forgets half of it in each iteration."""

    def setup(self) -> None:
        super().setup()
        self.count = self.add_state("count", 2, shared=True, reduce="sum")
        self.each_iteration(lambda: self.count.mul_(0.5))

    def after_physics(self) -> None:
        self.count[0] += (1 + self.env_ids % 2).sum()
        self.count[1] += 1


def count_falls(ranks: Ranks, folder: str) -> dict[str, Any]:
    env = build_cartpole(FallsEnv, 8)
    runner = Runner(env, agent(), "cpu", 1, FOUND.load, ranks.collectives)
    runner.train(lambda _: None, lambda: None)
    return {"count": env.count.tolist()}


def test_summed_state_is_equal_on_all_ranks_and_that_of_one_with_all_environments(
    found: list[dict[str, Any]],
) -> None:
    env = build_cartpole(FallsEnv, 16)
    Runner(env, agent(), "cpu", 1, FOUND.load).train(lambda _: None, lambda: None)
    both, steps = 8 * 24, 8  # Counted in an iteration: by 16 environments, and on each rank.
    first, second = (rank["count_falls"]["count"] for rank in found)
    assert first == second == [both * 0.875, 2 * steps * 0.875]
    assert env.count.tolist() == [both * 0.875, steps * 0.875]


def imitate(ranks: Ranks, folder: str) -> dict[str, Any]:
    """Learn from a teacher, by an optimiser that makes weights smaller."""
    config = agent(name="distillation", optimizer="adamw", gradient_length=4)
    config = replace(config, teacher=TeacherConfig(hidden_dims=(8,)))
    first, learned = ranks.algorithm(Distillation, config), ranks.learn(Distillation, config)
    return {"first": weights(first), "learned": weights(learned)}


def test_a_students_deviation_stays_what_it_was_on_several_ranks(found: Found) -> None:
    first, learned = (found[0]["imitate"][name] for name in ("first", "learned"))
    same = {key for key, value in first.items() if torch.equal(learned[key], value)}
    assert {key for key in same if key.startswith("actor")} == {"actor.distribution.std_param"}


def resume_best(ranks: Ranks, folder: str) -> dict[str, Any]:
    """Resume a run whose best checkpoint is on the first rank's host alone."""
    evaluator = Evaluator(short(EnvShard(3 * ranks.rank, 3 - ranks.rank, 5)), interval=1)
    place = Path(folder, f"host{ranks.rank}")
    place.mkdir()
    if ranks.rank == 0:
        own = {"best_return": 1e9, "judged_by": evaluator.judged_by}
        torch.save({"actor_state_dict": {}, "iter": 1, "mjfleet": own}, place / BEST)
    runner = ranks.runner(agent(), evaluator=evaluator)
    Checkpointer(runner, FOUND.name, place, None)
    is_best = list[bool]()
    runner.train(lambda _: is_best.append(runner.best.is_current), lambda: None)
    return {"best": is_best}


def test_all_ranks_know_the_best_return_where_one_host_has_the_best_checkpoint(
    found: list[dict[str, Any]],
) -> None:
    """Otherwise some would save a worse policy, and wait for the others for ever."""
    for rank in found:
        assert rank["resume_best"]["best"] == [False] * agent().max_iterations


PARTS = (
    exchange, learn_fast, learn_both_ways, follow_gradients, count_reductions, learn_by_graphs,
    learn_in_groups, normalise, train, count_falls, resume_best,
    imitate,
)  # fmt: skip
OF_LIBRARIES = learn_with_libraries, count_of_libraries


def test_one_rank_alone_is_rsl_rls_ppo() -> None:
    alone = Collectives()
    tensor = torch.ones(3)
    alone.all_reduce(tensor)
    assert tensor.tolist() == [1.0] * 3
    assert alone.all_gather([1.0, 2.0]) == [[1.0, 2.0]]
    assert alone.all_gather_text("well") == ["well"]
    assert alone.take_seconds() == 0.0
    env = build_task("cartpole-balance", "native", "cpu", num_envs=16)
    runner = Runner(env, agent(), "cpu", 1, FOUND.load)
    assert not runner.alg.is_distributed
