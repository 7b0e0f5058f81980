"""The environment contract: what a task author writes, and may use in it."""

import inspect
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import mujoco
import torch
from rsl_rl.env import VecEnv

from mjfleet.config import EnvConfig
from mjfleet.config.validation import check_kind
from mjfleet.env.episode_statistics import Metrics
from mjfleet.env.step_recorder import Arrows
from mjfleet.errors import UserError
from mjfleet.sim import Simulation
from mjfleet.utils.packages import find_package, need_extra

C = TypeVar("C", bound=EnvConfig)
MENAGERIE = "menagerie:"


class EnvContract(VecEnv, Generic[C]):
    """The methods of a task, with what they do unless overridden.

    A task author sets `model_file` and writes the methods below. Tensors have the environment's
    index first and live on `self.device`. The methods must not wait for the device: no `.item()`,
    no `.cpu()`, no `.nonzero()`, no `if tensor:`, no indexing by a boolean mask. Use `torch.where`.
    """

    model_file: ClassVar[str]
    """The MJCF file, relative to the class's own; `package:path`, in an installed package, which is
    not imported; or `menagerie:<robot>`, or `menagerie:<robot>/<entry>`."""

    # rsl_rl declares the types of `cfg` and `max_episode_length` more widely.
    cfg: C  # pyright: ignore[reportIncompatibleVariableOverride]
    max_episode_length: int  # pyright: ignore[reportIncompatibleVariableOverride]
    sim: Simulation
    never: torch.Tensor
    """False in all environments, `(num_envs,)`, bool."""
    action_limit: float | torch.Tensor = 1.0
    """Largest action of either sign, a number or `(num_actions,)`, for what needs limits: SAC and
    mjfleet.gym. A task may set another in `setup`."""
    zero_is_home: bool = False
    """Whether actions of 0 hold the robot in its home pose: SAC then begins with small actions, and
    its critics are given them in units of the noise that is aimed at."""
    ends_on_failure: bool = True
    """Whether an episode ends where `terminated` is true. `play --no-terminations`: it does not."""
    command_override: bool = False
    """Whether a viewer sets the commands. The task then draws none."""
    accepted_findings: ClassVar[Mapping[str, str]] = {}
    """What `mjfleet check-task` finds although the task is as it is meant to be: a part of each
    finding's text, and the reason, with which it becomes a note."""

    @classmethod
    def make_model(cls, cfg: C) -> mujoco.MjModel:
        """Return the model, compiled from `model_file`. Override to build it from `cfg`.

        Raises:
            UserError: `model_path` has no file, or MuJoCo cannot compile it.
        """
        del cfg
        path = cls.model_path()
        try:
            return mujoco.MjModel.from_xml_path(str(path))
        except ValueError as error:
            raise UserError(f"{cls.__name__}: {path}: {error}") from None

    @classmethod
    def model_path(cls) -> Path:
        """Return the path of `model_file`.

        Raises:
            UserError: there is none, it is not text, its package is not installed, or MuJoCo
                Menagerie has no such robot, or can neither be found nor fetched.
        """
        if not hasattr(cls, "model_file"):
            raise UserError(f"{cls.__name__} sets no model_file.")
        owner = next(base for base in cls.__mro__ if "model_file" in vars(base))
        what = f"{owner.__name__}: model_file"
        check_kind(what, cls.model_file, (str, Path), "text, the name of an MJCF file")
        model_file = str(cls.model_file)
        if not model_file.startswith(MENAGERIE):
            package, _, file = model_file.rpartition(":")
            folder = find_package(package) if package else Path(inspect.getfile(owner)).parent
            return folder / file
        what = f"{what} {model_file!r}"
        need_extra("menagerie", what, ["mujoco_menagerie"])
        import mujoco_menagerie

        robot, _, entry = model_file.removeprefix(MENAGERIE).partition("/")
        try:
            files = mujoco_menagerie.get(robot)
            file = files.entry(entry or None).file  # Before anything is fetched for a wrong name.
            return files.path() / file
        except (mujoco_menagerie.MenagerieError, OSError) as error:
            why = str(error).rstrip(".")
            raise UserError(
                f"{what}: {why}. MENAGERIE_ROOT may name a clone of MuJoCo Menagerie to look in."
            ) from None

    def setup(self) -> None:
        """Look up ids and sensors, declare the task's state. Called before the first reset."""
        return

    def count_actions(self) -> int:
        """Return the size of an action: one per actuator of the model unless overridden."""
        return self.sim.model.nu

    def after_physics(self) -> None:
        """Update the declared state, once in each step before `terminated`, `truncated`, `rewards`
        and `metrics`, which write nothing. By default, do nothing."""
        return

    def end_episode(self, mask: torch.Tensor) -> None:
        """Read what episodes have left where `mask` `(num_envs,)` is true, before their state and
        `episode_length_buf` are reset. Called in each step."""
        return

    @abstractmethod
    def reset_worlds(self, mask: torch.Tensor) -> None:
        """Write an initial state where `mask` `(num_envs,)` is true. Called in each step.

        The model's default state, and what resets write into the declared state, are there already;
        `forward` is called afterwards.
        """

    @abstractmethod
    def apply(self, action: torch.Tensor) -> None:
        """Write `sim.ctrl` from `action` `(num_envs, num_actions)`, float32."""

    @abstractmethod
    def observe(self) -> dict[str, torch.Tensor]:
        """Return observation groups, "actor" and "critic" at least: each `(num_envs, size)`, or
        `(num_envs, channels, height, width)` for a CNNModel, which may be of bytes (uint8)."""

    def terminated(self) -> torch.Tensor:
        """Return where the task has failed, `(num_envs,)`, bool, time-outs excluded. None unless
        overridden."""
        return self.never

    def truncated(self) -> torch.Tensor:
        """Return where the episode ends without a failure before its time limit, as at the end of a
        clip, `(num_envs,)`, bool. It counts as a time-out, where `terminated` is false. None unless
        overridden."""
        return self.never

    @abstractmethod
    def rewards(self) -> Mapping[str, torch.Tensor | Callable[[], torch.Tensor]]:
        """Return named terms, each `(num_envs,)` or a function that returns it. The names never
        change.

        The reward is their sum, each multiplied by its weight in `reward_weights`; a function is
        not called while that is 0. `self.failed` says where `terminated` is true in this step.
        """

    def reward_weights(self) -> Mapping[str, float]:
        """Return the weights of terms by name, asked after `setup`. Others have the weight 1."""
        return {}

    def metrics(self) -> Metrics:
        """Return named numbers to judge a policy by, each `(num_envs,)`.

        Each is logged as its mean over all steps and environments. For a pair, the sum of the first
        tensor is divided by the sum of the second: energy by distance, failures by minutes. The
        names never change.
        """
        return {}

    def levels_to_evaluate(self, count: int) -> Sequence[int]:
        """Return the levels, of the `count` of a curriculum, for evaluations and `play`: all unless
        overridden. Environments are divided evenly among them."""
        return range(count)

    def debug_vis(self) -> Arrows:
        """Return named arrows to draw over each environment: start points and vectors, both
        `(num_envs, 3)`, or `(num_envs, n, 3)` for several of one name, in metres in the world
        frame. None unless overridden."""
        return {}

    def ghost(self) -> torch.Tensor | None:
        """Return positions `(num_envs, nq)` of a second robot to draw, such as what a clip shows.
        None unless overridden."""
        return None

    def commands(self) -> dict[str, tuple[torch.Tensor, float, float]]:
        """Return the robot's commands by name: a view `(num_envs,)` of the current values, which a
        viewer may write, and their range. While `command_override` is true, draw no new ones."""
        return {}

    def deployment(self) -> dict[str, Any]:
        """Return what a robot needs to run the policy and the model does not contain: the parts
        of an observation, the meaning of an action. JSON data for `mjfleet export`: docs/deploy.md.
        """
        return {}

    def deployment_arrays(self) -> dict[str, torch.Tensor]:
        """Return, by name, tensors that such a robot also needs, such as the frames of its clips.
        `mjfleet export` writes them as policy.npz."""
        return {}
