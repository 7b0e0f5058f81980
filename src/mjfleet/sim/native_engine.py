"""MuJoCo on a CPU thread pool: `mujoco.batch.Batch`. Runs in a worker."""

import ctypes
import warnings
from collections.abc import Mapping
from copy import copy as copied
from functools import partial
from typing import Any

import mujoco
import numpy as np
import torch
from mujoco.batch import Batch

from mjfleet.sim.deferred import Deferred
from mjfleet.sim.simulation import (
    ACCELERATION_FIELDS,
    INTEGRATION_FIELDS,
    STATE_FIELDS,
    Simulation,
    group_flags,
)
from mjfleet.sim.view import ImageKind, View

_NONE = mujoco.mjtStage.mjSTAGE_NONE.value
_ACC = mujoco.mjtStage.mjSTAGE_ACC.value
_VEL = mujoco.mjtStage.mjSTAGE_VEL.value

FEW_GEOMS = 4
"""Geoms of a body up to which testing all pairs is faster than MuJoCo's midphase."""


def stop_timers() -> None:
    """Let MuJoCo read no clock in this process: durations in `MjData.timer` stay 0.

    It reads one ten times and more in a physics step, which for a small model takes a quarter of
    it. The variable is documented (`mjcb_time`); Python's `set_mjcb_time` cannot clear it.
    """
    loaded = ctypes.CDLL(f"libmujoco.so.{mujoco.mj_versionString()}")
    ctypes.c_void_p.in_dll(loaded, "mjcb_time").value = None


class NativeSimulation(Simulation):
    """Worlds in float64. The result does not depend on the number of threads.

    Derived fields cost time only from the first read of one of them. Until then a step ends with
    the integration, as `mujoco.mj_step` does.

    An MjData of the batch serves many worlds, so a call that stops at the velocity stage leaves
    other worlds' accelerations in it. Fields that hold accelerations are therefore copies, updated
    by steps and cleared by resets.
    """

    engine = "native"

    def __init__(self, model: mujoco.MjModel, num_envs: int, num_threads: int) -> None:
        model = copied(model)
        model.opt.disableflags |= _only_costs(model)
        super().__init__(model, num_envs, "cpu")
        stop_timers()
        self._batch = Batch(model, nsim=num_envs, nthread=num_threads)
        # A NumPy view of this mask yields the world numbers that Batch expects.
        self._mask = torch.zeros(num_envs, dtype=torch.bool)
        self._mask_array = self._mask.numpy()
        self._ends: dict[int, tuple[torch.Tensor, np.ndarray]] = {}
        """By the number of rays, their starts and directions, and a NumPy view of these."""
        self._num_threads = num_threads
        self._twin: Any = None
        """The WarpTwin that renders, which is imported with the first image."""
        self._stage = _NONE
        self._sets_const = False  # Whether constants follow from fields that differ.
        self._copies: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        is_late = np.repeat(model.sensor_needstage == _ACC, model.sensor_dim)
        self._of_acceleration = torch.from_numpy(is_late)
        # MuJoCo counts the warnings of each world. By default it also prints them from its threads
        # and appends them to a file in the working directory.
        mujoco.set_mju_user_warning(lambda message: None)
        self._counts = self._batch.warning[:, :, 1]
        self.warning_kinds = tuple(
            mujoco.mjtWarning(i).name.removeprefix("mjWARN_") for i in range(self._counts.shape[1])
        )
        self._warned = np.zeros(self._counts.shape, dtype=bool)

    def step(self, n: int = 1) -> None:
        self._batch.step(nstep=n, stage=self._stage)
        for copy, live in self._copies.values():
            copy.copy_(live)
        self.note_move()

    def forward(self, mask: torch.Tensor | None = None) -> None:
        self.note_move()
        self._derive(mask)

    def _derive(self, mask: torch.Tensor | None = None) -> None:
        if self._stage == _NONE:
            return
        self._batch.forward(None if mask is None else self._ids(mask), stage=_VEL)
        if "sensordata" in self._copies:
            copy, live = self._copies["sensordata"]
            torch.where(self._of_acceleration, copy, live, out=copy)

    def reset(self, mask: torch.Tensor) -> None:
        ids = self._ids(mask)
        if ids.size:
            self._warned[ids] |= self._counts[ids] > 0  # Before the reset clears the counts.
            self._batch.reset(ids, stage=_NONE)
            for copy, _ in self._copies.values():
                copy.masked_fill_(mask.unsqueeze(1), 0.0)

    def deferred_warnings(self) -> Deferred[dict[str, int]]:
        worlds = (self._warned | (self._counts > 0)).sum(axis=0)
        self._counts[:] = 0
        self._warned[:] = False
        return Deferred(torch.from_numpy(worlds), self._by_kind)

    def state(self) -> dict[str, torch.Tensor]:
        fields = {name: torch.from_numpy(self._batch.bind(name)) for name in INTEGRATION_FIELDS}
        fields |= {f"last {name}": copy for name, (copy, _) in self._copies.items()}
        return fields | {f"model {name}": field for name, field in self.expanded.items()}

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        for name in state:
            if name.startswith("last "):
                getattr(self, name.removeprefix("last "))  # Binding a field creates its copy.
        super().restore(state)
        if self._sets_const:
            self._batch.set_const()
            self.forward()

    def set_const(self) -> None:
        self._sets_const = True
        self._batch.set_const()

    def _expand(self, name: str) -> torch.Tensor:
        self._twin = None  # Its graphs have the addresses of shared fields.
        return torch.from_numpy(self._batch.expand(name))

    def rays(
        self, starts: torch.Tensor, directions: torch.Tensor, groups: tuple[int, ...]
    ) -> torch.Tensor:
        count = starts.shape[1]
        if count not in self._ends:
            with torch.inference_mode(False):
                ends = torch.zeros(2, self.num_envs, count, 3, dtype=torch.float64)
                self._ends[count] = ends, ends.numpy()
        ends, array = self._ends[count]
        ends[0], ends[1] = starts, directions
        is_hit = group_flags(groups)
        return torch.from_numpy(self._batch.ray(*array, geomgroup=is_hit)[0])

    def _images(self, view: View) -> dict[ImageKind, torch.Tensor]:
        if self._twin is None:
            from mjfleet.sim.warp_twin import WarpTwin

            self._twin = WarpTwin(self.model, self.num_envs, self._num_threads)
        return self._twin.images(view, partial(getattr, self), self.expanded)

    def _ids(self, mask: torch.Tensor) -> np.ndarray:
        """Return the numbers of the worlds where `mask` is true."""
        self._mask.copy_(mask)
        return np.flatnonzero(self._mask_array)

    def _bind(self, name: str) -> torch.Tensor:
        with warnings.catch_warnings():
            # Derived arrays are read-only in NumPy, which torch warns about.
            warnings.filterwarnings("ignore", message=".*not writable.*")
            live = torch.from_numpy(self._batch.bind(name))
        if name in STATE_FIELDS:
            return live
        # Derived fields are filled by the first call after they were bound.
        self._stage = _VEL
        if name in ACCELERATION_FIELDS or name == "sensordata":
            self._copies[name] = (self._accelerations(live), live)
        self._derive()
        return self._copies[name][0] if name in self._copies else live

    def _accelerations(self, live: torch.Tensor) -> torch.Tensor:
        """Return the first values of a field that holds accelerations.

        The last step did not keep them, so they are computed from the current state. They are zero
        where there has been no step.
        """
        warm_start = self._batch.bind("qacc_warmstart")
        kept = warm_start.copy()
        self._batch.forward(stage=_ACC)
        warm_start[:] = kept
        started = torch.from_numpy(self._batch.bind("time")) > 0
        return torch.where(started.unsqueeze(1), live, torch.zeros_like(live))


