"""The contract of a simulation: all worlds of a worker, on one device, stepped by one engine."""

import difflib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import count
from operator import attrgetter
from typing import Any, ClassVar, Literal

import mujoco
import numpy as np
import torch

from mjfleet.errors import UserError
from mjfleet.sim.buffer_use import BufferUse
from mjfleet.sim.deferred import Deferred, read
from mjfleet.sim.device_memory import check_fits
from mjfleet.sim.view import ImageKind, View, make_view

STATE_FIELDS = (
    "time", "qpos", "qvel", "act", "ctrl", "qfrc_applied", "xfrc_applied", "mocap_pos",
    "mocap_quat", "history",
)  # fmt: skip
"""State and inputs: live tensors that may be written in place."""

DERIVED_FIELDS = (
    "xpos", "xquat", "xmat", "xipos", "ximat", "xanchor", "xaxis", "geom_xpos", "geom_xmat",
    "site_xpos", "site_xmat", "cam_xpos", "cam_xmat", "light_xpos", "light_xdir", "flexvert_xpos",
    "subtree_com", "cinert", "cvel", "actuator_length", "actuator_velocity", "ten_length",
    "ten_velocity", "qfrc_bias", "qfrc_passive", "sensordata",
)  # fmt: skip
"""Functions of positions and velocities. After a step they are those of the new state."""

ACCELERATION_FIELDS = ("qacc", "actuator_force", "qfrc_actuator", "qfrc_constraint")
"""Functions of forces, as the last physics step computed them. Zero after a reset."""

INTEGRATION_FIELDS = (
    *STATE_FIELDS, "qacc_warmstart", "eq_active", "userdata", "plugin_state", "plastic",
)  # fmt: skip
"""Everything that the next physics step depends on: MuJoCo's mjSTATE_INTEGRATION."""

CONSTANTS = (
    "body_subtreemass", "body_invweight0", "dof_invweight0", "tendon_invweight0", "actuator_acc0",
)  # fmt: skip
"""Fields of a model that MuJoCo computes from masses, inertias and armatures."""

BOUNDS = ("geom_aabb", "geom_rbound")
"""Fields of a model that MuJoCo computes from the sizes of geoms."""

FIELDS = STATE_FIELDS + DERIVED_FIELDS + ACCELERATION_FIELDS


def group_flags(groups: Iterable[int]) -> tuple[bool, ...]:
    """Return for each of MuJoCo's geom groups whether it is one of `groups`.

    Raises:
        UserError: `groups` are not numbers of geom groups.
    """
    known = range(mujoco.mjNGROUP)
    if not isinstance(groups, Iterable) or any(one not in known for one in groups):
        text = f"it must be numbers of geom groups, 0 to {known[-1]}, such as (0, 1)"
        raise UserError(f"groups is {groups!r}; {text}.")
    return tuple(group in groups for group in known)


