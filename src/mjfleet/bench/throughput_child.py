"""Times the parts of training, and in turn with it the bare engine. Runs in a child process.

python -m mjfleet.bench.throughput_child <WorkerArgs as JSON>
"""

import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mujoco
import torch

from mjfleet.config import TrainConfig, from_dict
from mjfleet.env.factory import build_env, on_device
from mjfleet.env.random_numbers import seed_everything
from mjfleet.loggers.logger import Row
from mjfleet.registry import FoundTask, find_task
from mjfleet.rl.runner import Runner
from mjfleet.sim import Simulation
from mjfleet.sim.simulation import INTEGRATION_FIELDS
from mjfleet.worker.gpu_settings import apply_settings
from mjfleet.worker.thread_limits import prepare
from mjfleet.worker.worker_args import WorkerArgs

BareEngine = tuple[Callable[[], object], dict[str, torch.Tensor]]
"""The engine's own call for `decimation` physics steps of all environments; their state."""


@contextmanager
def built_task(worker: WorkerArgs) -> Iterator[tuple[FoundTask, TrainConfig, Any]]:
    """Find a task, read its configuration and build its environment as training does."""
    found, device = find_task(worker.task, Path(worker.task_folder)), worker.devices[0]
    config = from_dict(found.defaults(), worker.config)
    with on_device(worker.engine, device):
        apply_settings(config, device)
        seed_everything(config.agent.seed)
        size = config.agent.algorithm.envs_per_group
        place = worker.engine, device, worker.threads
        yield found, config, build_env(found, config, *place, group_size=size)


class Stopwatch:
    """Times the parts of an iteration while it is on; waiting for a GPU around each slows it down.

    A part does not include the parts that it calls.
    """

    def __init__(self, device: str) -> None:
        self._device, self._nested, self.is_on = device, 0.0, False
        self.seconds: dict[str, float] = defaultdict(float)

    def now(self) -> float:
        """Return the time (s) once the device has finished."""
        if self._device != "cpu":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()

    def watch(self, part: str, owner: Any, method: str) -> None:
        """Add the time of every call of a method to that of a part."""
        call = getattr(owner, method)

        def timed(*args: Any, **kwargs: Any) -> Any:
            if not self.is_on:
                return call(*args, **kwargs)
            before, self._nested, start = self._nested, 0.0, self.now()
            result = call(*args, **kwargs)
            elapsed = self.now() - start
            self.seconds[part] += elapsed - self._nested
            self._nested = before + elapsed
            return result

        setattr(owner, method, timed)


def measure(worker: WorkerArgs) -> list[dict[str, Any]]:
    """Train; return the times (s) of each iteration, of which every second one is timed in parts.

    After each, the bare engine steps as often as the rollout, from the states in which that ended.
    """
    watch, samples = Stopwatch(worker.devices[0]), list[dict[str, Any]]()
    with built_task(worker) as (found, config, env):
        runner = Runner(env, config.agent, worker.devices[0], worker.threads, found.load)
        for part, owner, method in (
            ("physics", env.sim, "step"),
            ("rest of the environment", env, "step"),
            ("policy", runner.alg, "act"),
            ("update", runner.alg, "compute_returns"),
            ("update", runner.alg, "start_update"),
        ):
            watch.watch(part, owner, method)
        make = _warp if worker.engine == "warp" else _native
        step, fields = make(worker, env.sim, env.cfg.decimation)
        start = watch.now()

        def after_iteration(row: Row) -> None:
            nonlocal start
            seconds = watch.now() - start
            parts = dict(watch.seconds) if watch.is_on else None
            watch.is_on = False
            watch.seconds.clear()
            with torch.inference_mode():
                for name, value in env.sim.state().items():
                    if name in fields:
                        fields[name].copy_(value)
            start = watch.now()
            for _ in range(config.agent.num_steps_per_env):
                step()
            engine = watch.now() - start
            times = {"seconds": seconds, "collect_seconds": row["collect_seconds"]}
            samples.append({**times, "engine_seconds": engine, "parts": parts})
            watch.is_on = len(samples) % 2 == 1
            start = watch.now()

        runner.train(after_iteration, lambda: None)
    return samples


def _native(worker: WorkerArgs, sim: Simulation, decimation: int) -> BareEngine:
    from mujoco.batch import Batch

    batch = Batch(sim.model, nsim=sim.num_envs, nthread=worker.threads)
    stage = mujoco.mjtStage.mjSTAGE_NONE.value
    fields = {name: torch.from_numpy(batch.bind(name)) for name in _state_of(sim)}
    return lambda: batch.step(nstep=decimation, stage=stage), fields


def _warp(worker: WorkerArgs, sim: Simulation, decimation: int) -> BareEngine:
    import mujoco_warp as mjw
    import warp as wp

    model = mjw.put_model(sim.model)
    model.opt.warn_overflow = 0
    nconmax, njmax = sim.state()["room"].tolist()
    sizes = {"nworld": sim.num_envs, "nconmax": nconmax, "njmax": njmax}
    data = mjw.put_data(sim.model, mujoco.MjData(sim.model), **sizes)
    mjw.step(model, data)  # Loads the kernels: a capture must not do that.
    with wp.ScopedCapture() as capture:
        for _ in range(decimation):
            mjw.step(model, data)
    graph = capture.graph
    assert graph is not None
    arrays = {name: getattr(data, name, None) for name in _state_of(sim)}
    fields = {name: wp.to_torch(a) for name, a in arrays.items() if isinstance(a, wp.array)}
    return lambda: wp.capture_launch(graph), fields


def _state_of(sim: Simulation) -> list[str]:
    """Return the names of the fields on which a step depends."""
    return [name for name in INTEGRATION_FIELDS if name in sim.state()]


if __name__ == "__main__":
    prepare()
    output = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Nobody reads the output of training.
    samples = measure(WorkerArgs(**json.loads(sys.argv[1])))
    os.write(output, json.dumps(samples).encode() + b"\n")
