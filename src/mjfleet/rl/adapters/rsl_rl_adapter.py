"""rsl_rl's networks, storage and optimiser, and its own update. Runs in a worker."""

import contextlib
import io
from collections.abc import Callable, Iterator
from typing import Any

import torch
from rsl_rl.algorithms import PPO

from mjfleet.config import AgentConfig, to_dict
from mjfleet.env import Env
from mjfleet.rl.algorithm import Algorithm
from mjfleet.rl.collectives import Collectives


class RslRlUpdate(Algorithm):
    """rsl_rl's own update, for the features that ours lacks, see `PPO.missing`.

    Over several ranks, gradients and KL divergence are averaged by one all-reduce per minibatch
    instead of rsl_rl's three collectives.
    """

    def __init__(
        self, parts: PPO, agent: AgentConfig, collectives: Collectives, num_threads: int
    ) -> None:
        """Take Algorithm's arguments."""
        super().__init__(parts, agent, collectives, num_threads)
        self._batch: Any = None
        """The minibatch that rsl_rl learns from."""
        if self.is_distributed:
            assert isinstance(parts, _DistributedPPO)
            parts.reduce = self.reduce_parameters
            parts.is_multi_gpu = True
            parts.schedule = "fixed"  # The learning rate is adapted in reduce_parameters.

    def update(self) -> dict[str, float]:
        """Run rsl_rl's update over the stored rollout; return its mean losses, of this rank."""
        names = ("mini_batch_generator", "recurrent_mini_batch_generator")
        for name in names:
            setattr(self.storage, name, self._watched(getattr(self.storage, name)))
        try:
            return self.parts.update()
        finally:
            for name in names:
                delattr(self.storage, name)

    def reduce_parameters(self) -> None:
        """Average gradients and KL divergence over the ranks, and adapt the learning rate."""
        if self.is_adaptive and self._batch is not None:
            old, samples = self._batch
            with torch.inference_mode():
                new = tuple(p[:samples] for p in self.actor.output_distribution_params)
                self.gradient.kl.copy_(self.actor.get_kl_divergence(old, new).mean())
        super().reduce_parameters()
        if self.is_adaptive:
            self.adapt_learning_rate(self.gradient.kl.item())

    def _watched(self, generate: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        """Return the storage's generator of minibatches, which also notes each of them."""

        def generate_watched(*args: Any, **kwargs: Any) -> Iterator[Any]:
            for batch in generate(*args, **kwargs):
                self.on_minibatch()
                self._batch = batch.old_distribution_params, batch.observations.batch_size[0]
                yield batch

        return generate_watched


class _DistributedPPO(PPO):
    """rsl_rl's PPO with another reduction of gradients."""

    reduce: Callable[[], None]

    def reduce_parameters(self) -> None:
        """Average the gradients over the ranks."""
        self.reduce()


def build_parts(env: Env[Any], agent: AgentConfig, device: str, load: Callable[[str], Any]) -> PPO:
    """Build networks, optimiser and storage for an environment.

    Args:
        env: its observations and sizes.
        agent: the configuration.
        device: torch's name of the device.
        load: finds `module:name` in the task folder.
    """
    config = rsl_rl_config(agent, load)
    config["multi_gpu"] = None
    config["algorithm"]["class_name"] = _DistributedPPO
    with contextlib.redirect_stdout(io.StringIO()):  # rsl_rl prints both networks.
        return PPO.construct_algorithm(env.get_observations(), env, config, device)


def rsl_rl_config(agent: AgentConfig, load: Callable[[str], Any]) -> dict[str, Any]:
    """Return the nested dictionary that rsl_rl's runner takes.

    Args:
        agent: our configuration, whose fields have rsl_rl's names.
        load: finds `module:name` in the task folder.
    """
    plain = to_dict(agent)
    algorithm = plain["algorithm"]
    for ours in ("backprop", "learning_threads"):
        del algorithm[ours]
    if algorithm["symmetry_cfg"] is not None:
        mirror = algorithm["symmetry_cfg"]["data_augmentation_func"]
        algorithm["symmetry_cfg"]["data_augmentation_func"] = load(mirror)
    actor, critic = _model(plain["actor"]), _model(plain["critic"])
    distribution = actor.pop("distribution")
    if distribution["class_name"] != "GaussianDistribution":
        del distribution["learn_std"]
    return {
        "num_steps_per_env": agent.num_steps_per_env,
        "save_interval": agent.save_interval,
        "torch_compile_mode": agent.torch_compile_mode,
        "check_for_nan": False,
        "obs_groups": plain["obs_groups"],
        "actor": actor | {"distribution_cfg": distribution},
        "critic": critic,
        "algorithm": {"class_name": "PPO"} | algorithm,
    }


def _model(plain: dict[str, Any]) -> dict[str, Any]:
    """Return a network's configuration without the fields that its class does not take."""
    recurrent = plain["class_name"] == "RNNModel"
    return {k: v for k, v in plain.items() if recurrent or not k.startswith("rnn_")}
