"""skrl's PPO in the place of rsl_rl's, in PyTorch or in JAX. Runs in a worker.

Networks, rollouts and checkpoints stay as they are: whatever collects, saves, evaluates, plays or
exports knows nothing of skrl, and a run can go on with another library. What skrl does is to learn
from a rollout: returns and advantages, minibatches, losses, the learning rate, Adam.

skrl believes that it is alone. Ranks share their gradients and KL divergences where these reach
skrl's optimisers and schedules, by the run's own collectives, also those of JAX: the ranks do not
have to find each other a second time, and a lost one is noticed as ever.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box
from tensordict import TensorDict
from torch import nn

from mjfleet.errors import UserError
from mjfleet.rl.ppo import FlatPPO


@contextmanager
def _unconnected() -> Iterator[None]:
    """Import skrl without its connecting the ranks, which it would do by NCCL, also on a CPU."""
    world_size = os.environ.pop("WORLD_SIZE", None)
    try:
        yield
    finally:
        if world_size is not None:
            os.environ["WORLD_SIZE"] = world_size


class SkrlPPO(FlatPPO, ABC):
    """What both frameworks share; their arrays are made from the tensors of rsl_rl's storage."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Take FlatPPO's arguments."""
        super().__init__(*args, **kwargs)
        # skrl steers the learning rate, not what reduces the gradients.
        self.is_adaptive, self._adaptive = self._adaptive, False
        self._after: Any = None
        with _unconnected():
            self.agent: Any = self._make_agent()
        self.agent.init()
        self._watch_minibatches(self.agent.memory)

    @abstractmethod
    def _make_agent(self) -> Any:
        """skrl's agent, of our networks."""

    @abstractmethod
    def _array(self, tensor: torch.Tensor) -> Any:
        """A tensor as the framework's own array."""

    @abstractmethod
    def _learn(self) -> None:
        """Have the agent update networks, optimiser and learning rate by what is in its memory."""

    def compute_returns(self, obs: TensorDict) -> None:
        """Keep what the worlds look like after the rollout: skrl computes returns in its update."""
        self._after = obs

    def update(self) -> dict[str, float]:
        """Learn from the stored rollout; returns the mean losses, of this rank."""
        storage, memory = self.storage, self.agent.memory
        for name, tensor in {
            "observations": self.actor.get_latent(storage.observations),
            "states": self.critic.get_latent(storage.observations),
            "actions": storage.actions,
            "rewards": storage.rewards,  # rsl_rl has added the values of worlds that timed out.
            "terminated": storage.dones.bool(),
            "log_prob": storage.actions_log_prob,
            "values": storage.values,
        }.items():
            memory.set_tensor_by_name(name, self._array(tensor))
        memory.filled = True
        self.agent._current_next_observations = self._array(self.actor.get_latent(self._after))
        self.agent._current_next_states = self._array(self.critic.get_latent(self._after))
        self._learn()
        for network in (self.actor, self.critic):
            network.update_normalization(storage.observations.flatten(0, 1))
        storage.clear()
        tracked = {name: values[-1] for name, values in self.agent.tracking_data.items()}
        self.agent.tracking_data.clear()
        return {
            "value": tracked["Loss / Value loss"] / (self.value_loss_coef or 1.0),
            "surrogate": tracked["Loss / Policy loss"],
            "entropy": self.actor.output_entropy.mean().item(),
        }

    def mean_kl(self, kl: float) -> float:
        """The mean over all ranks, which thus adapt their learning rates alike."""
        return self.collectives.total([kl])[0] / self.collectives.world_size

    def _spaces(self) -> dict[str, Box]:
        """What skrl is to know of the networks' inputs and outputs."""
        sizes = {
            "observation_space": self.actor.obs_dim,
            "state_space": self.critic.obs_dim,
            "action_space": self.storage.actions.shape[-1],
        }
        return {name: Box(-np.inf, np.inf, (size,)) for name, size in sizes.items()}

    def _settings(self) -> dict[str, Any]:
        """Our numbers under skrl's names; nothing is written by skrl."""
        return {
            "rollouts": self.storage.num_transitions_per_env,
            "learning_epochs": self.num_learning_epochs,
            "mini_batches": self.num_mini_batches,
            "discount_factor": self.gamma,
            "gae_lambda": self.lam,
            "learning_rate": self.learning_rate,
            "ratio_clip": self.clip_param,
            "value_clip": self.clip_param if self.use_clipped_value_loss else 0.0,
            "entropy_loss_scale": self.entropy_coef,
            "value_loss_scale": self.value_loss_coef,
            "experiment": {"write_interval": 0, "checkpoint_interval": 0},
        }

    def _watch_minibatches(self, memory: Any) -> None:
        sample = memory.sample

        def watched(*args: Any, **kwargs: Any) -> Iterator[Any]:
            for batch in sample(*args, **kwargs):
                self.on_minibatch()
                yield batch

        memory.sample = watched


