"""Simulations: all worlds of one worker behind one contract, on either engine."""

from typing import Literal

import mujoco

from mjfleet.sim.simulation import FIELDS, Simulation

__all__ = ["FIELDS", "Simulation", "make_simulation"]


def make_simulation(
    engine: Literal["warp", "native"],
    model: mujoco.MjModel,
    num_envs: int,
    *,
    device: str = "cpu",
    num_threads: int = 1,
    nconmax: int | None = None,
    njmax: int | None = None,
) -> Simulation:
    """Build the worlds; imports the engine that was chosen, and only that.

    Args:
        engine: `native` steps on the CPU with `num_threads` threads, `warp` on `device`.
        model: the compiled model, shared by all worlds.
        num_envs: number of worlds.
        device: torch's device name, such as "cuda:0".
        num_threads: threads of the native engine.
        nconmax: contacts per world that warp has room for; None: a guess from the model.
        njmax: constraint rows per world that warp has room for; None: likewise.
    """
    if engine == "native":
        from mjfleet.sim.native_engine import NativeSimulation

        return NativeSimulation(model, num_envs, num_threads)
    from mjfleet.sim.warp_engine import WarpSimulation

    return WarpSimulation(model, num_envs, device, nconmax, njmax)
