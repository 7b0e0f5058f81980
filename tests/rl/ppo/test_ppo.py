"""PPO ends where rsl_rl's own does."""

import copy
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any, Literal

import pytest
import torch
from rsl_rl import algorithms
from rsl_rl.models import CNNModel, MLPModel
from rsl_rl.modules import distribution
from tensordict import TensorDict

from mjfleet.config import AgentConfig, from_dict
from mjfleet.config.unused_fields import unused_fields
from mjfleet.rl.algorithm import Algorithm
from mjfleet.rl.device.graph_capture import Capture
from mjfleet.rl.learner import Learner, Setup, Step
from mjfleet.rl.minibatches import Minibatch
from mjfleet.rl.networks import rsl_rl_config
from mjfleet.rl.ppo import PPO
from mjfleet.rl.ranks.collectives import Collectives
from mjfleet.rl.runner import Runner
from mjfleet.sim.deferred import read

from ...env.test_env import BUNDLED, build_task
from ...helpers.cuda_graph_stub import CudaGraphStub
from ..test_ranks import weights

WORLDS, STEPS, ACTIONS = 32, 8, 3
GROUPS = {"actor": 7, "critic": 4, "extra": 2}
IMAGES = {"camera": (2, 9, 7), "depth": (1, 6, 6)}

CASES: dict[str, dict[str, Any]] = {
    "fixed": {"algorithm": {"schedule": "fixed"}},
    "adaptive": {"algorithm": {"schedule": "adaptive", "desired_kl": 0.002}},
    "fixed, normalised": {"normalised": True, "algorithm": {"schedule": "fixed"}},
    "adaptive, normalised": {
        "normalised": True,
        "algorithm": {"schedule": "adaptive", "desired_kl": 0.002},
    },
    "values clipped": {"algorithm": {"use_clipped_value_loss": True, "clip_param": 0.05}},
    "advantages per minibatch": {"algorithm": {"normalize_advantage_per_mini_batch": True}},
    "gradients clipped": {"algorithm": {"max_grad_norm": 0.01, "optimizer": "sgd"}},
    "adamw, a remainder": {"algorithm": {"optimizer": "adamw", "num_mini_batches": 3}},
    "logarithm of the deviation": {"distribution": {"std_type": "log", "init_std": 0.5}},
    "constant deviation": {"distribution": {"learn_std": False}},
    "deviation by observation": {
        "distribution": {"class_name": "HeteroscedasticGaussianDistribution"}
    },
    "autograd": {"algorithm": {"backprop": "autograd"}},
    "autograd, values clipped": {"algorithm": {"backprop": "autograd", "clip_param": 0.05}},
    "mixed precision": {"normalised": True, "algorithm": {"use_mixed_precision": True}},
    "images": {"normalised": True, "images": {"actor": ["camera"]}},
    "images, both networks": {
        "normalised": True,
        "images": {"actor": ["camera"], "critic": ["depth", "camera"]},
        "algorithm": {"schedule": "adaptive", "desired_kl": 0.002, "num_mini_batches": 3},
    },
    "images alone": {"images": {"actor": ["camera", "depth"]}, "numbers": {"actor": []}},
    "images, mixed precision": {
        "images": {"actor": ["depth"]},
        "algorithm": {"use_mixed_precision": True},
    },
}


def agent(
    normalised: bool = False,
    algorithm: dict[str, Any] | None = None,
    distribution: dict[str, Any] | None = None,
    images: Mapping[str, list[str]] | None = None,
    numbers: Mapping[str, list[str]] | None = None,
) -> AgentConfig:
    network = {"obs_normalization": normalised, "hidden_dims": [16, 8], "activation": "elu"}
    layers = {"output_channels": [4, 3], "kernel_size": [3, 2], "stride": [2]}
    encoder = {"class_name": "CNNModel", "cnn_cfg": layers}
    seen, groups = images or {}, {"actor": ["actor", "extra"], "critic": ["critic", "extra"]}
    groups |= numbers or {}
    return from_dict(
        AgentConfig(),
        {
            "num_steps_per_env": STEPS,
            "obs_groups": {name: [*own, *seen.get(name, [])] for name, own in groups.items()},
            "actor": network
            | {"distribution": distribution or {}}
            | (encoder if "actor" in seen else {}),
            "critic": network | (encoder if "critic" in seen else {}),
            "algorithm": {"num_learning_epochs": 3, **(algorithm or {})},
        },
    )