class TorchPPO(SkrlPPO):
    """In PyTorch: skrl trains the very networks and steps the very optimiser."""

    def _make_agent(self) -> Any:
        from skrl.agents.torch.ppo import PPO
        from skrl.memories.torch import RandomMemory
        from skrl.models.torch import DeterministicMixin, GaussianMixin, Model
        from skrl.resources.schedulers.torch import KLAdaptiveLR

        actor: Any = self.actor
        critic: Any = self.critic
        mean_kl = self.mean_kl
        storage, place = self.storage, {**self._spaces(), "device": self.device}

        class Policy(GaussianMixin, Model):
            def __init__(self) -> None:
                Model.__init__(self, **place)
                GaussianMixin.__init__(self, clip_log_std=False)
                self.network = actor

            def compute(self, inputs: dict[str, Any], role: str) -> tuple[Any, dict[str, Any]]:
                actor.distribution.update(actor.mlp(inputs["observations"]))
                return actor.output_mean, {"log_std": actor.output_std.log()}

        class Value(DeterministicMixin, Model):
            def __init__(self) -> None:
                Model.__init__(self, **place)
                DeterministicMixin.__init__(self)
                self.network = critic

            def compute(self, inputs: dict[str, Any], role: str) -> tuple[Any, dict[str, Any]]:
                return critic.mlp(inputs["states"]), {}

        class Schedule(KLAdaptiveLR):
            def step(self, kl: Any = None, **kwargs: Any) -> None:
                super().step(None if kl is None else mean_kl(kl), **kwargs)

        agent = PPO(
            models={"policy": Policy(), "value": Value()},
            memory=RandomMemory(
                memory_size=storage.num_transitions_per_env,
                num_envs=storage.num_envs,
                device=self.device,
            ),
            cfg=self._settings() | {"grad_norm_clip": 0.0},  # `_finish_gradients` does it.
            **place,
        )
        agent.optimizer = self.optimizer
        self.optimizer.register_step_pre_hook(self._finish_gradients)
        if self.is_adaptive:
            agent.scheduler = Schedule(self.optimizer, kl_threshold=self.desired_kl)
        return agent

    def _array(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def _learn(self) -> None:
        self.agent.update(timestep=0, timesteps=0)
        self.learning_rate = self.optimizer.param_groups[0]["lr"]

    def _finish_gradients(self, *_: Any) -> None:
        """Average gradients over the ranks, then clip those of actor and critic."""
        if self.is_multi_gpu:
            self.reduce_parameters()
        for network in (self.actor, self.critic):
            nn.utils.clip_grad_norm_(network.parameters(), self.max_grad_norm)


class JaxPPO(SkrlPPO):
    """In JAX: for as long as an update takes, parameters and Adam's moments live there.

    They come from the networks and the optimiser that rsl_rl has made, and go back to them.
    """

    def _make_agent(self) -> Any:
        jax: Any = _start_jax(self.device)
        import jax.numpy as jnp
        from skrl import config
        from skrl.agents.jax.ppo import PPO
        from skrl.memories.jax import RandomMemory
        from skrl.models.jax import DeterministicMixin, GaussianMixin, Model
        from skrl.models.jax.base import StateDict
        from skrl.resources.schedulers.jax import KLAdaptiveLR

        actor: Any = self.actor
        critic: Any = self.critic
        storage, place = self.storage, {**self._spaces(), "device": self.device.partition(":")[0]}
        config.jax.device = place["device"]
        self._networks = {"policy": actor, "value": critic}

        def forward(network: Any, parameters: Any, rows: Any) -> Any:
            for i, layer in enumerate(network.mlp):
                if isinstance(layer, nn.Linear):
                    weight, bias = (parameters[f"mlp.{i}.{kind}"] for kind in ("weight", "bias"))
                    rows = rows @ weight.T + bias
                else:
                    rows = _activation(layer)(rows)
            return rows

        class Policy(GaussianMixin, Model):
            def __init__(self, **kwargs: Any) -> None:
                Model.__init__(self, **kwargs)
                GaussianMixin.__init__(self, clip_log_std=False)

            def __call__(self, inputs: dict[str, Any], role: str) -> tuple[Any, dict[str, Any]]:
                parameters: Any = self.variables["params"]
                distribution = actor.distribution
                if distribution.std_type == "log":
                    std = jnp.exp(parameters["distribution.log_std_param"])
                else:
                    std = parameters["distribution.std_param"]
                if not next(distribution.parameters()).requires_grad:
                    std = jax.lax.stop_gradient(std)
                log_std = jnp.log(jnp.clip(std, *distribution.std_range))
                return forward(actor, parameters, inputs["observations"]), {"log_std": log_std}

        class Value(DeterministicMixin, Model):
            def __init__(self, **kwargs: Any) -> None:
                Model.__init__(self, **kwargs)
                DeterministicMixin.__init__(self)

            def __call__(self, inputs: dict[str, Any], role: str) -> tuple[Any, dict[str, Any]]:
                return forward(critic, self.variables["params"], inputs["states"]), {}

        def kl_adaptive(**kwargs: Any) -> Callable[..., float]:  # skrl knows it by its name.
            adapt: Any = KLAdaptiveLR(kl_threshold=self.desired_kl)

            def schedule(step: int, *, lr: float, kl: float) -> float:
                return adapt(step, lr=lr, kl=self.mean_kl(kl)) if self.is_adaptive else lr

            return schedule

        models = {"policy": Policy(**place), "value": Value(**place)}
        for name, model in models.items():
            model.state_dict = StateDict.create(
                apply_fn=model.apply, params=self._tree(self._networks[name], lambda p: p)
            )
        agent = PPO(
            models=models,
            memory=RandomMemory(
                memory_size=storage.num_transitions_per_env,
                num_envs=storage.num_envs,
                device=place["device"],
            ),
            cfg=self._settings()
            | {"grad_norm_clip": self.max_grad_norm, "learning_rate_scheduler": kl_adaptive},
            **place,
        )
        self._adams: dict[str, Any] = {
            "policy": agent.policy_optimizer,
            "value": agent.value_optimizer,
        }
        return agent

    def _array(self, tensor: torch.Tensor) -> Any:
        import jax.numpy as jnp

        return jnp.from_dlpack(tensor.detach().contiguous())

    def _learn(self) -> None:
        self._hand_over()
        self.agent.update(timestep=0, timesteps=0)
        self._take_back()

    def _hand_over(self) -> None:
        """Give JAX the parameters, and the moments and learning rate of torch's Adam."""
        from optax.tree_utils import tree_set

        agent, states = self.agent, self.optimizer.state
        count = next((int(state["step"]) for state in states.values() if state), 0)

        def moment(name: str) -> Callable[[nn.Parameter], torch.Tensor]:
            return lambda p: states[p].get(name, torch.zeros_like(p))

        for role, network in self._networks.items():
            model, adam = agent.models[role], self._adams[role]
            parameters = self._tree(network, lambda parameter: parameter)
            model.state_dict = model.state_dict.replace(params=parameters)
            mu, nu = (self._tree(network, moment(name)) for name in ("exp_avg", "exp_avg_sq"))
            adam = adam.replace(state=tree_set(adam.state, count=count, mu=mu, nu=nu))
            setattr(agent, f"{role}_optimizer", _RanksAdam(adam, self._mean_gradients))
        agent.policy_learning_rate = agent.value_learning_rate = self.learning_rate

    @torch.no_grad()
    def _take_back(self) -> None:
        """Copy into torch's tensors what JAX has made of them."""
        from optax.tree_utils import tree_get

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
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate

    def _tree(
        self, network: nn.Module, tensor_of: Callable[[nn.Parameter], torch.Tensor]
    ) -> dict[str, Any]:
        """One array for each parameter, by its name, nested as flax does."""
        return {"params": {k: self._array(tensor_of(p)) for k, p in network.named_parameters()}}

    def _mean_gradients(self, gradients: Any) -> Any:
        """The same tree, averaged over the ranks."""
        from jax.flatten_util import ravel_pytree

        vector, restore = ravel_pytree(gradients)
        flat = torch.from_dlpack(vector).clone()
        self.collectives.all_reduce(flat)
        return restore(self._array(flat / self.collectives.world_size))


@dataclass(frozen=True)
class _RanksAdam:
    """skrl's Adam in JAX, which steps by the gradients of all ranks."""

    adam: Any
    mean: Callable[[Any], Any]

    def step(self, *, grad: Any, model: Any, lr: float) -> "_RanksAdam":
        """What comes after the step."""
        return replace(self, adam=self.adam.step(grad=self.mean(grad), model=model, lr=lr))


def _start_jax(device: str) -> Any:
    """Import JAX so that it uses the worker's device alone, and of a GPU no more than it needs."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax

    if device == "cpu":
        jax.config.update("jax_platforms", "cpu")
        return jax
    jax.config.update("jax_cuda_visible_devices", device.removeprefix("cuda:"))
    try:
        jax.devices("cuda")
    except RuntimeError as error:
        raise UserError(
            f"--agent.library skrl-jax: JAX {jax.__version__} finds no GPU ({error}). Its package "
            f"for CUDA is `jax[cuda{(torch.version.cuda or '').partition('.')[0]}]`; --gpu-ids "
            "None trains on the CPU."
        ) from None
    return jax


def _activation(layer: nn.Module) -> Callable[[Any], Any]:
    """JAX's name for one of torch's activations."""
    from jax import nn as functions

    return {
        nn.ELU: functions.elu,
        nn.SELU: functions.selu,
        nn.ReLU: functions.relu,
        nn.CELU: functions.celu,
        nn.LeakyReLU: functions.leaky_relu,
        nn.Tanh: functions.tanh,
        nn.Sigmoid: functions.sigmoid,
        nn.Softplus: functions.softplus,
        nn.GELU: partial(functions.gelu, approximate=False),
        nn.SiLU: functions.silu,
        nn.Mish: functions.mish,
        nn.Identity: functions.identity,
    }[type(layer)]