class Simulation(ABC):
    """`num_envs` worlds of one model.

    Every name in FIELDS is an attribute: a live tensor `(num_envs, ...)` on `device`, in the shape
    that `mujoco.MjData` gives the field and in the engine's own precision, float64 on the native
    engine and float32 on warp. State fields are written in place (`sim.ctrl[:] = action`), never
    replaced, since the engine's graphs hold their addresses.

    After `step`, positions, velocities and everything that depends on them, including sensors, are
    those of the new state. Accelerations, forces and the sensors that measure them (accelerometer,
    force, torque, touch, contact with forces) are those that the last physics step computed, as
    with `mujoco.mj_step`. They are zero between a reset and the next step.
    """

    engine: ClassVar[Literal["warp", "native"]]
    warning_kinds: tuple[str, ...]
    """Every kind that `warnings` may report."""
    buffer_use: BufferUse | None = None
    """On warp, what was needed between the last two calls of `warnings`."""

    def __init__(self, model: mujoco.MjModel, num_envs: int, device: str) -> None:
        self.model = model
        self.num_envs = num_envs
        self.device = torch.device(device)
        self.expanded: dict[str, torch.Tensor] = {}
        """What `expand` has returned, by the name of the field."""
        self._move, self._moves = 0, count(1)
        """The number of the newest change of the worlds' poses."""
        self._newest: dict[View, tuple[int, dict[ImageKind, torch.Tensor]]] = {}
        """Images by what they show, with the number of the change after which they were made."""
        self.while_compiling: Callable[[], AbstractContextManager[object]] = nullcontext
        """Surrounds the first rendering of a view, which may compile kernels."""

    @abstractmethod
    def step(self, n: int = 1) -> None:
        """Advance every world by `n` physics steps with the current `ctrl`."""

    @abstractmethod
    def forward(self, mask: torch.Tensor | None = None) -> None:
        """Recompute what depends on positions and velocities, after a write to the state.

        Args:
            mask: worlds that were written, `(num_envs,)`, bool; None for all. An engine may
                recompute the others too.
        """

    @abstractmethod
    def reset(self, mask: torch.Tensor) -> None:
        """Restore the model's default state where `mask` `(num_envs,)` is true.

        Derived fields of those worlds are stale until `forward` or `step`.
        """

    @abstractmethod
    def deferred_warnings(self) -> Deferred[dict[str, int]]:
        """Return the number of worlds with a warning since the last call, by kind.

        On warp the kinds are overflowed buffers, whose worlds lost contacts or constraints; those
        for contacts and constraint rows are then enlarged. On native they are MuJoCo's warnings,
        such as worlds that became unstable and that MuJoCo reset.
        """

    def warnings(self) -> dict[str, int]:
        """Return what `deferred_warnings` stands for. Waits for the device once."""
        return read(self.deferred_warnings())[0]

    def _by_kind(self, counts: Sequence[float]) -> dict[str, int]:
        """Return the counts that are not zero, by the kind of warning."""
        return {kind: int(n) for kind, n in zip(self.warning_kinds, counts, strict=True) if n}

    @abstractmethod
    def state(self) -> dict[str, torch.Tensor]:
        """Return the live tensors that `restore` needs: everything that a step depends on, and what
        only the last step has computed."""

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        """Restore all worlds from what `state` returned for as many worlds on the same engine."""
        now = self.state()
        for name, value in state.items():
            now[name].copy_(value)
        self.forward()

    def keep(self) -> Callable[[], None]:
        """Return a function that restores all worlds as they are now."""
        before = {name: field.clone() for name, field in self.state().items()}
        move = self._move

        def restore() -> None:
            self.restore(before)
            self._move = move  # Images that were rendered then are those of this state.

        return restore

    def note_move(self) -> None:
        """Note that images have to be rendered anew, as after each step."""
        self._move = next(self._moves)

    @abstractmethod
    def set_const(self) -> None:
        """Recompute the constants of each world's model that depend on masses, inertias, armatures
        and sizes, such as `body_subtreemass`. Call it after writing those, before the first step.
        """

    def expand(self, name: str) -> torch.Tensor:
        """Return a field of the model that may differ between worlds.

        It is a live tensor `(num_envs, ...)` in the shape that `mujoco.MjModel` gives the field,
        with the model's values at first; an array of its options is named as in "opt.gravity". Call
        this before the first step, in `Env.setup`, and write the tensor in place at any time.
        Masses, inertias, armatures and sizes also need `set_const`.

        Raises:
            ValueError: the field does not exist, or is the same for all worlds on this engine.
        """
        if name not in self.expanded:
            self.of_model(name)
            with torch.inference_mode(False):
                self.expanded[name] = self._expand(name)
        return self.expanded[name]

    def of_model(self, name: str) -> np.ndarray:
        """Return the values of a field that `expand` takes, as the model has them.

        Raises:
            ValueError: the model has no such array.
        """
        try:
            array = attrgetter(name)(self.model)
        except AttributeError:
            array = None
        if not isinstance(array, np.ndarray):
            raise ValueError(f"the model has no array {name!r}")
        return array

    @abstractmethod
    def _expand(self, name: str) -> torch.Tensor:
        """Return the live tensor of a model's field with a value for each world."""

    @abstractmethod
    def rays(
        self, starts: torch.Tensor, directions: torch.Tensor, groups: tuple[int, ...]
    ) -> torch.Tensor:
        """Return how far each ray goes until it hits a geom, as `mujoco.mj_ray` does.

        Geoms are where derived fields say. A ray exactly through an edge of a mesh or height field
        may slip through.

        Args:
            starts: of the rays, `(num_envs, rays, 3)`, m, in the world frame.
            directions: likewise, the units in which distances are.
            groups: the geom groups, of 0 to 5, that rays hit.

        Returns:
            Distances, `(num_envs, rays)`, in the engine's precision; -1 where nothing is hit.

        Raises:
            UserError: `groups` are not numbers of geom groups.
        """

    def images(
        self,
        camera: str,
        width: int,
        height: int,
        kinds: Sequence[ImageKind] = ("depth",),
        groups: Sequence[int] = (0, 1, 2),
    ) -> dict[ImageKind, torch.Tensor]:
        """Return what a camera of the model sees in each world, by MuJoCo-Warp's renderer.

        Geoms, cameras and lights are where derived fields say; fields of `expand` count too. All
        worlds are rendered in the first call after a step, `forward` or `restore`; later calls with
        the same arguments return the same tensors.

        Args:
            width: of an image, pixels.
            height: likewise.
            kinds: of images, see below.
            groups: the geom groups, of 0 to 5, that are seen.

        Returns:
            By kind, on the device of the worlds: "depth" `(num_envs, height, width)`, float32, the
            distance from the camera's plane, m, inf where nothing is seen; "rgb" `(num_envs,
            height, width, 3)`, uint8; "segmentation" `(num_envs, height, width, 2)`, int32, number
            and `mujoco.mjtObj` of what is seen, -1 for nothing.

        Raises:
            UserError: there is no such camera, an argument is not as above, the images do not fit
                in memory, or the model has something that MuJoCo-Warp lacks.
        """
        view = make_view(self.model, camera, width, height, kinds, group_flags(groups))
        if view not in self._newest:
            # The images of other views are no longer in what a GPU has left.
            others = () if self.device.type == "cuda" else self._newest
            size = self.num_envs * sum(each.nbytes for each in (view, *others))
            check_fits("images", size, self.num_envs, str(self.device))
            with self.while_compiling():
                self._newest[view] = self._move, self._images(view)
        move, images = self._newest[view]
        if move != self._move:
            images = self._images(view)
            self._newest[view] = self._move, images
        return images

    @abstractmethod
    def _images(self, view: View) -> dict[ImageKind, torch.Tensor]:
        """Render a view now."""

    @abstractmethod
    def _bind(self, name: str) -> torch.Tensor:
        """Return the live tensor of a field."""

    def sensor(self, name: str) -> torch.Tensor:
        """Return a sensor's values, a view `(num_envs, dim)` of `sensordata`.

        Raises:
            ValueError: the model has no such sensor. The message lists its sensors.
        """
        names = [self.model.sensor(i).name for i in range(self.model.nsensor)]
        if name not in names:
            raise ValueError(f"no sensor {name!r}; the model has: {', '.join(names) or 'none'}")
        start, size = self.model.sensor(name).adr[0], self.model.sensor(name).dim[0]
        return self.sensordata[:, start : start + size]

    def __getattr__(self, name: str) -> torch.Tensor:
        if name not in FIELDS:
            near = difflib.get_close_matches(name, FIELDS, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise AttributeError(f"no field {name!r}; {hint}Fields: {', '.join(FIELDS)}")
        # First read in a rollout, the field would otherwise be an inference tensor.
        with torch.inference_mode(False):
            field = self._bind(name)
        object.__setattr__(self, name, field)
        return field

    def __setattr__(self, name: str, value: Any) -> None:
        # `sim.ctrl += x` comes here too, with the tensor that is bound already.
        is_field = name in FIELDS or (isinstance(value, torch.Tensor) and not name.startswith("_"))
        if is_field and self.__dict__.get(name) is not value:
            getattr(self, name)  # A wrong name is an error that lists the valid ones.
            raise AttributeError(
                f"write in place, `sim.{name}[:] = ...`: fields stay where they are"
            )
        object.__setattr__(self, name, value)
