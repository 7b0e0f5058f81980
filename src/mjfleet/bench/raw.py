"""The engines' own limits: physics steps and nothing else. Runs in a child process."""

from collections.abc import Callable, Mapping

import mujoco
import torch

from mjfleet.sim import Simulation
from mjfleet.worker.worker_args import WorkerArgs

Limits = Mapping[str, Callable[[], None]]
"""By name, what takes all worlds `decimation` physics steps further."""


class RawEngine:
    """As many worlds as a simulation has, stepped by the engine's own call alone.

    Args:
        job: names engine, device and threads.
        sim: the simulation whose model and states are taken over.
        decimation: physics steps of each call.
    """

    def __init__(self, job: WorkerArgs, sim: Simulation, decimation: int) -> None:
        self._sim = sim
        make = _warp if job.engine == "warp" else _native
        self.limits, self._fields = make(job, sim, decimation)

    def follow(self) -> None:
        """Go to the states and controls in which the simulation is."""
        with torch.inference_mode():
            for name, value in self._sim.state().items():
                if name in self._fields:
                    self._fields[name].copy_(value)


def _native(
    job: WorkerArgs, sim: Simulation, decimation: int
) -> tuple[Limits, dict[str, torch.Tensor]]:
    from mujoco.batch import Batch

    batch = Batch(sim.model, nsim=sim.num_envs, nthread=job.threads)
    stage = mujoco.mjtStage.mjSTAGE_NONE.value
    fields = {name: torch.from_numpy(batch.bind(name)) for name in _state_of(sim)}
    return {"Batch.step": lambda: batch.step(nstep=decimation, stage=stage)}, fields


def _warp(
    job: WorkerArgs, sim: Simulation, decimation: int
) -> tuple[Limits, dict[str, torch.Tensor]]:
    import mujoco_warp as mjw
    import warp as wp

    env, device = job.config["env"], job.devices[0]
    with wp.ScopedDevice(device):
        model = mjw.put_model(sim.model)
        model.opt.warn_overflow = 0
        data = mjw.put_data(
            sim.model,
            mujoco.MjData(sim.model),
            nworld=sim.num_envs,
            nconmax=env["nconmax"],
            njmax=env["njmax"],
        )

        def plain() -> None:
            with wp.ScopedDevice(device):
                for _ in range(decimation):
                    mjw.step(model, data)

        plain()  # Kernels are loaded: a capture must not do that.
        with wp.ScopedCapture() as capture:
            plain()
    graph = capture.graph
    assert graph is not None

    def launch() -> None:
        with wp.ScopedDevice(device):
            wp.capture_launch(graph)

    arrays = {name: getattr(data, name, None) for name in _state_of(sim)}
    fields = {name: wp.to_torch(a) for name, a in arrays.items() if isinstance(a, wp.array)}
    return {"graph launches": launch, "plain launches": plain}, fields


def _state_of(sim: Simulation) -> list[str]:
    """The fields on which a step depends."""
    from mjfleet.sim.simulation import INTEGRATION_FIELDS

    return [name for name in INTEGRATION_FIELDS if name in sim.state()]
