"""A loss of one's own: the one of the documentation, and mistakes."""

import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from rsl_rl import algorithms
from rsl_rl.models import MLPModel
from torch import nn

from mjfleet.config import from_dict
from mjfleet.errors import UserError
from mjfleet.rl.checkpoints.contents import Checkpointer
from mjfleet.rl.minibatches import Minibatch
from mjfleet.rl.ppo import PPO
from mjfleet.rl.runner import Runner

from ...conftest import Output, copy_task, rows
from ...env.test_env import BUNDLED, build_task
from ...helpers.cuda_graph_stub import CudaGraphStub
from ..test_own_classes import LEARNER, PENALTY, PENALTY_CONFIG, train
from ..test_ranks import weights

SLOW = pytest.mark.slow
TASKS = ["cartpole-balance", pytest.param("go1-velocity-flat", marks=SLOW)]
documented = ModuleType("learner")
exec(LEARNER, vars(documented))
Auxiliary: type[PPO] = documented.Auxiliary


def make_runner(
    kind: type[PPO], iterations: int = 4, task: str = "cartpole-balance", **more: Any
) -> Runner:
    torch.manual_seed(1)
    found, env = BUNDLED[task], build_task(task, "native", "cpu", num_envs=16)
    agent = from_dict(
        found.task.agent,
        {"num_steps_per_env": 6, "max_iterations": iterations, "algorithm": {"name": "own:Loss"}},
    )

    def load(name: str, base: Any = None) -> Any:
        return kind if name == "own:Loss" else found.load(name, base)

    return Runner(env, agent, "cpu", 1, load, **more)


@pytest.mark.parametrize("task", TASKS)
def test_the_documented_loss_is_learned(task: str) -> None:
    metrics: list[Any] = []
    runner = make_runner(Auxiliary, task=task)
    extra = runner.alg.extra.state_dict()
    before = extra["forecast.weight"].clone()
    runner.train(metrics.append, lambda: None)
    forecasts = [row["loss/forecast"] for row in metrics]
    assert {"loss/value", "loss/surrogate", "loss/entropy"} < metrics[0].keys()
    assert all(value > 0 for value in forecasts)
    assert not torch.equal(before, extra["forecast.weight"])


def test_its_gradient_reaches_the_actor() -> None:
    learned = {}
    for kind in (PPO, Auxiliary):
        runner = make_runner(kind, iterations=1)
        runner.train(lambda metrics: None, lambda: None)
        learned[kind] = weights(runner.alg)
    assert any(
        not torch.allclose(value, learned[PPO][name], rtol=1e-3)
        for name, value in learned[Auxiliary].items()
        if name.startswith("actor.mlp")
    )


@pytest.mark.parametrize("kinds", [(PPO, Auxiliary), (Auxiliary, PPO)])
def test_a_run_does_not_continue_with_other_networks_beside_the_actor(
    kinds: tuple[type[PPO], type[PPO]], tmp_path: Path
) -> None:
    first, then = (
        Checkpointer(make_runner(kind), "cartpole-balance", tmp_path, keep=None) for kind in kinds
    )
    (path,) = first.save(is_last=True)
    with pytest.raises(UserError, match=r"other networks .extra.*--init-from"):
        then.resume(path)


@pytest.mark.parametrize("is_captured", [True, False])
def test_what_a_loss_declares_and_writes_counts_no_trial_of_it(is_captured: bool) -> None:
    class Counting(PPO):
        captures = True

        def __init__(self, *parts: Any, **settings: Any) -> None:
            super().__init__(*parts, **settings)
            self.of_run = self.add_state("of_run", torch.zeros(()))
            self.of_rank = self.add_state("of_rank", torch.zeros(()), per="rank")
            self.calls = self.add_state("calls", 0)

        def loss(self, minibatch: Minibatch) -> Any:
            self.of_run += 1
            self.of_rank += 1
            self.calls += 1
            return super().loss(minibatch)

    stub = CudaGraphStub()
    runner = make_runner(Counting, 2, capture=stub.capture if is_captured else None)
    assert (runner.alg.of_run, runner.alg.of_rank, runner.alg.calls) == (0, 0, 0)
    runner.train(lambda metrics: None, lambda: None)
    count = 2 * 5 * 4  # Iterations, epochs and minibatches.
    assert (runner.alg.of_run, runner.alg.of_rank) == (count, count)


