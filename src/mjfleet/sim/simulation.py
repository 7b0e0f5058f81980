"""The contract of a simulation: all worlds of one worker, on one device, stepped by one engine."""

import difflib
import gc
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import mujoco
import numpy as np
import torch

STATE_FIELDS = (
    "time", "qpos", "qvel", "act", "ctrl", "qfrc_applied", "xfrc_applied", "mocap_pos",
    "mocap_quat",
)  # fmt: skip
"""State and inputs: live tensors that can be written in place."""

DERIVED_FIELDS = (
    "xpos", "xquat", "xmat", "xipos", "ximat", "xanchor", "xaxis", "geom_xpos", "geom_xmat",
    "site_xpos", "site_xmat", "cam_xpos", "cam_xmat", "subtree_com", "cvel", "actuator_length",
    "actuator_velocity", "ten_length", "ten_velocity", "qfrc_bias", "qfrc_passive", "sensordata",
)  # fmt: skip
"""What follows from positions and velocities: after a step, that of the new state."""

ACCELERATION_FIELDS = ("qacc", "actuator_force", "qfrc_actuator", "qfrc_constraint")
"""What follows from forces: as the last physics step computed it, zero after a reset."""

INTEGRATION_FIELDS = (
    *STATE_FIELDS, "qacc_warmstart", "eq_active", "history", "userdata", "plugin_state",
)  # fmt: skip
"""All that the next physics step depends on: MuJoCo's mjSTATE_INTEGRATION."""

FIELDS = STATE_FIELDS + DERIVED_FIELDS + ACCELERATION_FIELDS


class Simulation(ABC):
    """`num_envs` worlds of one model.

    Every name in FIELDS is an attribute: a live tensor `(num_envs, ...)` on `device`, in the shape
    that `mujoco.MjData` gives the field and in the engine's own precision, float64 on the native
    engine and float32 on warp. State fields are written in place (`sim.ctrl[:] = action`), never
    replaced: captured graphs hold their addresses.

    After `step`, positions, velocities and all that follows from them, sensors included, are those
    of the new state. Accelerations and forces, and the sensors made from them (accelerometer,
    force, torque, touch, contact), are those that the last physics step computed, as with
    `mujoco.mj_step`; they are zero between a reset and the next step.
    """

    warning_kinds: tuple[str, ...]
    """Every kind of trouble that `warnings` may report."""

    def __init__(self, model: mujoco.MjModel, num_envs: int, device: str) -> None:
        self.model = model
        self.num_envs = num_envs
        self.device = torch.device(device)
        self._template = mujoco.MjData(model)
        self._expanded: dict[str, torch.Tensor] = {}

    @abstractmethod
    def step(self, n: int = 1) -> None:
        """Advance every world by `n` physics steps with the current `ctrl`."""

    @abstractmethod
    def forward(self, mask: torch.Tensor | None = None) -> None:
        """Recompute what follows from positions and velocities, after a write to the state.

        Args:
            mask: `(num_envs,)`, bool: the worlds that were written; None for all. Other worlds are
                current already, and whether they are computed again is left to the engine.
        """

    @abstractmethod
    def reset(self, mask: torch.Tensor) -> None:
        """Restore the model's default state where `mask` `(num_envs,)` is true; leave the rest.

        Derived fields of those worlds are stale until `forward` or `step`.
        """

    @abstractmethod
    def warnings(self) -> dict[str, int]:
        """Numbers of worlds in trouble since the last call, by kind; waits for the device.

        Kinds are the engine's own: overflowed buffers on warp (their worlds lost contacts or
        constraints), MuJoCo's warnings on native (among them worlds that went unstable and that
        MuJoCo reset).
        """

    @abstractmethod
    def state(self) -> dict[str, torch.Tensor]:
        """The live tensors from which `restore` can go on: all that a step depends on, and what
        the last one computed and is not computed again."""

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        """Put all worlds into a state that `state` had, of as many worlds on the same engine."""
        now = self.state()
        for name, value in state.items():
            now[name].copy_(value)
        self.forward()

    @abstractmethod
    def set_const(self) -> None:
        """Recompute the model's constants that follow from masses, inertias and armatures, such as
        `body_subtreemass`, for each world; call it after writing those, before the first step."""

    def expand(self, name: str) -> torch.Tensor:
        """A field of the model that may differ between worlds: a live tensor `(num_envs, ...)`, in
        the shape that `mujoco.MjModel` gives it, of the model's values at first.

        Call it before the first step, in `Env.setup`; write it in place at any time. What follows
        from masses, inertias and armatures also needs `set_const`.

        Raises:
            ValueError: there is no such field, or it cannot differ on this engine.
        """
        if name not in self._expanded:
            if not isinstance(getattr(self.model, name, None), np.ndarray):
                raise ValueError(f"the model has no array {name!r}")
            self._expanded[name] = self._expand(name)
        return self._expanded[name]

    @abstractmethod
    def _expand(self, name: str) -> torch.Tensor:
        """Give a field of the model a value for each world."""

    @abstractmethod
    def _bind(self, name: str) -> torch.Tensor:
        """The live tensor of a field."""

    def captured_by(self, stream: Any) -> AbstractContextManager[object]:
        """A context in which steps become part of a CUDA graph that torch captures on `stream`.

        Raises:
            RuntimeError: this engine's steps cannot.
        """
        del stream
        raise RuntimeError(f"{type(self).__name__} runs on no GPU")

    def sensor(self, name: str) -> torch.Tensor:
        """A sensor's values, a view `(num_envs, dim)` of `sensordata`.

        Raises:
            ValueError: the model has no sensor of that name; lists those it has.
        """
        index = mujoco.mj_name2id(self.model, mujoco.mjtObj.mjOBJ_SENSOR, name)
        if index < 0:
            names = [self.model.sensor(i).name for i in range(self.model.nsensor)]
            raise ValueError(f"no sensor {name!r}; the model has: {', '.join(names) or 'none'}")
        start = self.model.sensor_adr[index]
        return self.sensordata[:, start : start + self.model.sensor_dim[index]]

    def __getattr__(self, name: str) -> torch.Tensor:
        if name not in FIELDS:
            near = difflib.get_close_matches(name, FIELDS, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise AttributeError(f"no field {name!r}; {hint}Fields: {', '.join(FIELDS)}")
        # First read in a rollout, it must not become a tensor for rollouts only.
        with torch.inference_mode(False):
            field = self._bind(name)
        object.__setattr__(self, name, field)
        return field

    def __setattr__(self, name: str, value: Any) -> None:
        # `sim.ctrl += x` ends here too, with the tensor that is already bound.
        if name in FIELDS and self.__dict__.get(name) is not value:
            raise AttributeError(
                f"write in place, `sim.{name}[:] = ...`: fields stay where they are"
            )
        object.__setattr__(self, name, value)

    def _shape(self, name: str) -> tuple[int, ...]:
        """A field's shape with the world index first."""
        shape = getattr(self._template, name)
        return (self.num_envs, *getattr(shape, "shape", ()))


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Keep Python from freeing arrays or graphs during a capture, which would record the frees."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
