"""skrl's PPO in JAX; skrl_adapter.py has what both frameworks share. Runs in a worker."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from optax.tree_utils import tree_get, tree_set
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

ACTIVATIONS: dict[type[nn.Module], Callable[[Any], Any]] = {
    nn.ELU: jax.nn.elu,
    nn.SELU: jax.nn.selu,
    nn.ReLU: jax.nn.relu,
    nn.CELU: jax.nn.celu,
    nn.LeakyReLU: jax.nn.leaky_relu,
    nn.Tanh: jax.nn.tanh,
    nn.Sigmoid: jax.nn.sigmoid,
    nn.Softplus: jax.nn.softplus,
    nn.GELU: partial(jax.nn.gelu, approximate=False),
    nn.SiLU: jax.nn.silu,
    nn.Mish: jax.nn.mish,
    nn.Identity: jax.nn.identity,
}
"""JAX's function for each activation of torch."""


class JaxPPO(SkrlPPO):
    """skrl's PPO in JAX. Each update copies parameters and Adam's moments to JAX and back."""

    def _make_agent(self) -> Any:
        config.jax.device = _use(self.device)
        self._networks: dict[str, Any] = {"policy": self.actor, "value": self.critic}
        agent = self._build(
            *(PPO, RandomMemory, self._make_model(_Policy), self._make_model(_Value)),
            config.jax.device,
            grad_norm_clip=self.config.max_grad_norm,
            learning_rate_scheduler=self._kl_adaptive,
        )
        self._adams = {"policy": agent.policy_optimizer, "value": agent.value_optimizer}
        return agent

    def _make_model(self, kind: Any) -> Callable[..., Any]:
        """Return a constructor of models that have the parameters of their network."""

        def make(network: nn.Module, **place: Any) -> Any:
            model = kind(network, **place)
            model.state_dict = StateDict.create(apply_fn=model.apply, params=self._tree(network))
            return model

        return make

    def _kl_adaptive(self) -> Callable[..., float]:
        """Return skrl's schedule by the KL divergence of all ranks. skrl looks at this name."""
        adapt: Any = KLAdaptiveLR(kl_threshold=self.config.desired_kl)

        def schedule(step: int, *, lr: float, kl: float) -> float:
            return adapt(step, lr=lr, kl=self._mean_kl(kl)) if self.is_adaptive else lr

        return schedule

    def _array(self, tensor: torch.Tensor) -> Any:
        return jnp.from_dlpack(tensor.detach().contiguous())

    def _learn(self) -> None:
        self._copy_to_jax()
        self.agent.update(timestep=0, timesteps=0)
        self._copy_from_jax()

    def _copy_to_jax(self) -> None:
        """Give JAX the parameters, and the moments and learning rate of torch's Adam."""
        agent, states = self.agent, self.optimizer.state
        count = next((int(state["step"]) for state in states.values() if state), 0)

        def moment(name: str, parameter: nn.Parameter) -> torch.Tensor:
            return states[parameter].get(name, torch.zeros_like(parameter))

        for role, network in self._networks.items():
            model, adam = agent.models[role], self._adams[role]
            model.state_dict = model.state_dict.replace(params=self._tree(network))
            mu, nu = (
                self._tree(network, partial(moment, name)) for name in ("exp_avg", "exp_avg_sq")
            )
            adam = adam.replace(state=tree_set(adam.state, count=np.int32(count), mu=mu, nu=nu))
            mean = partial(self._mean_gradients, network)
            setattr(agent, f"{role}_optimizer", _RanksAdam(adam, mean))
        agent.policy_learning_rate = agent.value_learning_rate = self.learning_rate

    @torch.no_grad()
    def _copy_from_jax(self) -> None:
        """Copy parameters, moments and learning rate back into torch's tensors."""
        for role, network in self._networks.items():
            state = getattr(self.agent, f"{role}_optimizer").adam.state
            parameters = self.agent.models[role].state_dict.params["params"]
            mu, nu = (tree_get(state, name)["params"] for name in ("mu", "nu"))
            for name, parameter in network.named_parameters():
                parameter.copy_(torch.from_dlpack(parameters[name]))
                self.optimizer.state[parameter] = {
                    "step": torch.tensor(float(tree_get(state, "count"))),
                    "exp_avg": torch.from_dlpack(mu[name]).clone(),
                    "exp_avg_sq": torch.from_dlpack(nu[name]).clone(),
                }
        self.learning_rate = self.agent.policy_learning_rate

    def _tree(
        self, network: nn.Module, value: Callable[[nn.Parameter], torch.Tensor] = lambda p: p
    ) -> dict[str, Any]:
        """Return an array for each parameter by its name, nested as flax does: its `value`."""
        return {"params": {k: self._array(value(p)) for k, p in network.named_parameters()}}

    @torch.no_grad()
    def _mean_gradients(self, network: nn.Module, gradients: Any) -> Any:
        """Return a network's gradients, averaged over the ranks."""
        if not self.is_distributed:
            return gradients
        for name, parameter in network.named_parameters():
            if parameter.grad is not None:
                parameter.grad.copy_(torch.from_dlpack(gradients["params"][name]))
        self.reduce_parameters()
        return self._tree(network, lambda p: torch.zeros_like(p) if p.grad is None else p.grad)


@dataclass(frozen=True)
class _RanksAdam:
    """skrl's Adam in JAX, which steps by the mean gradients of all ranks."""

    adam: Any
    mean: Callable[[Any], Any]

    def step(self, *, grad: Any, model: Any, lr: float) -> "_RanksAdam":
        """Return the optimiser after a step."""
        return replace(self, adam=self.adam.step(grad=self.mean(grad), model=model, lr=lr))


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
        else:
            rows = ACTIVATIONS[type(layer)](rows)
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