def test_it_is_captured_and_a_loss_that_does_not_say_so_is_called() -> None:
    class Called(Auxiliary):
        captures = False

        def loss(self, minibatch: Minibatch) -> Any:
            total, parts = super().loss(minibatch)
            self.kept = total
            self.scratch("kept")
            return total, parts

    found = []
    for kind, graphs in ((Auxiliary, 2), (Called, 0)):
        stub = CudaGraphStub()
        runner = make_runner(kind, capture=stub.capture)
        runner.train(lambda metrics: None, lambda: None)
        assert len(stub.graphs) == graphs
        found.append(weights(runner.alg))
    assert vars(runner.alg)["kept"].grad_fn is None
    assert all(torch.equal(value, found[1][name]) for name, value in found[0].items())


@pytest.mark.parametrize(
    ("robot", "task"),
    [("cartpole", "cartpole-balance"), pytest.param("go1", "go1-velocity-flat", marks=SLOW)],
)
def test_two_workers_learn_it_resume_and_it_is_played(
    robot: str, task: str, output: Output, tmp_path: Path
) -> None:
    (copy_task(tmp_path / "tasks", "own", robot) / "learner.py").write_text(LEARNER)
    task = task.replace(robot, "own")
    batches = ("--agent.algorithm.num-mini-batches", "16")  # More than the samples of `play`.
    own = ("--agent.algorithm.name", "learner:Auxiliary", "--cpu-workers", "2", *batches)
    own = (*own, "--run-dir")
    train(output, task, 2, *own, "whole")
    for iterations in (1, 2):
        train(output, task, iterations, *own, "parts")
    assert all(float(row["loss/forecast"]) > 0 for row in rows(tmp_path / "parts"))
    whole, parts = (
        torch.load(tmp_path / name / "checkpoints/model_2.pt", weights_only=True)
        for name in ("whole", "parts")
    )
    for part in ("actor_state_dict", "critic_state_dict", "extra_state_dict"):
        assert all(torch.equal(whole[part][key], value) for key, value in parts[part].items())
    few = ("--env.num-envs", "1", "--episodes", "1")
    output("play", task, "--resume", "parts", *few)


def test_the_documented_parameter_is_learned_by_two_workers(output: Output, tmp_path: Path) -> None:
    folder = copy_task(tmp_path / "tasks", "own")
    (folder / "penalty.py").write_text(PENALTY)
    with (folder / "config.py").open("a") as file:
        file.write(f"{PENALTY_CONFIG}\nfrom dataclasses import replace\n")
        file.write("TASKS['own-balance'] = replace(TASKS['own-balance'], agent=PENALIZED)\n")
    train(output, "own-balance", 2, "--cpu-workers", "2", "--run-dir", "run")
    weights = [float(row["loss/kl_weight"]) for row in rows(tmp_path / "run")]
    states = [
        torch.load(tmp_path / f"run/checkpoints/model_{n}.pt", weights_only=True) for n in (1, 2)
    ]
    first, second = (s["extra_state_dict"]["penalty.log_weight"].exp().item() for s in states)
    # Updates are small at first, so that the weight shrinks.
    assert 1 > weights[0] > first > weights[1] > second


def total(change: Callable[[torch.Tensor], Any]) -> Any:
    def loss(self: Any, minibatch: Minibatch) -> Any:
        value, parts = PPO.loss(self, minibatch)
        return change(value), parts

    return loss


def named(name: str, value: Any) -> Any:
    def loss(self: Any, minibatch: Minibatch) -> Any:
        found, parts = PPO.loss(self, minibatch)
        return found, {**parts, name: value}

    return loss


