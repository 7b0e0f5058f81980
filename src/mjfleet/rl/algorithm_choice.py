"""Chooses and builds the learning algorithm that a configuration asks for. Runs in a worker."""

from collections.abc import Callable
from functools import partial
from typing import Any

from mjfleet.config import AgentConfig
from mjfleet.env import Env
from mjfleet.rl.adapters.rsl_rl_adapter import RslRlUpdate, build_algorithm
from mjfleet.rl.algorithm import Algorithm
from mjfleet.rl.collectives import Collectives
from mjfleet.rl.cuda_graphs import Capture
from mjfleet.rl.ppo import PPO
from mjfleet.utils.console import print_line


def make_algorithm(
    env: Env[Any],
    agent: AgentConfig,
    device: str,
    num_threads: int,
    load: Callable[[str], Any],
    collectives: Collectives,
    capture: Capture | None,
) -> Algorithm:
    """Build the algorithm of `agent.library`; for the arguments see Runner."""
    kind: Callable[..., Algorithm] = partial(PPO, capture=capture)
    if agent.library == "skrl":
        from mjfleet.rl.adapters.skrl_adapter import TorchPPO

        kind = TorchPPO
    elif agent.library == "skrl-jax":
        from mjfleet.rl.adapters.skrl_jax_adapter import JaxPPO

        kind = JaxPPO
    elif missing := PPO.missing(agent):
        kind = RslRlUpdate
        if collectives.rank == 0:
            print_line(f"{missing}: learning takes rsl_rl's own path, which is slower")
    return build_algorithm(kind, env, agent, device, load, collectives, num_threads)
