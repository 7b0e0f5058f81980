"""The PPO of skrl, in PyTorch and in JAX, and of rl_games in the place of rsl_rl's."""

import copy
import json
import sys
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rsl_rl import algorithms

from mjfleet.config import from_dict
from mjfleet.errors import UserError
from mjfleet.rl.build_algorithm import LEARNERS, choose_algorithm
from mjfleet.rl.checkpoints.files import read_checkpoint
from mjfleet.rl.learner import Learner
from mjfleet.rl.runner import Runner

from ...conftest import Output, Refusal, Run, only_run, rows
from ...env.test_env import BUNDLED, build_task
from ..ppo.test_ppo import agent, learn
from ..test_ranks import weights

ALIKE = {"schedule": "fixed", "num_mini_batches": 1, "use_clipped_value_loss": False}
"""Where all compute the same: skrl clips values in another way, and each has its minibatches."""
PARTS = "actor", "critic", "optimizer"
CASES: dict[str, dict[str, Any]] = {
    "normalised": {"normalised": True},
    "logarithm of the deviation": {"distribution": {"std_type": "log", "init_std": 0.5}},
    "constant deviation": {"distribution": {"learn_std": False}},
    "gradients clipped": {"algorithm": {"max_grad_norm": 0.01}},
}


@pytest.fixture(scope="module", autouse=True)
def quick_jax() -> None:
    import jax  # Collecting tests does without.

    jax.config.update("jax_disable_most_optimizations", True)  # What is compiled here runs once.


def learner(library: str) -> type[Learner]:
    """Import the learner of `--agent.library`, for which collecting tests does not wait."""
    module, _, name = LEARNERS[library].partition(":")
    return getattr(import_module(f"mjfleet.rl.{module}"), name)


@pytest.mark.parametrize("library", ["skrl", "rl_games"])
@pytest.mark.parametrize("case", CASES)
def test_an_update_ends_with_the_parameters_of_rsl_rl(case: str, library: str) -> None:
    kind = learner(library)
    config = agent(**CASES[case] | {"algorithm": ALIKE | CASES[case].get("algorithm", {})})
    ours, losses = learn(kind, config, updates=1)
    theirs, their_losses = learn(None, config, updates=1)
    before = weights(learn(None, config, updates=0)[0])
    assert not all(torch.equal(before[key], value) for key, value in weights(ours).items())
    torch.testing.assert_close(weights(ours), weights(theirs), rtol=1e-5, atol=1e-5)
    assert losses == pytest.approx(their_losses, rel=0.02, abs=0.01)


