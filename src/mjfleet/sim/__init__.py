"""All worlds of a worker behind one contract, on either engine. Runs in a worker."""

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
    deterministic: bool = False,
) -> Simulation:
    """Build `num_envs` worlds of a model: `native` on the CPU with threads, `warp` on `device`.

    Warp has room for `nconmax` contacts and `njmax` constraint rows per world; None: estimated from
    the model. If `deterministic`, it computes the same bits each time on a GPU, as on a CPU.
    """
    if engine == "native":
        from mjfleet.sim.native_engine import NativeSimulation

        return NativeSimulation(model, num_envs, num_threads)
    from mjfleet.sim.warp_engine import WarpSimulation

    return WarpSimulation(model, num_envs, device, nconmax, njmax, deterministic)
