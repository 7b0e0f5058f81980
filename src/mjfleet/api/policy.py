"""`Run.policy`: a trained policy as a function."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict

from mjfleet.env.factory import build_env
from mjfleet.errors import UserError
from mjfleet.registry import discover
from mjfleet.rl.runner import Runner
from mjfleet.runs.own_runs import tasks_dir_of
from mjfleet.runs.resume_choice import find_trained
from mjfleet.tools.trained_task import trained_task


class Policy:
    """A policy: call it with observations, it returns mean actions.

    Attributes:
        module: the network, a torch module with its normaliser.
        device: where it is.
    """

    def __init__(self, module: Any, device: str) -> None:
        self.module, self.device = module.to(device), torch.device(device)

    @classmethod
    def read(cls, run: str, device: str) -> "Policy":
        """Read the policy of a run directory or a checkpoint."""
        task, trained = find_trained(run, Path("logs"))
        now = discover({}, tasks_dir_of(trained.run_dir)).tasks.get(task)
        found, own = trained_task(trained.checkpoint, task, now, trained.config, False)
        config = own.with_num_envs(1)
        env = build_env(found, config, "native", "cpu", num_threads=1)
        agent = replace(config.agent, torch_compile_mode=None)
        runner = Runner(env, agent, "cpu", 1, found.load)
        runner.load_policy(trained.checkpoint)
        return cls(runner.get_inference_policy(), device)

    @torch.inference_mode()
    def __call__(self, observations: Any) -> torch.Tensor:
        """Return actions `(num_envs, num_actions)`, float32.

        Args:
            observations: groups as an environment returns them, `(num_envs, size)` each: a
                TensorDict, or a mapping of tensors or arrays. With one group, that alone will do.
        """
        groups = list(self.module.obs_groups)
        if not isinstance(observations, (Mapping, TensorDict)):
            if len(groups) > 1:
                raise UserError(f"the policy observes {', '.join(groups)}: pass a mapping of them.")
            observations = {groups[0]: observations}
        if lacking := [name for name in groups if name not in set(observations.keys())]:
            raise UserError(f"the policy observes {', '.join(groups)}; {lacking[0]} is missing.")
        tensors = {
            name: torch.as_tensor(observations[name], dtype=torch.float32, device=self.device)
            for name in groups
        }
        return self.module(TensorDict(tensors, batch_size=[len(tensors[groups[0]])]))
