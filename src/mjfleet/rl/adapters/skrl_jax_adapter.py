"""skrl's PPO in JAX; skrl_adapter.py has the one in PyTorch. Runs in a worker."""

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import torch
from torch import nn

from mjfleet.errors import UserError
from mjfleet.rl.adapters.skrl_adapter import SkrlPPO

# isort: split
# skrl_adapter has to import skrl first, with the other ranks hidden.
from skrl import config
from skrl.agents.jax.ppo import PPO
from skrl.memories.jax import RandomMemory
from skrl.models.jax import DeterministicMixin, GaussianMixin, Model
from skrl.models.jax.base import StateDict
from skrl.resources.schedulers.jax import KLAdaptiveLR


class JaxPPO(SkrlPPO):
    """skrl's PPO in JAX. Its gradients step our optimiser, whose parameters JAX reads."""

    def _make_agent(self) -> Any:
        config.jax.device = _use(self.device)
        policy, value = (partial(self._make_model, kind) for kind in (_Policy, _Value))
        schedule = {"learning_rate_scheduler": self._kl_adaptive}
        agent = self._build(PPO, RandomMemory, policy, value, config.jax.device, **schedule)
        agent.policy_optimizer = agent.value_optimizer = self  # See `step`.
        return agent

    def _kl_adaptive(self) -> Callable[..., float]:
        """Return skrl's schedule by the KL divergence of all ranks. skrl looks at this name."""
        adapt: Any = KLAdaptiveLR(kl_threshold=self.config.desired_kl)

        def schedule(step: int, *, lr: float, kl: float) -> float:
            return adapt(step, lr=lr, kl=self._mean_kl(kl)) if self.is_adaptive else lr

        return schedule

    def _make_model(self, kind: Any, network: nn.Module, **place: Any) -> Any:
        """Return a model that has the parameters of its network."""
        model = kind(network, **place)
        model.state_dict = StateDict.create(apply_fn=model.apply, params=self._tree(network))
        return model

    def _array(self, tensor: torch.Tensor) -> Any:
        return jnp.from_dlpack(tensor.detach().contiguous())

    def _tree(self, network: nn.Module) -> dict[str, Any]:
        """Return the parameters as arrays by their names, nested as flax does."""
        return {"params": {name: self._array(p) for name, p in network.named_parameters()}}

    def _train(self) -> None:
        agent = self.agent
        self.gradient.attach()
        self._read_parameters()
        agent.policy_learning_rate = agent.value_learning_rate = self.learning_rate
        agent.update(timestep=0, timesteps=0)
        self.set_learning_rate(agent.policy_learning_rate)

    @torch.no_grad()
    def step(self, *, grad: Any, model: Any, lr: float) -> "JaxPPO":
        """Take a network's gradients, in the place of skrl's two optimisers; step ours with both.

        What JAX computes from the parameters is done once the gradients are there.
        """
        for name, parameter in model.network.named_parameters():
            if parameter.requires_grad:
                parameter.grad.copy_(torch.from_dlpack(grad["params"][name]))
        if model is self.agent.value:  # The second one in each minibatch.
            self.set_learning_rate(lr)
            self.optimizer.step()
            self._read_parameters()
        return self

    def _read_parameters(self) -> None:
        for model in (self.agent.policy, self.agent.value):
            model.state_dict = model.state_dict.replace(params=self._tree(model.network))


class _Policy(GaussianMixin, Model):
    """rsl_rl's actor in JAX, for normalised observations."""

    network: Any = None

    def __init__(self, network: Any, **place: Any) -> None:
        Model.__init__(self, **place)
        self.network = network
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
        DeterministicMixin.__init__(self)

    def __call__(self, inputs: dict[str, Any], role: str) -> tuple[Any, dict[str, Any]]:
        return _forward(self.network.mlp, self.variables["params"], inputs["states"]), {}


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
