"""Times training, and in turn with it the bare engine. Runs in a child process.

python -m mjfleet.bench.throughput_child <WorkerArgs as JSON>
"""

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import mujoco
import torch

import mjfleet
from mjfleet.sim import Simulation
from mjfleet.sim.simulation import INTEGRATION_FIELDS
from mjfleet.worker.thread_limits import prepare
from mjfleet.worker.worker_args import WorkerArgs

BareEngine = tuple[Callable[[], object], dict[str, torch.Tensor]]
"""The engine's own call for `decimation` physics steps of all environments; their state."""


def measure(worker: WorkerArgs) -> list[list[float]]:
    """Train; return the seconds of each iteration, its rollout, its update, the environment and
    the bare engine.

    After each, the bare engine, then the environment with the same actions, steps as often as the
    rollout, from the states in which that ended. The first iteration has the building, too.
    """
    device, bare, samples = worker.devices[0], None, list[list[float]]()

    def now() -> float:
        if device != "cpu":
            torch.cuda.synchronize(device)
        return time.perf_counter()

    start = time.perf_counter()
    tasks_dir = worker.config["tasks_dir"]
    for iteration in mjfleet.iterate(worker.task, config=worker.config, tasks_dir=tasks_dir):
        seconds, env, row = now() - start, iteration.env, iteration.metrics
        if bare is None:
            make = _warp if worker.engine == "warp" else _native
            bare = make(worker, env.sim, env.cfg.decimation)
        step, fields = bare
        with torch.inference_mode():
            state = env.sim.state()
            for name, field in fields.items():
                field.copy_(state[name])
            start = now()
            for _ in range(worker.config["agent"]["num_steps_per_env"]):
                step()
            engine, start = now() - start, now()
            torch.set_num_threads(1)  # As in a rollout.
            for actions in torch.cat(iteration.runner.alg.checked()["action"]):
                env.step(actions)
        environment = now() - start
        collected, learned = (row[name] or 0.0 for name in ("collect_seconds", "learn_seconds"))
        samples.append([seconds, collected, learned, environment, engine])
        start = now()
    return samples


def _native(worker: WorkerArgs, sim: Simulation, decimation: int) -> BareEngine:
    from mujoco.batch import Batch

    batch = Batch(sim.model, nsim=sim.num_envs, nthread=worker.threads)
    stage = mujoco.mjtStage.mjSTAGE_NONE.value
    fields = {name: torch.from_numpy(batch.bind(name)) for name in INTEGRATION_FIELDS}
    return lambda: batch.step(nstep=decimation, stage=stage), fields


def _warp(worker: WorkerArgs, sim: Simulation, decimation: int) -> BareEngine:
    import mujoco_warp as mjw
    import warp as wp

    model = mjw.put_model(sim.model)
    model.opt.warn_overflow = 0
    state = sim.state()
    nconmax, njmax = state["room"].tolist()
    sizes = {"nworld": sim.num_envs, "nconmax": nconmax, "njmax": njmax}
    data = mjw.put_data(sim.model, mujoco.MjData(sim.model), **sizes)
    mjw.step(model, data)  # Loads the kernels: a capture must not do that.
    with wp.ScopedCapture() as capture:
        for _ in range(decimation):
            mjw.step(model, data)
    graph = capture.graph
    assert graph is not None
    known = [name for name in INTEGRATION_FIELDS if name in state]
    fields = {name: wp.to_torch(getattr(data, name)) for name in known}

    def step(_: Any = (model, data)) -> None:  # Whose arrays have to live as long as the graph.
        wp.capture_launch(graph)

    return step, fields


if __name__ == "__main__":
    prepare()
    output = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Nobody reads the output of training.
    samples = measure(WorkerArgs(**json.loads(sys.argv[1])))
    os.write(output, json.dumps(samples).encode() + b"\n")
