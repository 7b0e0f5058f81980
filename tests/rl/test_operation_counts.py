"""Operations that an iteration starts, and how often the host waits for a number of theirs.

On a GPU each operation is a launch or more, and each read by the host a wait. They are counted on
the CPU: by calls, with the stand-in for CUDA graphs, and by rsl_rl's own runner. mjlab's, which is
too large for CI, are counted by hand: tests/helpers/operation_counts.py.
"""

import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from rsl_rl.runners import OnPolicyRunner

from mjfleet.rl.networks import rsl_rl_config
from mjfleet.rl.runner import Runner

from ..conftest import REPOSITORY
from ..env.test_env import BUNDLED, build_task
from ..helpers.cuda_graph_stub import CudaGraphStub, refuse
from ..helpers.operation_counts import ITERATIONS, STEPS, Counts, of_last_iteration, of_rsl_rl


def ours(task: str, captures: bool) -> Any:
    env = build_task(task, "native", "cpu", num_envs=16)
    agent = BUNDLED[task].task.agent
    changes = {"num_steps_per_env": STEPS, "max_iterations": ITERATIONS}
    agent = replace(agent, **changes, algorithm=replace(agent.algorithm, backprop="autograd"))
    counts, stub = Counts(), CudaGraphStub()
    capture = counts.capture(stub) if captures else refuse
    runner = Runner(env, agent, "cpu", 1, BUNDLED[task].load, capture=capture)
    return of_last_iteration(
        counts, lambda note: runner.train(lambda m: note(m["iteration"]), lambda: None)
    )


@pytest.mark.parametrize(
    ("task", "most"),
    [("cartpole-balance", 45), ("go1-velocity-flat", 155), ("go1-velocity-rough", 207)],
)
def test_an_environments_step_has_few_operations(task: str, most: int) -> None:
    env = build_task(task, "native", "cpu", num_envs=16)
    actions, counts = torch.zeros(16, env.num_actions), Counts()
    with torch.inference_mode():
        env.step(actions)
        with counts:
            for _ in range(10):
                env.step(actions)
    assert counts.operations - counts.allocations <= 10 * most


@pytest.mark.parametrize("task", ["cartpole-balance", "go1-velocity-flat"])
def test_a_rollout_adds_few_operations_to_environment_and_networks(task: str) -> None:
    env = build_task(task, "native", "cpu", num_envs=16)
    agent = BUNDLED[task].task.agent
    agent = replace(agent, algorithm=replace(agent.algorithm, backprop="autograd"))  # As on a GPU.
    alg = Runner(env, agent, "cpu", 1, BUNDLED[task].load).alg
    observed = env.get_observations()
    networks, rollout = Counts(), Counts()
    alg.train_mode()
    with torch.inference_mode():
        with networks:
            alg.actor.mlp(alg.actor.get_latent(observed))
        with rollout:
            actions = alg.act(observed)
        after = env.step(actions)
        with rollout:
            alg.process_env_step(*after)
    added = rollout.operations - rollout.allocations - networks.operations
    assert 0 < added <= 12


def rsl_rls(task: str) -> Any:
    env = build_task(task, "native", "cpu", num_envs=16)
    found = BUNDLED[task]
    cfg = rsl_rl_config(found.task.agent, found.load)
    settings = cfg | {"num_steps_per_env": STEPS}
    return of_rsl_rl(OnPolicyRunner(env, settings, log_dir=None, device="cpu"))


@pytest.mark.parametrize(
    "task", ["cartpole-balance", pytest.param("go1-velocity-flat", marks=pytest.mark.slow)]
)
def test_graphs_leave_few_operations_and_reads_as_documented(task: str) -> None:
    by_graphs, by_calls, stock = ours(task, True), ours(task, False), rsl_rls(task)
    # Gradients and step of 20 minibatches, and one read of what the iteration gave.
    assert by_graphs[1:] == (40, 1)
    assert by_graphs[0] < by_calls[0] < stock[0]
    page = (REPOSITORY / "docs/speed.md").read_text()
    (row,) = re.findall(rf"^\| {task} +\|(.*)\|$", page, flags=re.MULTILINE)[-1:]
    launches = by_graphs[0] + by_graphs[1], by_calls[0], stock[0]
    found = [*zip(launches, (by_graphs[2], by_calls[2], stock[2]), strict=True)]
    written = [float(number) for number in re.findall(r"[\d,]+", row.replace(",", ""))]
    assert written[:6] == pytest.approx([n for pair in found for n in pair], rel=0.1), found
    assert len(written) == 8  # The last two are mjlab's.
