"""Any task as a `gymnasium.vector.VectorEnv`, for algorithms of other libraries; docs/gymnasium.md.

Runs in the process that imports it. Needs the extra `gym`.
"""

from collections.abc import Mapping
from operator import index
from typing import Any, Literal

import numpy as np
import torch

import mjfleet
from mjfleet.errors import UserError
from mjfleet.utils.mujoco_import import import_mujoco
from mjfleet.utils.packages import need_extra

need_extra("gym", "mjfleet.gym", ("gymnasium",))
import_mujoco()

import gymnasium  # noqa: E402
from gymnasium.envs.registration import EnvSpec  # noqa: E402
from gymnasium.spaces import Box  # noqa: E402
from gymnasium.vector import AutoresetMode, VectorEnv  # noqa: E402
from gymnasium.vector.utils import batch_space  # noqa: E402

Array = np.ndarray[Any, Any]
Infos = dict[str, Any]


def make_vector(task: str, **settings: Any) -> "TaskVectorEnv":
    """Return a task as vector environment; `settings` are those of `TaskVectorEnv`."""
    return TaskVectorEnv(task, **settings)


def make(task: str, **settings: Any) -> "TaskEnv":
    """Return a single environment of a task; `settings` are those of `TaskEnv`."""
    return TaskEnv(task, **settings)


class TaskVectorEnv(VectorEnv[Array, Array, Array]):
    """All environments of a task as one: arrays have the environment's index first.

    Observations and rewards are float32; images of bytes stay bytes. An episode that ends is
    followed by the next one in the same step: `metadata["autoreset_mode"]` is SAME_STEP. The
    observation that is returned is then the first one of the new episode, and
    `infos["final_obs"][i]` the last one of the old, where `infos["_final_obs"][i]`. Failures are
    `terminations`, time-outs are `truncations`.

    The action space is bounded by the task's `action_limit`; the task handles actions beyond it.
    """

    metadata: dict[str, Any] = {"render_modes": [], "autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

    def __init__(
        self,
        task: str,
        *,
        num_envs: int | None = None,
        device: str = "cpu",
        engine: Literal["auto", "warp", "native"] = "auto",
        num_threads: int | None = None,
        observations: str = "actor",
        env: Mapping[str, Any] | None = None,
        tasks_dir: str | None = None,
    ) -> None:
        """Build the environments.

        Args:
            task: its name, as `mjfleet tasks` lists it.
            num_envs: number of environments; None: the task's default.
            device: torch's name of the device that steps the physics, such as "cuda:0".
            engine: `auto` is `native` on the CPU, `warp` on a GPU.
            num_threads: threads of the native engine; None: one for each CPU core.
            observations: the group that is observed.
            env: other fields of the task's configuration, those of its flags `--env.*`.
            tasks_dir: a folder with task folders, as for `train --tasks-dir`.

        Raises:
            UserError: there is no such task, field, group or device.
        """
        own = {"engine": engine, "cpu_threads": num_threads, "tasks_dir": tasks_dir}
        with torch.no_grad():
            self.env = mjfleet.make(
                task, num_envs=num_envs, device=device, env=dict(env or {}), **own
            )
        """The task's environment, see docs/tasks.md."""
        groups = self.env.get_observations()
        if observations not in (names := [str(name) for name in groups.keys()]):  # noqa: SIM118
            raise UserError(
                f"observations is {observations!r}; task {task} observes: {', '.join(names)}."
            )
        self._group, self._final = observations, None
        self._restore_first, self._began = self.env.keep(), False
        self.env.before_reset = self._observe_ends
        self.num_envs = self.env.num_envs
        first = groups[observations]
        shape, is_bytes = tuple(first.shape[1:]), first.dtype == torch.uint8
        limit = np.full(self.env.num_actions, torch.as_tensor(self.env.action_limit).cpu())
        limit = limit.astype(np.float32)
        self.single_observation_space = (
            Box(0, 255, shape, np.uint8) if is_bytes else Box(-np.inf, np.inf, shape, np.float32)
        )
        self.single_action_space = Box(-limit, limit, dtype=np.float32)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, Infos]:
        """Begin a new episode everywhere; the same after each reset with the same seed.

        Raises:
            UserError: the environments are closed, or `options` has a `reset_mask`.
            TypeError: `seed` is no whole number.
            gymnasium.error.Error: `seed` is negative.
        """
        if self.closed:
            raise UserError("reset() was called after close().")
        if options and "reset_mask" in options:
            raise UserError("options has a reset_mask; here episodes that end are reset at once.")
        super().reset(seed=None if seed is None else index(seed))
        if seed is not None or not self._began:
            self._restore_first()
            self.env.generator.manual_seed(int(self.np_random.integers(2**62)))
            self._began = True
        with torch.no_grad():
            self.env.reset()
        return self._observations(), {}

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, Infos]:
        """Advance all environments by one step; see the class.

        Raises:
            UserError: `actions` have another shape than the action space, or `reset` is missing.
            ValueError: `actions` are no numbers.
        """
        if not self._began or self.closed:
            raise UserError("call reset() before step(), and neither after close().")
        given = np.asarray(actions, np.float32)
        if given.shape != self.action_space.shape:
            raise UserError(f"actions have shape {given.shape}, not {self.action_space.shape}.")
        self._final = None
        with torch.no_grad():
            tensor = torch.tensor(given, device=self.env.device)
            _, rewards, dones, extras = self.env.step(tensor)
        truncations, ended = extras["time_outs"].cpu().numpy(), dones.cpu().numpy()
        infos: Infos = {}
        if self._final is not None:
            last = np.full(self.num_envs, None, dtype=object)
            for i in np.flatnonzero(ended):
                last[i] = self._final[i]
            infos = {"final_obs": last, "_final_obs": ended}
            infos |= {"final_info": {}, "_final_info": ended.copy()}
        failed = ended & ~truncations
        return self._observations(), rewards.cpu().numpy(), failed, truncations, infos

    def close_extras(self, **_: Any) -> None:
        """Leave the device."""
        self.env.close()

    def _observe_ends(self, dones: torch.Tensor) -> None:
        """Observe before the resets, as if it had not been: noise and memories are restored."""
        if dones.any():
            restore = self.env.keep()
            group = self.env.observe()[self._group]
            dtype = self.env.get_observations()[self._group].dtype
            self._final = group.to("cpu", dtype, copy=True).numpy()
            restore()

    def _observations(self) -> Array:
        return self.env.get_observations()[self._group].cpu().numpy()