def observations(images: Literal["", "floats", "bytes"] = "") -> TensorDict:
    groups = {name: 3.0 * torch.randn(WORLDS, size) + 1.0 for name, size in GROUPS.items()}
    for name, size in IMAGES.items() if images else ():
        bits = torch.randint(256, (WORLDS, *size), dtype=torch.uint8)
        groups[name] = bits if images == "bytes" else bits / torch.tensor(64.0)
    return TensorDict(groups, batch_size=[WORLDS])


def learn(
    kind: Callable[..., Learner] | None,
    config: AgentConfig,
    updates: int,
    alg: Any = None,
    *,
    perturbs: bool = True,
    load: Callable[..., Any] = str,
    capture: Capture | None = None,
) -> tuple[Any, dict[str, float]]:
    """Updates from random numbers, the same for every kind of algorithm; and the last losses.

    None stands for rsl_rl's stock PPO.
    """
    losses: Any = {}
    kinds = {"MLPModel": "", "CNNModel": "floats", "own:Bytes": "bytes"}
    images: Any = kinds.get(config.actor.class_name, "")
    if alg is None:
        torch.manual_seed(5)
        first = observations(images)
        sizes = {"num_envs": WORLDS, "num_actions": ACTIONS}
        env: Any = SimpleNamespace(get_observations=lambda: first, **sizes)
        if kind is None:
            stock = rsl_rl_config(config, load) | {"multi_gpu": None}
            alg = algorithms.PPO.construct_algorithm(first, env, stock, "cpu")
        else:
            alg = kind(Setup(env, config, "cpu", 1, load, Collectives(), capture))
        alg.train_mode()
    is_learner = isinstance(alg, Learner)
    for update in range(updates):
        torch.manual_seed(update)  # rsl_rl draws actions, which nobody needs, while it updates.
        with torch.inference_mode():
            seen = observations(images)
            for _ in range(STEPS):
                before, actions = seen, alg.act(seen)
                seen = observations(images)
                dones = torch.rand(WORLDS) < 0.2
                time_outs = dones & (torch.rand(WORLDS) < 0.5)
                rewards = actions.sum(dim=1) + torch.randn(WORLDS)
                if is_learner:
                    alg.record(before, actions, Step(seen, rewards, dones, time_outs))
                else:
                    alg.process_env_step(seen, rewards, dones, {"time_outs": time_outs})
            if not is_learner:
                alg.compute_returns(seen)
            # The adaptive schedule would follow what rounding leaves of a divergence that is zero.
            for parameter in alg.actor.parameters() if perturbs else ():
                parameter.data += 0.02 * torch.randn_like(parameter)
        losses = read(alg.learn())[0] if is_learner else alg.update()
    return alg, losses


@pytest.fixture(params=[torch.float32, torch.float64], ids=["float32", "float64"])
def tolerance(request: pytest.FixtureRequest) -> Iterator[float]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(request.param)
    yield 1e-5 if request.param == torch.float32 else 1e-12
    torch.set_default_dtype(before)


