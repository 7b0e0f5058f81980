"""MuJoCo-Warp: all worlds in one set of arrays, on a GPU or the CPU. Runs in a worker."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import fields, replace
from typing import Any

import mujoco
import mujoco_warp as mjw
import numpy as np
import torch
import warp as wp

from mjfleet.errors import UserError
from mjfleet.sim.buffer_use import BufferUse, overflowed_sizes
from mjfleet.sim.deferred import Deferred
from mjfleet.sim.renderer import Renderer
from mjfleet.sim.simulation import (
    ACCELERATION_FIELDS,
    BOUNDS,
    CONSTANTS,
    DERIVED_FIELDS,
    INTEGRATION_FIELDS,
    Simulation,
    group_flags,
)
from mjfleet.sim.view import ImageKind, View
from mjfleet.sim.warp_derived_fields import DerivedFields, Level
from mjfleet.sim.warp_kernels import note_use
from mjfleet.sim.warp_model import expand_field, put_model, without_lacking
from mjfleet.sim.warp_start import start_warp
from mjfleet.utils.garbage_collection import no_garbage_collection

# Not warnings: a solver that stops at its limit of iterations works as intended.
_LIMITS = mjw.OverflowType.ITERATIONS | mjw.OverflowType.LS_ITERATIONS

FIXED_AND_INERTIAL = mjw.SetConstGroup.FIXED | mjw.SetConstGroup.INERT0


class WarpSimulation(Simulation):
    """Worlds in float32. Steps, forward and reset are graphs, captured once and then launched.

    A captured graph holds the addresses of its arrays. Nothing may replace an array of `_data`
    afterwards: arrays are written in place.
    """

    engine = "warp"

    def __init__(
        self,
        model: mujoco.MjModel,
        num_envs: int,
        device: str,
        nconmax: int | None = None,
        njmax: int | None = None,
        deterministic: bool = False,
    ) -> None:
        super().__init__(model, num_envs, device)
        self.warning_kinds = tuple(str(kind.name) for kind in mjw.OverflowType.ALL & ~_LIMITS)
        start_warp(device)
        self._graphs: dict[tuple[object, ...], wp.Graph] = {}
        self._ray_arrays: dict[int, RayArrays] = {}
        """By the number of rays."""
        self._renderers: dict[View, Renderer] = {}
        self._is_full = False  # Whether the device had no memory for larger buffers.
        is_late = model.sensor_needstage == mujoco.mjtStage.mjSTAGE_ACC
        self._has_late_sensors = bool(is_late.any())
        self._has_sensor_history = bool((model.sensor_history[:, 0] > 0).any())
        model = self.model = without_lacking(model)
        flags = "--engine native" if device == "cpu" else "--gpu-ids None --engine native"
        with wp.ScopedDevice(device):
            self._model = put_model(model, "simulate", f"MuJoCo's own engine can: {flags}")
            self._model.opt.deterministic = deterministic
            self._model.opt.warn_overflow = 0  # Kernels would print; `warnings` reports instead.
            start = mujoco.MjData(model)
            self._data = mjw.put_data(model, start, nworld=num_envs, nconmax=nconmax, njmax=njmax)
            self._mask = torch.ones(num_envs, dtype=torch.bool, device=self.device)
            self._mask_array = wp.from_torch(self._mask)
            # Since `warnings` was called last.
            self._overflowed, self._most_rows = wp.zeros(num_envs, int), wp.zeros(num_envs, int)
            self._most_contacts = wp.zeros(1, int)
            self._derived = DerivedFields(model, self._model, self._data)
            bits = [int(mjw.OverflowType[kind]) for kind in self.warning_kinds]
            self._kind_bits = torch.tensor(bits, dtype=torch.int32, device=self.device)
            self._load_kernels()
            # `reset_data` does not reset most of these.
            live = (wp.to_torch(getattr(self._data, name)) for name in ACCELERATION_FIELDS)
            self._accelerations = [field.zero_() for field in live]

    def step(self, n: int = 1) -> None:
        self.launch(self._step, n, self._derived.level)
        self.note_move()

    def forward(self, mask: torch.Tensor | None = None) -> None:
        self.note_move()
        self._derive()

    def _derive(self) -> None:
        if self._derived.level != "nothing":
            self.launch(self._derived.compute, self._derived.level)

    def reset(self, mask: torch.Tensor) -> None:
        self._mask.copy_(mask)
        self.launch(self._reset)
        for field in self._accelerations:
            field.masked_fill_(mask.unsqueeze(1), 0.0)

    def deferred_warnings(self) -> Deferred[dict[str, int]]:
        noted = [wp.to_torch(x) for x in (self._overflowed, self._most_rows, self._most_contacts)]
        overflowed, rows, contacts = noted
        counts = (overflowed.unsqueeze(1) & self._kind_bits).ne(0).sum(dim=0)
        most = [number.view(1) for number in rows.max(dim=0)]
        numbers = torch.cat((counts, *most, contacts))
        for tensor in (*noted, wp.to_torch(self._data.overflow)):
            tensor.zero_()
        return Deferred(numbers, self._take_warnings)

    def _take_warnings(self, numbers: list[float]) -> dict[str, int]:
        """Note what the buffers needed, enlarge those that overflowed, and return the warnings."""
        *counts, constraints, world, contacts = map(int, numbers)
        use = BufferUse(
            contacts=contacts / self.num_envs,
            nconmax=self._data.naconmax // self.num_envs,
            constraints=constraints,
            njmax=self._data.njmax,
            world=world,
        )
        found = self._by_kind(counts)
        if not self._is_full:
            try:
                self._make_room({size: use.doubled(size) for size in overflowed_sizes(found)})
            except UserError:  # Those worlds lose contacts, as before; training continues.
                self._is_full = True
        self.buffer_use = replace(use, is_full=self._is_full)
        return found

    def state(self) -> dict[str, torch.Tensor]:
        names = (*INTEGRATION_FIELDS, *ACCELERATION_FIELDS, "sensordata")
        arrays = {name: getattr(self._data, name, None) for name in names}
        live = {name: wp.to_torch(a) for name, a in arrays.items() if isinstance(a, wp.array)}
        room = torch.tensor((self._data.naconmax // self.num_envs, self._data.njmax))
        expanded = {f"model {name}": field for name, field in self.expanded.items()}
        return {**live, **expanded, "room": room}

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        if "room" in state:  # Sums over buffers of another size would be rounded differently.
            self._make_room(dict(zip(("nconmax", "njmax"), state["room"].tolist(), strict=True)))
        super().restore({name: value for name, value in state.items() if name != "room"})

    def set_const(self) -> None:
        for name in CONSTANTS:
            if getattr(self.model, name).size:
                self.expand(name)
        if "geom_size" in self.expanded:
            for name in BOUNDS:
                self.expand(name)
        with wp.ScopedDevice(str(self.device)):
            mjw.set_const(self._model, self._data, FIXED_AND_INERTIAL)
        # MuJoCo-Warp replaces a weight of 0, of a body that only turns, by the other weight, and
        # divides that of a body that only slides by 3.
        weights, mass = self.expanded["body_invweight0"], self.expand("body_mass")
        is_zero = torch.from_numpy(self.model.body_invweight0 == 0).to(self.device)
        weights.masked_fill_(is_zero & (weights[..., :1] == weights[..., 1:]), 0.0)
        slides = torch.from_numpy(self.model.body_simple == 2).to(self.device)
        weights[..., 0] = torch.where(slides, 1.0 / mass, weights[..., 0])

    def rays(
        self, starts: torch.Tensor, directions: torch.Tensor, groups: tuple[int, ...]
    ) -> torch.Tensor:
        self._read("xpos")
        count, is_hit = starts.shape[1], group_flags(groups)
        if count not in self._ray_arrays:
            with torch.inference_mode(False), wp.ScopedDevice(str(self.device)):
                self._ray_arrays[count] = RayArrays(self.num_envs, count)
                self._cast(count, is_hit)  # Compiles and loads the kernel.
        to_starts, to_directions, distances = self._ray_arrays[count].tensors
        to_starts.copy_(starts)
        to_directions.copy_(directions)
        self.launch(self._cast, count, is_hit)
        return distances.clone()

    def _images(self, view: View) -> dict[ImageKind, torch.Tensor]:
        self._read("geom_xpos")
        if view not in self._renderers:
            with torch.inference_mode(False), wp.ScopedDevice(str(self.device)):
                worlds = self._model, self._data
                self._renderers[view] = Renderer(self.model, *worlds, view, self.expanded)
        self.launch(self._render, view)
        return self._renderers[view].read()

    def _render(self, view: View) -> None:
        self._renderers[view].render()

    def launch(self, function: Callable[..., None], *args: Any) -> None:
        """Launch the graph of a call, which is captured when it is made first."""
        key = function.__name__, *args
        with wp.ScopedDevice(str(self.device)):
            if key not in self._graphs:
                with no_garbage_collection(), wp.ScopedCapture() as capture:
                    function(*args)
                assert capture.graph is not None
                self._graphs[key] = capture.graph
            wp.capture_launch(self._graphs[key])

    def _make_room(self, sizes: Mapping[str, int]) -> None:
        """Enlarge the buffers to `nconmax` and `njmax`, where they are smaller.

        All other arrays keep their addresses. Graphs that were captured before are void.

        Raises:
            UserError: the device has no memory for them. All is as it was.
        """
        data = self._data
        now = {"nconmax": data.naconmax // self.num_envs, "njmax": data.njmax}
        larger = {name: max(size, sizes.get(name, 0)) for name, size in now.items()}
        if larger == now:
            return
        before = {name: value.clone() for name, value in self.state().items()}
        arrays = {field.name: getattr(data, field.name) for field in fields(data)}
        try:
            with wp.ScopedDevice(str(self.device)):
                start = mujoco.MjData(self.model)
                other = mjw.put_data(self.model, start, nworld=self.num_envs, **larger)
                for name, old in arrays.items():
                    new = getattr(other, name)
                    if not isinstance(old, wp.array) or old.shape != new.shape:
                        setattr(data, name, new)
                self._load_kernels()
        except (MemoryError, RuntimeError):
            for name, old in arrays.items():
                setattr(data, name, old)
            raise UserError(
                f"{self.device} has no memory for the contacts and constraints of {self.num_envs} "
                f"environments with --env.nconmax {larger['nconmax']} and --env.njmax "
                f"{larger['njmax']}; use fewer --env.num-envs."
            ) from None
        finally:
            self._graphs.clear()
            super().restore({name: value for name, value in before.items() if name != "room"})

    def _load_kernels(self) -> None:
        """Run each kernel once, which compiles and loads it: a capture must not do that."""
        self._step(1, "forces")
        self._reset()
        for noted in (self._overflowed, self._most_rows, self._most_contacts):
            noted.zero_()

    def _step(self, n: int, derived: Level) -> None:
        data = self._data
        needed = data.nacon, data.ncollision, data.nefc, data.overflow
        noted = self._most_contacts, self._most_rows, self._overflowed
        for remaining in reversed(range(n)):
            # Only the last step's accelerations are read. Sensors of positions and velocities are
            # those that the derived stage computes.
            is_read = self._has_late_sensors and remaining == 0
            with nullcontext() if is_read or self._has_sensor_history else no_sensors(self._model):
                mjw.step(self._model, data)
            wp.launch(note_use, self.num_envs, [*needed, *noted])
        self._derived.compute(derived)

    def _cast(self, count: int, is_hit: tuple[bool, ...]) -> None:
        """Cast so many rays at the geom groups that are to be hit."""
        a: Any = self._ray_arrays[count]
        flags: Any = wp.spatial_vector(*map(float, is_hit))
        into = a.distances, a.geoms, a.normals
        mjw.rays(self._model, self._data, a.starts, a.directions, flags, True, a.no_body, *into)

    def _read(self, name: str) -> None:
        """Compute a derived field from now on."""
        if self._derived.read(name):
            self._derive()

    def _reset(self) -> None:
        mjw.reset_data(self._model, self._data, reset=self._mask_array)

    def _expand(self, name: str) -> torch.Tensor:
        own = expand_field(self._model, name, self.num_envs)
        # They hold the address of the shared array.
        self._graphs.clear()
        self._renderers.clear()
        return own.view(self.num_envs, *self.of_model(name).shape)

    def _bind(self, name: str) -> torch.Tensor:
        if name in DERIVED_FIELDS:
            self._read(name)
        # A matrix is 3 x 3 on warp, and 9 numbers in MuJoCo's own arrays.
        shape = np.shape(getattr(mujoco.MjData(self.model), name))
        return wp.to_torch(getattr(self._data, name)).view(self.num_envs, *shape)


class RayArrays:
    """What the graph that casts rays reads and writes, on warp's current device."""

    def __init__(self, num_envs: int, count: int) -> None:
        shape = num_envs, count
        self.starts, self.directions, self.normals = (wp.zeros(shape, wp.vec3) for _ in range(3))
        self.distances, self.geoms = wp.zeros(shape, float), wp.zeros(shape, int)
        self.no_body = wp.full(count, -1, int)
        """The body whose geoms each ray passes: none."""
        arrays = self.starts, self.directions, self.distances
        self.tensors = [wp.to_torch(array) for array in arrays]


@contextmanager
def no_sensors(model: mjw.Model) -> Iterator[None]:
    """Let steps compute no sensors. Nothing in MuJoCo-Warp's dynamics reads them."""
    flags = model.opt.disableflags
    model.opt.disableflags = flags | mjw.DisableBit.SENSOR
    try:
        yield
    finally:
        model.opt.disableflags = flags