class TaskEnv(gymnasium.Env[Array, Array]):
    """One environment of a task, which is reset by `reset` alone."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012

    def __init__(self, task: str, **settings: Any) -> None:
        """Take the arguments of `TaskVectorEnv`, without `num_envs`."""
        if "num_envs" in settings:
            raise UserError("num_envs: `make` builds one environment, `make_vector` several.")
        self.envs = TaskVectorEnv(task, num_envs=1, **settings)
        self.observation_space = self.envs.single_observation_space
        self.action_space = self.envs.single_action_space
        place, kwargs = f"{__name__}:make", {"task": task, **settings}
        self.spec = EnvSpec(f"mjfleet/{task}", entry_point=place, kwargs=kwargs)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, Infos]:
        """Begin an episode."""
        observations, infos = self.envs.reset(seed=seed, options=options)
        super().reset(seed=None if seed is None else index(seed))
        return observations[0], infos

    def step(self, action: Array) -> tuple[Array, float, bool, bool, Infos]:
        """Advance by one step. The episode has ended if it was `terminated` or `truncated`."""
        observations, rewards, failed, truncated, infos = self.envs.step(np.asarray(action)[None])
        is_last = "final_obs" in infos
        observation = infos["final_obs"][0] if is_last else observations[0]
        return observation, float(rewards[0]), bool(failed[0]), bool(truncated[0]), {}

    def close(self) -> None:
        """Leave the device."""
        self.envs.close()