def test_rl_games_clips_values_as_rsl_rl_does() -> None:
    rl_games = learner("rl_games")
    clipped, plain = (
        agent(algorithm=ALIKE | {"use_clipped_value_loss": is_clipped, "clip_param": 0.02})
        for is_clipped in (True, False)
    )
    ours, theirs, other = (
        weights(learn(kind, config, updates=2)[0])
        for kind, config in ((rl_games, clipped), (None, clipped), (None, plain))
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    assert max((other[key] - value).abs().max() for key, value in theirs.items()) > 1e-4


@pytest.mark.parametrize("library", ["skrl", "skrl-jax", "rl_games"])
def test_each_is_a_learner_that_steps_at_its_optimisers_rate(library: str) -> None:
    kind = learner(library)
    assert not issubclass(kind, algorithms.PPO)
    assert not hasattr(kind, "step")
    config = agent(algorithm=ALIKE)
    alg, _ = learn(kind, config, updates=0)
    schedule, rate = torch.optim.lr_scheduler.ExponentialLR(alg.optimizer, 0.5), alg.learning_rate
    learn(None, config, updates=1, alg=alg)
    schedule.step()
    learn(None, config, updates=1, alg=alg)
    assert alg.learning_rate == alg.optimizer.param_groups[0]["lr"] == rate / 2


def test_rl_games_adapts_the_learning_rate_and_leaves_a_remainder_out() -> None:
    config = agent(algorithm={"desired_kl": 0.002, "num_mini_batches": 3})
    alg, losses = learn(learner("rl_games"), config, updates=1)
    assert alg.learning_rate != config.ppo.learning_rate
    assert alg.learning_rate == alg.optimizer.param_groups[0]["lr"]
    assert losses["value"] > 0


@pytest.mark.parametrize("library", ["skrl", "rl_games"])
@pytest.mark.parametrize(("envs", "steps"), [(1, 2), (2, 1)])
def test_each_learns_in_one_environment_or_by_single_steps(
    envs: int, steps: int, library: str
) -> None:
    task = BUNDLED["cartpole-balance"]
    numbers = {"num_mini_batches": 1, "num_learning_epochs": 2}
    short = {"num_steps_per_env": steps, "max_iterations": 2, "algorithm": numbers}
    config = from_dict(task.task.agent, {"library": library, **short})
    env = build_task("cartpole-balance", "native", "cpu", num_envs=envs)
    runner, found = Runner(env, config, "cpu", 1, task.load), list[Any]()
    runner.train(found.append, lambda: None)
    assert [row["total_steps"] for row in found] == [2, 4]


def test_each_goes_on_from_what_another_has_saved() -> None:
    config = agent(
        normalised=True,
        algorithm=ALIKE | {"max_grad_norm": 0.1},
        distribution={"std_type": "log", "init_std": 0.5},
    )
    kinds = None, *map(learner, ("skrl-jax", "rl_games", "skrl"))
    algs = [learn(kind, config, updates=0)[0] for kind in kinds]
    learn(None, config, updates=2, alg=algs[0])
    for begun, other in pairwise(algs):
        before = weights(begun)
        other.restore(copy.deepcopy(begun.save()), PARTS)
        for alg in (begun, other):
            learn(None, config, updates=2, alg=alg)
        moved = max((value - before[key]).abs().max() for key, value in weights(begun).items())
        assert moved > 1e-3
        # JAX divides advantages by another estimate of their deviation.
        torch.testing.assert_close(weights(other), weights(begun), rtol=1e-3, atol=1e-4)
    saved, ends = copy.deepcopy(algs[1].save()), []
    for _ in range(2):
        np.random.seed(1)
        algs[1].restore(copy.deepcopy(saved), PARTS)
        learn(kinds[1], config, updates=1, alg=algs[1])
        ends.append(weights(algs[1]))
    assert all(torch.equal(ends[0][key], value) for key, value in ends[1].items())


@pytest.mark.parametrize("library", ["skrl", "rl_games"])
def test_a_run_with_another_library_is_a_run_like_any(
    library: str, output: Output, tmp_path: Path
) -> None:
    output(
        "train", "cartpole-balance", "--agent.library", library, "--env.num-envs", "16",
        "--env.episode-seconds", "1", "--agent.num-steps-per-env", "8", "--eval-interval", "6",
        "--eval-envs", "2", "--agent.max-iterations", "6", "--agent.logger", "none",
    )  # fmt: skip
    run_dir = only_run(tmp_path)
    assert library in json.loads((run_dir / "run.json").read_text())["versions"]
    last = rows(run_dir)[-1]
    assert float(last["eval/length"]) == 20
    assert float(last["loss/value"]) > 0
    assert [path.name for path in tmp_path.iterdir()] == ["logs"]


MODEL = "run/checkpoints/model_4.pt"
TWICE = f"""
import sys
from pathlib import Path
import jax
from mjfleet.cli.train import train
jax.config.update("jax_disable_most_optimizations", True)
assert train(sys.argv[1:]) == 0
# As of a run that was killed before it saved these.
Path("run/checkpoints/final_model.pt").unlink()
Path("{MODEL}").rename("whole.pt")
assert train(sys.argv[1:]) == 0
"""
"""Trains in one process, so that JAX compiles once."""


def test_skrl_on_jax_is_resumed_bit_for_bit(output: Output, tmp_path: Path) -> None:
    """JAX draws minibatches by numpy's generator, which checkpoints hold."""
    flags = (
        "--agent.library", "skrl-jax", "--env.num-envs", "8", "--cpu-workers", "1",
        "--agent.num-steps-per-env", "4", "--agent.save-interval", "2", "--agent.logger", "none",
        "--agent.max-iterations", "4", "--run-dir", "run",
    )  # fmt: skip
    (tmp_path / "twice.py").write_text(TWICE)
    shown = output("python", "twice.py", "cartpole-balance", *flags)
    assert "continuing from run/checkpoints/model_2.pt" in shown
    whole, parts = (read_checkpoint(tmp_path / name) for name in ("whole.pt", MODEL))
    for part in PARTS:
        name = f"{part}_state_dict"
        torch.testing.assert_close(whole[name], parts[name], rtol=0, atol=0)


UNKNOWN: dict[str, dict[str, Any]] = {
    "--agent.actor.class-name RNNModel": {"actor": {"class_name": "RNNModel"}},
    "--agent.algorithm.name distillation": {"algorithm": {"name": "distillation"}},
    "--agent.algorithm.optimizer sgd": {"algorithm": {"optimizer": "sgd"}},
    "random network distillation": {"algorithm": {"rnd_cfg": {"weight": 0.5}}},
    "torch.compile": {"torch_compile_mode": "default"},
    "symmetry": {
        "algorithm": {"symmetry_cfg": {"data_augmentation_func": "a:b", "use_mirror_loss": True}}
    },
}


@pytest.mark.parametrize("library", ["skrl", "skrl-jax", "rl_games"])
@pytest.mark.parametrize("words", UNKNOWN)
def test_a_library_says_what_it_does_not_support(words: str, library: str) -> None:
    config = from_dict(agent(), {"library": library, **UNKNOWN[words]})
    with pytest.raises(UserError, match=f"^--agent.library {library} does not support {words};"):
        choose_algorithm(config, BUNDLED["cartpole-balance"].load)


@pytest.mark.parametrize(
    ("library", "flags", "message"),
    [
        ("rl_games", ("--dry-run", "--agent.algorithm.backprop", "autograd"), "backprop autograd"),
        ("rl_games", (), "--extra rl-games"),
    ],
)
def test_what_cannot_be_is_refused(
    library: str, flags: tuple[str, ...], message: str, refusal: Refusal,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if not flags:
        monkeypatch.setitem(sys.modules, library, None)  # As if it were not installed.
    shown = refusal("train", "cartpole-balance", "--agent.library", library, *flags)
    assert f"--agent.library {library}" in shown
    assert message in shown


def test_a_run_with_what_a_library_does_not_support_leaves_nothing(
    run: Run, tmp_path: Path
) -> None:
    flags = ("--agent.library", "skrl", "--agent.algorithm.optimizer", "sgd")
    done = run("train", "cartpole-balance", *flags)
    assert done.returncode == 2
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    words = "--agent.library skrl does not support --agent.algorithm.optimizer sgd; rsl_rl does."
    assert errors == [f"error: {words}"]
    assert not list(tmp_path.glob("logs/*/*"))