def ends_at(choose: Callable[[Any, Minibatch], torch.Tensor]) -> dict[str, Any]:
    """Return a loss after which the actor's distribution is that at chosen inputs."""

    def loss(self: Any, minibatch: Minibatch) -> Any:
        found = PPO.loss(self, minibatch)
        self.actor.distribution.update(self.actor.mlp(choose(self, minibatch)))
        return found

    return {"loss": loss}


def a_step_later(alg: Any, minibatch: Minibatch) -> torch.Tensor:
    seen = alg.storage.observations.flatten(0, 1)
    return alg.actor.get_latent(seen)[(minibatch.samples + alg.storage.num_envs) % len(seen)]


def test_a_loss_may_evaluate_the_policy_at_the_observations_themselves() -> None:
    def same(alg: Any, minibatch: Minibatch) -> torch.Tensor:
        seen = alg.storage.observations.flatten(0, 1)
        return alg.actor.get_latent(seen[minibatch.samples])

    make_runner(type("Loss", (PPO,), ends_at(same)))


def writes(name: str, change: Callable[[torch.Tensor], Any]) -> dict[str, Any]:
    """Return a loss that changes a field of its minibatch in place."""

    def loss(self: Any, minibatch: Minibatch) -> Any:
        field: Any = getattr(minibatch, name)
        change(field[0] if isinstance(field, tuple) else field)
        return PPO.loss(self, minibatch)

    return {"loss": loss}


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"loss": total(lambda value: value / 0.0)}, "the total is .* at first"),
        ({"loss": total(torch.Tensor.detach)}, "no gradient"),
        ({"loss": total(lambda value: value.expand(2))}, "shape .2,., and has to be a scalar"),
        ({"loss": lambda self, batch: {"value": 1.0}}, "return total, parts"),
        ({"loss": lambda self, batch: PPO.loss(self, batch)[0]}, "return total, parts"),
        ({"loss": named("a/b", torch.ones(()))}, "'a/b' is no name"),
        ({"loss": named("mine", 1.0)}, "mine is 1.0, and has to be a scalar tensor"),
        (ends_at(lambda alg, batch: batch.actor_inputs[:3]), "distribution at other observations"),
        (ends_at(lambda alg, batch: -batch.actor_inputs), "distribution at other observations"),
        (ends_at(lambda alg, batch: batch.actor_inputs.flip(0)), "at other observations"),
        (ends_at(a_step_later), "distribution at other observations"),
        (writes("advantages", lambda x: x.mul_(1.5)), "changes minibatch.advantages in place"),
        (writes("returns", lambda x: x[:1].zero_()), "changes minibatch.returns in place"),
        (writes("distribution", lambda x: x.clamp_(-1, 1)), "minibatch.distribution in place"),
        ({"modules": lambda self: {"actor": nn.Linear(1, 1)}}, "'actor' is no name .* or taken"),
        ({"modules": lambda self: {"keys": nn.Linear(1, 1)}}, "'keys' is no name .* or taken"),
        ({"modules": lambda self: [nn.Linear(1, 1)]}, "return a dictionary of networks"),
        (
            {"modules": lambda self: {"scale": nn.Parameter(torch.zeros(()))}},
            r"modules returns \{'scale': 'Parameter'\}: .*parameter in an `nn\.ParameterDict`",
        ),
    ],
)
def test_a_mistake_is_one_message_when_it_is_built(members: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        make_runner(type("Loss", (PPO,), members))


@pytest.mark.parametrize("later", [{}, {"first": 0.0, "second": 0.0}])
def test_a_loss_whose_parts_get_other_names_is_refused(later: dict[str, float]) -> None:
    class Changing(PPO):
        calls = 0

        def loss(self, minibatch: Minibatch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
            total, parts = super().loss(minibatch)
            self.calls += 1
            more = later if self.calls > 1 else {"first": 0.0}
            return total, parts | {name: total.detach() for name in more}

    runner = make_runner(Changing)
    with pytest.raises(
        UserError, match=r"Changing\.loss returns .*, and at first returned .*first:"
    ):
        runner.train(lambda row: None, lambda: None)


def never_learned(**attributes: Any) -> type[PPO]:
    """Return a class with attributes that no optimiser knows of."""

    class Elsewhere(PPO):
        def __init__(self, *parts: Any, **settings: Any) -> None:
            super().__init__(*parts, **settings)
            vars(self).update(attributes)

    return Elsewhere


@pytest.mark.parametrize(
    ("name", "attributes"),
    [
        ("head", {"head": nn.Linear(2, 2)}),
        ("log_beta", {"log_beta": nn.Parameter(torch.zeros(()))}),
        ("weights", {"weights": torch.zeros(3, requires_grad=True)}),
        ("heads[1]", {"heads": [nn.Linear(5, 1).requires_grad_(False), nn.Linear(5, 1)]}),
        ("heads['value']", {"heads": {"value": nn.Linear(5, 1)}}),
    ],
)
def test_what_nobody_learns_is_refused_by_its_name(name: str, attributes: dict[str, Any]) -> None:
    words = rf"Elsewhere\.{re.escape(name)} requires a gradient and is not learned\. .*modules"
    with pytest.raises(UserError, match=words):
        make_runner(never_learned(**attributes))


def test_what_a_loss_uses_and_nobody_learns_is_refused_wherever_it_is_kept() -> None:
    kept = {"scale": {"deep": torch.ones(2, 3, requires_grad=True)}}

    def loss(self: Any, minibatch: Minibatch) -> Any:
        value, parts = PPO.loss(self, minibatch)
        return value + kept["scale"]["deep"].square().mean(), parts

    with pytest.raises(
        UserError, match=r"a tensor of shape \(2, 3\) that Loss\.loss uses requires"
    ):
        make_runner(type("Loss", (PPO,), {"loss": loss}))
    kept["scale"]["deep"].requires_grad_(False)
    make_runner(type("Loss", (PPO,), {"loss": loss}))


def test_a_tensor_that_each_loss_makes_anew_to_be_learned_is_refused() -> None:
    def loss(self: Any, minibatch: Minibatch) -> Any:
        value, parts = PPO.loss(self, minibatch)
        weight = torch.ones(3, requires_grad=True)
        return value + weight.square().mean(), parts

    with pytest.raises(UserError, match=r"a tensor of shape \(3,\) that Loss\.loss uses requires"):
        make_runner(type("Loss", (PPO,), {"loss": loss}))


def test_what_an_optimiser_of_ones_own_learns_is_accepted() -> None:
    class Dual(PPO):
        def __init__(self, *parts: Any, **settings: Any) -> None:
            super().__init__(*parts, **settings)
            self.multiplier = nn.Parameter(torch.zeros(()))
            self.dual_optimizer = torch.optim.SGD([self.multiplier], lr=0.1)

        def loss(self, minibatch: Minibatch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
            total, parts = super().loss(minibatch)
            return total + self.multiplier * parts["entropy"].detach(), parts

    make_runner(Dual)


@pytest.mark.parametrize("asked", [lambda inputs: inputs, lambda inputs: [inputs]])
def test_a_gradient_penalty_is_accepted(asked: Callable[..., Any]) -> None:
    def loss(self: Any, minibatch: Minibatch) -> Any:
        total, parts = PPO.loss(self, minibatch)
        inputs = minibatch.critic_inputs.detach().requires_grad_()
        values = self.critic.mlp(inputs).sum()
        (slopes,) = torch.autograd.grad(values, asked(inputs), create_graph=True)
        return total + slopes.square().mean(), parts

    make_runner(type("Loss", (PPO,), {"loss": loss}))


class Unregistered(MLPModel):
    """A network with a layer in a list, which torch does not know of."""

    def __init__(self, *parts: Any, **settings: Any) -> None:
        super().__init__(*parts, **settings)
        self.around = [nn.Linear(self.obs_dim, 1)]

    def forward(self, *parts: Any, **more: Any) -> torch.Tensor:
        return super().forward(*parts, **more)


@pytest.mark.parametrize("name", ["own:Loss", "ppo"])
def test_a_layer_of_a_network_that_torch_does_not_know_is_named(name: str) -> None:
    env = build_task("cartpole-balance", "native", "cpu", num_envs=4)
    data = {"critic": {"class_name": "own:Net"}, "algorithm": {"name": name}}
    agent = from_dict(BUNDLED["cartpole-balance"].task.agent, data)
    kinds = {"own:Loss": algorithms.PPO, "own:Net": Unregistered}
    with pytest.raises(UserError, match=r"critic\.around\[0\] is not learned.*nn\.ModuleList"):
        Runner(env, agent, "cpu", 1, lambda name, base=None: kinds[name])


class Wide(MLPModel):
    """A network with two outputs too many."""

    def __init__(self, obs: Any, groups: Any, name: str, size: int, **settings: Any) -> None:
        super().__init__(obs, groups, name, size + 2, **settings)


@pytest.mark.parametrize("network", ["actor", "critic"])
@pytest.mark.parametrize("algorithm", ["ppo", "own:PPO"])
def test_a_network_with_another_number_of_outputs_is_refused(network: str, algorithm: str) -> None:
    env = build_task("cartpole-balance", "native", "cpu", num_envs=4)
    data = {network: {"class_name": "own:Wide"}, "algorithm": {"name": algorithm}}
    agent = from_dict(BUNDLED["cartpole-balance"].task.agent, data)
    kinds = {"own:PPO": algorithms.PPO, "own:Wide": Wide}
    words = rf"{network} Wide returns numbers of shape \(4, 3\), and has to return \(4, 1\)"
    with pytest.raises(UserError, match=f"cannot be built: {words}"):
        Runner(env, agent, "cpu", 1, lambda name, base=None: kinds[name])


def test_random_layers_and_running_statistics_are_as_they_were() -> None:
    class Dropping(PPO):
        def modules(self) -> dict[str, nn.Module]:
            self.actor.mlp.insert(1, nn.Dropout(0.5))
            normalise = nn.BatchNorm1d(64, affine=False)
            self.critic.mlp.insert(1, normalise)
            return {}

        def loss(self, minibatch: Minibatch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
            return super().loss(minibatch)

    alg = make_runner(Dropping).alg
    assert not alg.critic.mlp[1].running_mean.any()


def test_a_network_of_ones_own_may_share_layers_with_the_actor() -> None:
    class Sharing(PPO):
        def modules(self) -> dict[str, nn.Module]:
            *shared, last = self.actor.mlp
            return {"forecast": nn.Sequential(*shared, nn.Linear(last.in_features, 2))}

        def loss(self, minibatch: Minibatch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
            total, parts = super().loss(minibatch)
            return total + self.extra["forecast"](minibatch.actor_inputs).square().mean(), parts

    alg = make_runner(Sharing).alg
    (group,) = alg.optimizer.param_groups
    own = list(alg.extra.parameters())[-2:]
    assert group["params"] == [*alg.actor.parameters(), *alg.critic.parameters(), *own]
    parts = alg.gradient.split([alg.actor, alg.critic, alg.extra])
    assert len(parts[2]) == sum(p.numel() for p in own)


def test_stopped_and_resumed_is_as_never_stopped(tmp_path: Path) -> None:
    ends = []
    for name, stops in (("whole", [4]), ("parts", [2, 4])):
        (tmp_path / name).mkdir()
        for begun, stop in zip([0, *stops], stops, strict=False):
            runner = make_runner(Auxiliary, stop)
            saver = Checkpointer(runner, "cartpole-balance", tmp_path / name, keep=None)
            if begun:
                torch.manual_seed(99)
                assert saver.resume(tmp_path / name / f"model_{begun}.pt") == []
            runner.train(lambda metrics: None, lambda: None, saver.save)
        ends.append(torch.load(tmp_path / name / "model_4.pt", weights_only=True))
    for part in ("actor_state_dict", "critic_state_dict", "extra_state_dict"):
        whole, parts = (end[part] for end in ends)
        assert all(torch.equal(whole[key], value) for key, value in parts.items())