def _only_costs(model: mujoco.MjModel) -> int:
    """Return flags of parts of MuJoCo that change no bit of this model's results but take time.

    Measured on bundled tasks: physics takes 1.02 to 1.12 times longer with them.
    """
    flags = 0
    if model.ntree <= 1 and not model.opt.enableflags & int(mujoco.mjtEnableBit.mjENBL_SLEEP):
        flags |= int(mujoco.mjtDisableBit.mjDSBL_ISLAND)  # There is one island.
    if not model.nflex and _needs_no_midphase(model):
        flags |= int(mujoco.mjtDisableBit.mjDSBL_MIDPHASE)
    return flags


def _needs_no_midphase(model: mujoco.MjModel) -> bool:
    """Return whether bodies have few geoms, and contacts come in the same order without midphase.

    The midphase sorts contacts by their geoms, and lists the geom of lower type first.
    """
    types, affinities = model.geom_contype, model.geom_conaffinity
    used = np.flatnonzero(types | affinities)
    types, affinities, bodies = types[used], affinities[used], model.geom_bodyid[used]
    counts = np.bincount(bodies, minlength=1)
    if counts.max() > FEW_GEOMS:
        return False
    collide = np.bitwise_and.outer(types, affinities) != 0
    is_lower = np.less.outer(model.geom_type[used], model.geom_type[used])
    is_later = np.greater.outer(bodies, bodies) & (np.maximum.outer(*2 * (counts[bodies],)) > 1)
    return not (is_later & is_lower & (collide | collide.T)).any()
