"""One part of `mjfleet bench gpu`, in a child process: prints what it found as a line of JSON.

python -m mjfleet.bench.gpu_child <part> <WorkerArgs as JSON>
"""

import ctypes
import json
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd import DeviceType  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed import HashStore  # pyright: ignore[reportPrivateImportUsage]

from mjfleet.bench.built_task import BuiltTask, built_task
from mjfleet.loggers.iteration_metrics import IterationMetrics
from mjfleet.rl import cuda_graphs
from mjfleet.rl.runner import Runner
from mjfleet.worker.thread_limits import prepare

Found = dict[str, Any]


def build(built: BuiltTask) -> Found:
    """Step once; the kernels were compiled while the environments were built."""
    env: Any = built.env
    env.step(torch.zeros(env.num_envs, env.num_actions, device=built.device))
    finite = {name: bool(value.isfinite().all()) for name, value in env.sim.state().items()}
    free, total = torch.cuda.mem_get_info() if built.device != "cpu" else (0, 0)
    return {"finite": all(finite.values()), "used GPU memory (MiB)": (total - free) >> 20}


def capture(built: BuiltTask) -> Found:
    """Capture random numbers, a physics step, random numbers and an allocation.

    Warp's conditional nodes end torch's capture and begin it again: torch looks up its memory pool
    and its generators by the id of the capture.
    """
    sim: Any = built.env.sim
    driver, stream = ctypes.CDLL("libcuda.so.1"), torch.cuda.current_stream
    start = {name: value.clone() for name, value in sim.state().items()}
    ids: list[int] = []
    made: list[torch.Tensor] = []
    found: Found = {}

    def work() -> None:
        first = torch.rand(8, device=built.device)
        for launch in (lambda: None, sim.step):
            launch()
            status, number = ctypes.c_int(), ctypes.c_ulonglong()
            to, handle = map(ctypes.byref, (status, number)), ctypes.c_void_p(stream().cuda_stream)
            driver.cuStreamGetCaptureInfo_v2(handle, *to, None, None, None)
            ids.append(number.value)
        second = torch.rand(8, device=built.device)
        made[:] = first, second, torch.empty(1 << 22, device=built.device)

    for is_conditional in (True, False):
        sim._model.opt.graph_conditional = is_conditional
        sim._graphs.clear()
        torch.manual_seed(1)
        sim.restore(start)
        work()
        by_calls = *made[:2], sim.qpos.clone()
        ids = []  # Before and after the physics step.
        outcome: Found = {"capture ids": ids}
        found[f"graph_conditional={is_conditional}"] = outcome
        try:
            graph = cuda_graphs.capture(work, sim.captured_by)
        except RuntimeError as error:  # The other way may work.
            outcome["failed"] = str(error)
            continue
        torch.manual_seed(1)
        sim.restore(start)
        graph.replay()
        *numbers, late = made
        pairs = zip(by_calls, (*numbers, sim.qpos), strict=True)
        pools = [
            segment["segment_pool_id"]
            for segment in torch.cuda.memory_snapshot()
            if 0 <= late.data_ptr() - segment["address"] < segment["total_size"]
        ]
        outcome |= {
            "numbers, numbers, positions are those of calls": [torch.allclose(*p) for p in pairs],
            "the last allocation is in the graph's pool": pools == [graph.pool()],
        }
    return found


def graphs(built: BuiltTask) -> Found:
    """Train by graphs and by calls; compare the first actions of rollouts, and what is learned.

    Each begins in environments of its own, with the same seed.
    """
    found: Found = {}
    for how, task in (("graphs", built), ("calls", BuiltTask(built.worker))):
        runner = task.runner(capture="auto" if how == "graphs" else None)
        metrics, errors = list[IterationMetrics](), _errors_of_first_actions(runner)
        start = time.perf_counter()
        runner.train(metrics.append, lambda: None)
        last = metrics[-10:]
        found[how] = {
            "seconds": time.perf_counter() - start,
            "largest error of a rollout's first actions": max(errors),
            "mean reward of the last 10 iterations": fmean(m.mean_reward for m in last),
            "median seconds to collect": median(m.collect_seconds for m in last),
            "median seconds to learn": median(m.learn_seconds for m in last),
        }
    return found


def _errors_of_first_actions(runner: Runner) -> list[float]:
    """Compare, before each update, the first mean actions with those that a call gives."""
    errors: list[float] = []
    storage: Any = runner.alg.storage
    compute_returns = runner.alg.compute_returns

    def compare(observations: Any) -> None:
        means = runner.alg.actor(storage.observations[0])
        errors.append((means - storage.distribution_params[0][0]).abs().max().item())
        compute_returns(observations)

    vars(runner.alg)["compute_returns"] = compare
    return errors


def nccl(built: BuiltTask) -> Found:
    """Reduce and gather in a world of one rank, and capture a graph beside NCCL's watchdog."""
    device = torch.device(built.device)
    backend = "nccl" if device.type == "cuda" else "gloo"
    where = device if backend == "nccl" else None
    dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1, device_id=where)
    own = torch.ones(8, dtype=torch.float64, device=device)
    everyone = torch.zeros_like(own)
    dist.all_reduce(own)
    dist.all_gather([everyone], own)
    found = train(built)
    dist.destroy_process_group()
    return found | {"backend": backend, "reduces and gathers": bool((everyone == 1).all())}


def train(built: BuiltTask) -> Found:
    """Train, for somebody who watches from outside."""
    metrics: list[IterationMetrics] = []
    built.runner().train(metrics.append, lambda: None)
    return {"iterations": len(metrics), "mean reward": metrics[-1].mean_reward}


def profile(built: BuiltTask) -> Found:
    """Of one iteration, count the calls that wait; of another, launches and the GPU's idle time."""
    runner, found, times = built.runner(), dict[str, Any](), list[float]()
    count = built.config.agent.max_iterations
    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
    with warnings.catch_warnings(record=True) as waits:

        def switch(metrics: IterationMetrics) -> None:
            torch.cuda.synchronize()
            times.append(time.perf_counter())
            if metrics.iteration == count - 2:
                warnings.simplefilter("always")
                torch.cuda.set_sync_debug_mode("warn")
            elif metrics.iteration == count - 1:
                torch.cuda.set_sync_debug_mode("default")
                places = (f"{Path(wait.filename).name}:{wait.lineno}" for wait in waits)
                found["waiting calls"] = dict(Counter(places))
                profiler.start()
                times[-1] = time.perf_counter()

        runner.train(switch, lambda: None)
    profiler.stop()
    spans = sorted(
        (event.time_range.start, event.time_range.end)
        for event in profiler.events() or ()
        if event.device_type == DeviceType.CUDA
    )
    busy, end = 0.0, 0.0
    for start, stop in spans:
        busy, end = busy + max(0.0, stop - max(start, end)), max(end, stop)
    seconds = times[-1] - times[-2]
    idle = 1 - busy / 1e6 / seconds
    return found | {"launches": len(spans), "seconds": seconds, "share of idle time": idle}


def main(part: str, worker: str) -> None:
    """Do one part of PARTS."""
    prepare()
    start = time.perf_counter()
    with built_task(json.loads(worker)) as built:
        seconds = time.perf_counter() - start
        print(json.dumps({"seconds to build": seconds} | PARTS[part](built)))


PARTS = {part.__name__: part for part in (build, capture, graphs, nccl, train, profile)}

if __name__ == "__main__":
    main(*sys.argv[1:])
