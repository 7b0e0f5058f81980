"""All worlds of a worker behind one contract, on either engine. Runs in a worker."""

from typing import Literal

import mujoco

from mjfleet.sim.simulation import FIELDS, Simulation, group_flags
from mjfleet.sim.view import ImageKind

__all__ = ["FIELDS", "ImageKind", "Simulation", "group_flags", "make_simulation"]


def make_simulation(
    engine: Literal["warp", "native"],
    model: mujoco.MjModel,
    num_envs: int,
    *,
    device: str = "cpu",
    num_threads: int = 1,
    nconmax: int | None = None,
    njmax: int | None = None,
    deterministic: bool = False,
) -> Simulation:
    """Build the worlds. Imports the chosen engine only.

    Args:
        engine: `native` for the CPU with `num_threads` threads, `warp` for `device`.
        model: the compiled model, shared by all worlds.
        num_envs: number of worlds.
        device: torch's name of the device, such as "cuda:0".
        num_threads: threads of the native engine.
        nconmax: contacts per world that warp has room for; None: estimated from the model.
        njmax: constraint rows per world that warp has room for; None: estimated.
        deterministic: whether warp computes the same bits each time on a GPU, as it does on a CPU.

    Raises:
        UserError: the model uses something that MuJoCo-Warp lacks.
    """
    if engine == "native":
        from mjfleet.sim.native_engine import NativeSimulation

        return NativeSimulation(model, num_envs, num_threads)
    from mjfleet.sim.warp_engine import WarpSimulation

    return WarpSimulation(model, num_envs, device, nconmax, njmax, deterministic)
