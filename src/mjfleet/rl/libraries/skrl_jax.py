"""skrl's PPO in JAX; skrl.py has the one in PyTorch. Runs in a worker."""

import os
from typing import Any

import jax
import jax.numpy as jnp
import torch
from torch import nn

from mjfleet.errors import UserError
from mjfleet.rl.libraries.skrl import SkrlPPO

# isort: split
# mjfleet.rl.libraries.skrl has to import skrl first, with the other ranks hidden.
from skrl import config
from skrl.agents.jax.ppo import PPO
from skrl.memories.jax import RandomMemory
from skrl.models.jax.base import StateDict
from skrl.resources.schedulers.jax import KLAdaptiveLR


class _Network:
    """rsl_rl's actor or critic for normalised observations in JAX, as skrl's PPO calls it."""

    optimizer: Any = None  # The critic has that of both: another library can continue with it.

    def __init__(self, network: Any) -> None:
        self.network = network
        self.get_entropy = lambda std, role: jnp.log(std * (2 * jnp.pi * jnp.e) ** 0.5).sum(axis=-1)
        self.enable_training_mode = self.apply = lambda *_: None  # Nothing of these is needed.

    @property
    def state_dict(self) -> StateDict:
        """The network's parameters as they are now, by their names."""
        arrays = {name: jnp.from_dlpack(p.detach()) for name, p in self.network.named_parameters()}
        return StateDict(apply_fn=None, params=arrays)

    def act(self, inputs: dict[str, Any], role: str, params: Any = None) -> tuple[Any, Any]:
        """Return the critic's values, or means and what skrl needs of `taken_actions`."""
        params = self.state_dict.params if params is None else params
        rows = inputs["states" if role == "value" else "observations"]
        for i, layer in enumerate(self.network.mlp):
            if isinstance(layer, nn.Linear):
                rows = rows @ params[f"mlp.{i}.weight"].T + params[f"mlp.{i}.bias"]
            else:  # JAX has torch's names in lower case.
                name = type(layer).__name__.replace("LeakyReLU", "leaky_relu").lower()
                settings = {"approximate": False} if name == "gelu" else {}
                rows = getattr(jax.nn, name)(rows, **settings)
        if role == "value":
            return rows, {}
        distribution, name = self.network.distribution, "distribution.std_param"
        std = params[name] if name in params else jnp.exp(params["distribution.log_std_param"])
        std = jnp.clip(std, *distribution.std_range)
        log_probs = jax.scipy.stats.norm.logpdf(inputs["taken_actions"], rows, std)
        return rows, {"log_prob": log_probs.sum(axis=1, keepdims=True), "stddev": std}

    def step(self, *, grad: Any, model: Any, lr: float | None) -> "_Network":
        """Take the gradients, and step by those of both networks once the critic's are there.

        Skrl computes these last. What reads the parameters is then done.
        """
        for name, parameter in self.network.named_parameters():
            if parameter.requires_grad:
                parameter.grad = torch.from_dlpack(grad[name]).clone()
        if self.optimizer:
            self.optimizer.step()
        return self


class JaxPPO(SkrlPPO):
    """skrl's PPO in JAX. Its gradients step our optimiser, whose parameters JAX reads."""

    _framework = PPO, RandomMemory, _Network, lambda x: jnp.from_dlpack(x.detach().contiguous())

    def _make_agent(self, device: str | None = None) -> Any:
        # JAX gets the worker's device alone, and memory on demand.
        kind, _, index = self.device.partition(":")
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        name = "jax_platforms" if kind == "cpu" else "jax_cuda_visible_devices"
        jax.config.update(name, index or kind)
        try:
            jax.devices(kind)
        except RuntimeError as error:
            cuda = (torch.version.cuda or "").partition(".")[0]
            raise UserError(
                f"--agent.library skrl-jax: JAX {jax.__version__} finds no GPU ({error}). Install "
                f"`jax[cuda{cuda}]`, or train on the CPU (--gpu-ids None)."
            ) from None
        config.jax.device = kind
        agent = super()._make_agent(kind)
        agent.policy_optimizer, agent.value_optimizer = agent.policy, agent.value
        agent.value.optimizer = self.optimizer
        if agent.scheduler:  # The policy's rate is that of both.
            agent.policy_scheduler_type = KLAdaptiveLR
            agent.policy_scheduler = lambda _, *, lr, kl: agent.scheduler.step(kl)
        return agent
