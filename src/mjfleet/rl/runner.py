"""The training loop: rsl_rl's runner with our statistics, files and threads. Runs in a worker."""

import contextlib
import io
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rsl_rl.runners import OnPolicyRunner

from mjfleet.config import AgentConfig, to_dict
from mjfleet.env import Env
from mjfleet.files import write_atomically
from mjfleet.rl.metrics import EpisodeWindow, IterationMetrics


class DivergedError(RuntimeError):
    """Training met numbers that are not finite and cannot go on."""


class Runner(OnPolicyRunner):
    """Collects rollouts and updates the policy; who shows or stores metrics is told by callback."""

    env: Env[Any]

    def __init__(
        self,
        env: Env[Any],
        agent: AgentConfig,
        device: str,
        num_threads: int,
        load: Callable[[str], Any],
    ) -> None:
        """Build networks, algorithm and storage.

        Args:
            env: the environment, on the same device.
            agent: networks, algorithm and numbers.
            device: torch's name of the device.
            num_threads: CPU threads that torch may use for an update.
            load: finds `module:name` in the task folder, see FoundTask.load.
        """
        self._num_threads = num_threads
        with contextlib.redirect_stdout(io.StringIO()):  # rsl_rl prints both networks.
            super().__init__(env, rsl_rl_config(agent, load), log_dir=None, device=device)  # pyright: ignore[reportArgumentType]
        self.agent = agent
        self.total_steps = 0

    def _configure_multi_gpu(self) -> None:
        """One worker; rsl_rl would read the world size from environment variables."""
        self.is_distributed = False
        self.gpu_world_size, self.gpu_global_rank, self.gpu_local_rank = 1, 0, 0
        self.cfg["multi_gpu"] = None

    def train(
        self,
        checkpoints: Path,
        on_iteration: Callable[[IterationMetrics], None],
        should_stop: Callable[[], bool],
    ) -> None:
        """Train until `agent.max_iterations` iterations are done or `should_stop` says so.

        Args:
            checkpoints: folder for model_<iteration>.pt: every `agent.save_interval` iterations,
                and the last.
            on_iteration: called with the metrics of each iteration.
            should_stop: asked after each iteration.

        Raises:
            DivergedError: an observation, a reward or a loss is not finite.
        """
        if self.agent.init_at_random_ep_len:
            self.env.start_at_random_times()
        self.alg.train_mode()
        window = EpisodeWindow()
        before = time.perf_counter()
        for iteration in range(1, self.agent.max_iterations + 1):
            start = time.perf_counter()
            self._collect()
            collected = time.perf_counter()
            self._check_rollout(iteration)
            losses = self._update(iteration)
            learned = time.perf_counter()
            statistics = self.env.take_statistics()
            self.current_learning_iteration = iteration
            steps = self.env.num_envs * self.agent.num_steps_per_env
            self.total_steps += steps
            window.add(statistics)
            means = window.means(self.env.reward_names)
            now = time.perf_counter()
            metrics = IterationMetrics(
                iteration=iteration,
                total_steps=self.total_steps,
                steps_per_second=steps / (now - before),
                mean_return=means["return"],
                mean_episode_length=means["length"],
                terms={name: means[f"reward/{name}"] for name in self.env.reward_names},
                mean_reward=statistics.mean_reward,
                losses=losses,
                learning_rate=self.alg.learning_rate,
                action_std=self.alg.get_policy().output_std.mean().item(),
                collect_seconds=collected - start,
                learn_seconds=learned - collected,
                warnings=self.env.sim.warnings(),
            )
            before = now
            on_iteration(metrics)
            stop = should_stop()
            last = stop or iteration == self.agent.max_iterations
            if last or iteration % self.agent.save_interval == 0:
                self.save(str(checkpoints / f"model_{iteration}.pt"))
            if stop:
                return

    def save(self, path: str, infos: dict[str, Any] | None = None) -> None:
        """Write a checkpoint in rsl_rl's format, whole or not at all."""
        state = self.alg.save() | {"iter": self.current_learning_iteration, "infos": infos}
        write_atomically(Path(path), lambda file: torch.save(state, file))

    def _collect(self) -> None:
        """One rollout into the storage, and its returns."""
        # The physics engine has threads of its own; torch's would fight them for the cores.
        torch.set_num_threads(1)
        with torch.inference_mode():
            observations = self.env.get_observations()
            for _ in range(self.agent.num_steps_per_env):
                actions = self.alg.act(observations)
                observations, rewards, dones, extras = self.env.step(actions)
                self.alg.process_env_step(observations, rewards, dones, extras)
            self.alg.compute_returns(observations)

    def _update(self, iteration: int) -> dict[str, float]:
        torch.set_num_threads(self._num_threads)
        try:
            losses = self.alg.update()
        except (RuntimeError, ValueError) as error:
            if all(p.isfinite().all() for p in self.alg.get_policy().parameters()):
                raise
            raise DivergedError(f"iteration {iteration}: the policy is not finite") from error
        for name, value in losses.items():
            if not math.isfinite(value):
                raise DivergedError(f"iteration {iteration}: the {name} loss is {value}")
        return losses

    def _check_rollout(self, iteration: int) -> None:
        """Refuse to learn from numbers that are not finite: they would end in every weight."""
        rollout = self.alg.storage
        seen: dict[str, torch.Tensor] = {}
        last = self.env.get_observations()
        for name in last.keys():  # noqa: SIM118  # Iterating over a TensorDict goes along its batch.
            both = rollout.observations.get(name), last.get(name).unsqueeze(0)
            seen[f"observation group {name!r}"] = torch.cat(both)
        # Last: at a time-out rsl_rl adds the value of an observation to the reward.
        seen["reward"] = rollout.rewards
        for what, values in seen.items():
            worlds = values.isfinite().logical_not().flatten(2).any(dim=2).any(dim=0)
            bad = worlds.nonzero().flatten().tolist()
            if bad:
                raise DivergedError(
                    f"iteration {iteration}: {what} is not finite in {len(bad)} of "
                    f"{self.env.num_envs} worlds ({', '.join(map(str, bad[:5]))}"
                    f"{', ...' if len(bad) > 5 else ''})"
                )


def rsl_rl_config(agent: AgentConfig, load: Callable[[str], Any]) -> dict[str, Any]:
    """The nested dictionary that rsl_rl's runner takes.

    Args:
        agent: our configuration, whose fields have rsl_rl's names.
        load: finds `module:name` in the task folder.
    """
    plain = to_dict(agent)
    algorithm = plain["algorithm"]
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
    """A network's configuration without the fields that its class does not take."""
    recurrent = plain["class_name"] == "RNNModel"
    return {k: v for k, v in plain.items() if recurrent or not k.startswith("rnn_")}
