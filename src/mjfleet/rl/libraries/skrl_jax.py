"""skrl's PPO in JAX; skrl_adapter.py has the one in PyTorch. Runs in a worker."""

import os
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import torch
from torch import nn

from mjfleet.errors import UserError
from mjfleet.rl.libraries.library_ppo import Inputs
from mjfleet.rl.libraries.skrl import SkrlPPO

# isort: split
# skrl_adapter has to import skrl first, with the other ranks hidden.
from skrl import config
from skrl.agents.jax.ppo import PPO
from skrl.memories.jax import RandomMemory
from skrl.models.jax import DeterministicMixin, GaussianMixin, Model
from skrl.models.jax.base import StateDict
from skrl.resources.schedulers.jax import KLAdaptiveLR


def _array(tensor: torch.Tensor) -> Any:
    return jnp.from_dlpack(tensor.detach().contiguous())


class JaxPPO(SkrlPPO):
    """skrl's PPO in JAX. Its gradients step our optimiser, whose parameters JAX reads."""

    _array = staticmethod(_array)

    def _make_agent(self) -> Any:
        config.jax.device = _use(self.device)
        agent = self._build(PPO, RandomMemory, _Policy, _Value, None)
        both = _Optimizer(self.optimizer, agent.policy, agent.value)
        agent.policy_optimizer = agent.value_optimizer = both
        if self.schedule == "adaptive":  # The policy's rate is that of both.
            adapt: Any = KLAdaptiveLR(kl_threshold=self.config.desired_kl)
            agent.policy_scheduler_type = KLAdaptiveLR
            agent.policy_scheduler = lambda _, *, lr, kl: adapt(_, lr=lr, kl=self._mean_kl(kl))
        return agent

    def _update(self, seen: Inputs, after: Inputs) -> dict[str, float]:
        agent = self.agent
        agent.policy_learning_rate = self.optimizer.param_groups[0]["lr"]
        _read_parameters(agent.policy)
        _read_parameters(agent.value)
        losses = super()._update(seen, after)
        self.set_learning_rate(agent.policy_learning_rate)
        return losses


class _Optimizer(NamedTuple):
    """An optimiser for skrl, which steps torch's for the networks of both models at once.

    With skrl's own, no other library could continue, and ranks would average twice a minibatch.
    """

    optimizer: torch.optim.Optimizer
    policy: Any
    value: Any

    def step(self, *, grad: Any, model: Any, lr: float | None) -> "_Optimizer":
        """Take a model's gradients, and step by those of both once the value's are there, the last.

        What JAX computes from the parameters is done once the gradients are there.
        """
        for name, parameter in model.network.named_parameters():
            if parameter.requires_grad:
                parameter.grad = torch.from_dlpack(grad["params"][name]).clone()
        for group in self.optimizer.param_groups if lr else ():
            group["lr"] = lr
        if model is self.value:
            self.optimizer.step()
            _read_parameters(self.policy)
            _read_parameters(self.value)
        return self


class _Policy(GaussianMixin, Model):
    """rsl_rl's actor in JAX, for normalised observations."""

    network: Any = None

    def __init__(self, network: Any, **place: Any) -> None:
        Model.__init__(self, **place)
        self.network = network
        _read_parameters(self)
        GaussianMixin.__init__(self, clip_log_std=False)

    def __call__(self, inputs: dict[str, Any], role: str) -> tuple[Any, dict[str, Any]]:
        parameters: Any = self.variables["params"]
        distribution = self.network.distribution
        if distribution.std_type == "log":
            std = jnp.exp(parameters["distribution.log_std_param"])
        else:
            std = parameters["distribution.std_param"]
        if not next(distribution.parameters()).requires_grad:
            std = jax.lax.stop_gradient(std)
        log_std = jnp.log(jnp.clip(std, *distribution.std_range))
        return _forward(self.network.mlp, parameters, inputs["observations"]), {"log_std": log_std}


class _Value(DeterministicMixin, Model):
    """rsl_rl's critic in JAX, for normalised observations."""

    network: Any = None

    def __init__(self, network: Any, **place: Any) -> None:
        Model.__init__(self, **place)
        self.network = network
        _read_parameters(self)
        DeterministicMixin.__init__(self)

    def __call__(self, inputs: dict[str, Any], role: str) -> tuple[Any, dict[str, Any]]:
        return _forward(self.network.mlp, self.variables["params"], inputs["states"]), {}


def _read_parameters(model: Any) -> None:
    """Let JAX compute with the network's parameters, by their names, nested as flax does."""
    arrays = {name: _array(p) for name, p in model.network.named_parameters()}
    model.state_dict = StateDict.create(apply_fn=model.apply, params={"params": arrays})


def _forward(mlp: Any, parameters: Any, rows: Any) -> Any:
    """Return the outputs of `mlp` for `rows`, with these parameters."""
    for i, layer in enumerate(mlp):
        if isinstance(layer, nn.Linear):
            rows = rows @ parameters[f"mlp.{i}.weight"].T + parameters[f"mlp.{i}.bias"]
        elif isinstance(layer, nn.GELU):
            rows = jax.nn.gelu(rows, approximate=False)
        else:  # The others have torch's names in lower case.
            name = type(layer).__name__.replace("LeakyReLU", "leaky_relu").lower()
            rows = getattr(jax.nn, name)(rows)
    return rows


def _use(device: str) -> str:
    """Restrict JAX to the worker's device, with memory allocated on demand; return JAX's name."""
    if device == "cpu":
        jax.config.update("jax_platforms", "cpu")
        return "cpu"
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    jax.config.update("jax_cuda_visible_devices", device.removeprefix("cuda:"))
    try:
        jax.devices("cuda")
    except RuntimeError as error:
        cuda = (torch.version.cuda or "").partition(".")[0]
        raise UserError(
            f"--agent.library skrl-jax: JAX {jax.__version__} finds no GPU ({error}). Install "
            f"`jax[cuda{cuda}]`, or train on the CPU (--gpu-ids None)."
        ) from None
    return "cuda"