@pytest.mark.parametrize("case", CASES)
def test_an_update_ends_with_the_parameters_of_rsl_rl(case: str, tolerance: float) -> None:
    config = agent(**CASES[case])
    ours, losses = learn(PPO, config, updates=1)
    theirs, their_losses = learn(None, config, updates=1)
    before = weights(learn(None, config, updates=0)[0])
    assert not all(torch.equal(before[key], value) for key, value in weights(ours).items())
    torch.testing.assert_close(weights(ours), weights(theirs), rtol=tolerance, atol=tolerance)
    assert ours.learning_rate == pytest.approx(theirs.learning_rate)
    if "adaptive" in case:
        assert ours.learning_rate != config.ppo.learning_rate
    torch.testing.assert_close(losses, their_losses, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", ["images, both networks", "images, mixed precision"])
def test_graphs_encode_images_as_calls_do(case: str) -> None:
    config, stub = agent(**CASES[case]), CudaGraphStub()
    config = from_dict(config, {"algorithm": {"backprop": "autograd"}})
    called, graphed = (learn(PPO, config, 1, capture=x)[0] for x in (None, stub.capture))
    assert all(torch.equal(value, weights(called)[key]) for key, value in weights(graphed).items())
    assert len(stub.graphs) == 2
    assert all(graph.replays > 1 for graph in stub.graphs)


def test_images_without_numbers_leave_nothing_to_normalise() -> None:
    alone = {"images": {"actor": ["camera"]}, "numbers": {"actor": []}}
    for name in ("ppo", "grpo"):
        learn(PPO, agent(normalised=True, algorithm={"name": name}, **alone), 1)


def test_the_gradient_of_a_loss_of_ones_own_reaches_encoders() -> None:
    class Calm(PPO):
        def loss(self, minibatch: Minibatch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
            total, parts = super().loss(minibatch)
            codes = minibatch.actor_inputs[:, -self.actor.cnn_latent_dim :].square().mean()
            return total + codes, {**parts, "codes": codes}

    config = agent(images={"actor": ["camera"]})
    alg, _ = learn(Calm, config, 0)
    before = copy.deepcopy(weights(alg))
    alg.check(observations("floats"))
    assert all(torch.equal(value, before[key]) for key, value in weights(alg).items())
    _, first = learn(None, config, 1, alg=alg)
    _, last = learn(None, config, 9, alg=alg)
    assert 0 < last["codes"] < first["codes"]


class Bytes(CNNModel):
    """Takes images of bytes."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        for name, layers in self.cnns.items():
            self.cnns[name] = torch.nn.Sequential(Scaled(), layers)


class Scaled(torch.nn.Module):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        assert images.dtype == torch.uint8
        return images.to(torch.get_default_dtype()) / 255


def test_images_are_gathered_for_a_minibatch_as_they_are_stored(tolerance: float) -> None:
    config = agent(images={"actor": ["camera"]}, algorithm={"num_mini_batches": 4})
    config = from_dict(config, {"actor": {"class_name": "own:Bytes"}})

    def load(*_: Any) -> Any:
        return Bytes

    ours, theirs = (learn(kind, config, 1, load=load)[0] for kind in (PPO, None))
    torch.testing.assert_close(weights(ours), weights(theirs), rtol=tolerance, atol=tolerance)
    kept = ours.storage.observations["camera"]
    copies = [
        x for x in vars(ours.minibatches)["_images"]["camera"] if x.data_ptr() != kept.data_ptr()
    ]
    assert [(x.dtype, x.nbytes) for x in copies] == [(torch.uint8, kept.nbytes // 4)]


def test_networks_that_share_an_encoder_encode_images_once() -> None:
    class Shared(PPO):
        """Predicts values from what the policy's encoder sees, and learns a number besides."""

        calls = 0

        def modules(self) -> dict[str, torch.nn.Module]:
            self.critic.cnns = self.actor.cnns
            self.actor.cnns["camera"].register_forward_hook(self.count)
            return {"bias": torch.nn.ParameterDict({"value": torch.zeros(())})}

        def count(self, *_: Any) -> None:
            self.calls += torch.is_grad_enabled()

    config = agent(images={"actor": ["camera"], "critic": ["camera"]})
    alg, _ = learn(Shared, config, 1)
    assert alg.calls == 3 * 4
    assert torch.equal(*(x.cnns["camera"][0].weight for x in (alg.actor, alg.critic)))


class Squashed(distribution.GaussianDistribution):
    def sample(self) -> torch.Tensor:
        return torch.tanh(super().sample())


class Laplacian(distribution.GaussianDistribution):
    def update(self, mlp_output: torch.Tensor) -> None:
        super().update(mlp_output)
        laplace: Any = torch.distributions.Laplace(self.mean, self.std)
        self._distribution = laplace


@pytest.mark.parametrize("kind", [distribution.BetaDistribution, Squashed, Laplacian])
def test_actions_are_of_the_actors_own_distribution_and_learned_from_as_in_rsl_rl(
    kind: Any, tolerance: float
) -> None:
    class Net(MLPModel):
        def __init__(self, *args: Any, **settings: Any) -> None:
            super().__init__(*args, **settings | {"distribution_cfg": {"class_name": kind}})

    config = from_dict(
        agent(algorithm={"schedule": "adaptive", "desired_kl": 0.002}),
        {"actor": {"class_name": "own:Net"}},
    )
    ours, theirs = (learn(x, config, 1, load=lambda *_: Net)[0] for x in (PPO, None))
    torch.testing.assert_close(weights(ours), weights(theirs), rtol=tolerance, atol=tolerance)
    assert ours.learning_rate == pytest.approx(theirs.learning_rate)


def test_mixed_precision_rounds_gradients_and_no_more() -> None:
    rounded, exact = (
        learn(PPO, agent(algorithm={"use_mixed_precision": is_mixed, "optimizer": "sgd"}), 1)[0]
        for is_mixed in (True, False)
    )
    differences = [v - weights(exact)[key] for key, v in weights(rounded).items()]
    assert 0 < max(d.abs().max().item() for d in differences) < 1e-3
    assert all(p.dtype == torch.float32 for p in rounded.actor.parameters())


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_threads_that_share_an_update_end_with_the_same(threads: int, tolerance: float) -> None:
    ours, losses = learn(PPO, agent(algorithm={"learning_threads": threads}), updates=1)
    theirs, their_losses = learn(None, agent(), updates=1)
    torch.testing.assert_close(weights(ours), weights(theirs), rtol=tolerance, atol=tolerance)
    assert losses == pytest.approx(their_losses, rel=1e-4, abs=1e-6)


CHANGES = {
    "clip_param": 0.05, "desired_kl": 0.1, "entropy_coef": 0.2, "gamma": 0.9, "lam": 0.5,
    "max_grad_norm": 0.1, "num_learning_epochs": 2, "use_clipped_value_loss": False,
    "value_loss_coef": 0.3,
}  # fmt: skip


@pytest.mark.parametrize("backprop", ["auto", "autograd"])
def test_numbers_that_are_changed_in_the_algorithm_count_from_the_next_update(
    backprop: str, tolerance: float
) -> None:
    config = agent(algorithm={"backprop": backprop})
    results = []
    for kind in (PPO, None):
        alg, _ = learn(kind, config, updates=0)
        for name, value in CHANGES.items():
            setattr(alg, name, value)
        results.append(learn(None, config, updates=1, alg=alg)[0])
    ours, theirs = results
    torch.testing.assert_close(weights(ours), weights(theirs), rtol=tolerance, atol=tolerance)
    assert ours.learning_rate == pytest.approx(theirs.learning_rate)


def test_what_a_subclass_adds_to_an_update_is_done_in_training() -> None:
    class Decaying(PPO):
        def update(self) -> dict[str, float]:
            self.entropy_coef *= 0.5
            return {**super().update(), "entropy_coef": self.entropy_coef}

    alg, _ = learn(Decaying, agent(algorithm={"entropy_coef": 0.04}), updates=1)
    never = torch.zeros(WORLDS, dtype=torch.bool)
    with torch.inference_mode():
        for _ in range(STEPS):
            seen = observations()
            step = Step(observations(), torch.ones(WORLDS), never, never)
            alg.record(seen, alg.act(seen), step)
    (losses,) = read(alg.learn())
    assert losses["entropy_coef"] == 0.01
    assert losses.keys() > {"surrogate", "entropy"}


@pytest.mark.parametrize(("first", "second"), [(PPO, None), (None, PPO), (PPO, PPO)])
def test_each_goes_on_from_what_the_other_has_saved(
    first: type[Algorithm] | None, second: type[Algorithm] | None
) -> None:
    config = agent()
    begun, _ = learn(first, config, updates=2)
    other, _ = learn(second, config, updates=0)
    other.load(copy.deepcopy(begun.save()), None, strict=True)
    assert other.learning_rate == begun.learning_rate
    for alg in (begun, other):
        learn(None, config, updates=2, alg=alg)
    torch.testing.assert_close(weights(other), weights(begun), rtol=1e-4, atol=1e-5)


CHANGED = {
    "group_size": 2, "gradient_length": 3, "loss_type": "huber", "lam": 0.5, "clip_param": 0.05,
    "value_loss_coef": 0.3, "use_clipped_value_loss": False, "entropy_coef": 0.2, "gamma": 0.5,
    "num_mini_batches": 2, "schedule": "fixed", "desired_kl": 0.1,
    "normalize_advantage_per_mini_batch": True,
}  # fmt: skip


@pytest.mark.parametrize("usual", [{}, {"name": "grpo"}, {"schedule": "fixed"}])
def test_the_fields_that_are_said_to_have_no_effect_are_those_that_have_none(
    usual: dict[str, Any],
) -> None:
    def learned(algorithm: dict[str, Any]) -> dict[str, torch.Tensor]:
        settings = {"learning_rate": 0.01, **usual, **algorithm}
        return weights(learn(PPO, agent(algorithm=settings), 2)[0])

    as_usual, same = learned({}), set()
    for name, value in CHANGED.items():
        now = learned({name: value})
        if value != usual.get(name) and all(torch.equal(now[k], w) for k, w in as_usual.items()):
            same.add(f"agent.algorithm.{name}")
    names = [f"agent.algorithm.{name}" for name in CHANGED]
    assert same == {field.name for field in unused_fields(agent(algorithm=usual), names)}


def test_actions_are_the_samples_of_torch_normal() -> None:
    alg, _ = learn(PPO, agent(), updates=0)
    seen = observations()
    torch.manual_seed(3)
    with torch.inference_mode():
        actions = alg.act(seen)
        torch.manual_seed(3)
        assert torch.equal(actions, torch.normal(alg.actor.output_mean, alg.actor.output_std))


UNKNOWN: dict[str, dict[str, Any]] = {
    "recurrent": {"actor": {"class_name": "RNNModel"}},
    "distillation": {"algorithm": {"rnd_cfg": {"weight": 0.1}}},
    "rmsprop": {"algorithm": {"optimizer": "rmsprop"}},
}


@pytest.mark.parametrize("what", UNKNOWN)
def test_what_only_rsl_rl_has_takes_its_update_and_says_so_once(
    what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = BUNDLED["cartpole-balance"]
    small = {"num_steps_per_env": 4, "max_iterations": 2}
    for config, is_ours in (
        (from_dict(found.task.agent, small), True),
        (from_dict(found.task.agent, small | UNKNOWN[what]), False),
    ):
        env = build_task("cartpole-balance", "native", "cpu", num_envs=8)
        runner = Runner(env, config, "cpu", 1, found.load)
        assert not capsys.readouterr().out  # A policy that is only played learns nothing.
        runner.train(lambda _: None, lambda: None)
        assert isinstance(runner.alg, PPO) == is_ours
        assert capsys.readouterr().out.count(what) == (0 if is_ours else 1)
