"""What a first quarter of an hour on a GPU has to show, section after section.

    python benchmarks/gpu.py [TASK] [flags]

Each section is a process with a time limit. The report is written after each, failed or not.
"""

import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import torch
from torch.profiler import ProfilerActivity

import mjfleet
import peer
from mjfleet.bench.benchmark import Counts, Setup, run_script
from mjfleet.bench.command import ENGINE, ITERATION, time_parts
from mjfleet.bench.result import Cell, Result, Table, show
from mjfleet.bench.timed_training import TRAIN, run_timed, train_timed
from mjfleet.config import to_dict
from mjfleet.config.validation import Seconds
from mjfleet.rl.checkpoints.files import read_checkpoint
from mjfleet.runs.checkpoints import FINAL
from mjfleet.utils.console import print_error
from mjfleet.utils.hardware_names import ask_gpu
from mjfleet.utils.parent_death import die_with_parent

Section = Literal["trains", "speed", "captured", "profile", "same", "peer"]
Row = dict[str, Cell]
LOOK_SECONDS, STOP_SECONDS = 0.2, 5.0  # Between looks at a GPU's memory; for a section to end.
HALF = 10  # Iterations of `same` before a run is continued.
NO_CUDA = "needs CUDA"
NOTES = (
    "Device memory is the most that all programs have used. Compiling is what the first of two "
    "starts took longer: nothing where the kernels had been compiled before.",
    f"`speed` is in env steps per second. {ENGINE}",
    "`captured` steps physics from the first states. In `profile`, no kernels hide in conditional "
    "nodes; idle is a share of an iteration without profiler.",
    f"`same` is the largest difference of policies' weights after {2 * HALF} iterations.",
)


@dataclass(frozen=True, kw_only=True)
class GpuOptions(peer.MjlabOptions):
    """Show that training on a GPU is correct and fast."""

    usual: ClassVar = ("--gpu-ids", "0", "--engine", "warp")
    num_envs: Counts = (4096, 16384)
    """Numbers of environments of `speed`; the other sections take the first."""
    sections: tuple[Section, ...] = get_args(Section)
    """What to show."""
    seconds: Seconds = 300.0
    """Time limit of each section."""


def gpu(setup: Setup, options: GpuOptions) -> Result:
    """Run the sections, and save the report after each."""
    columns, about = ("section", "status", "seconds", "device memory, GiB"), list[list[Cell]]()
    tables, samples = [Table("Sections", columns, about)], list[dict[str, Any]]()
    result = setup.result("gpu", tables, NOTES, samples)
    for section in options.sections:
        print_error(f"{section}: at most {options.seconds:.0f} s")
        rows, start = list[Row](), time.monotonic()
        status, memory = _run(section, setup, options, rows)
        about.append([section, status, time.monotonic() - start, memory])
        samples.append({**dict(zip(columns, about[-1], strict=True)), "rows": rows})
        for names, some in groupby(rows, key=tuple):
            tables.append(Table(section, names, [[*row.values()] for row in some]))
        setup.save(result)
    return result


def _run(section: str, setup: Setup, options: GpuOptions, rows: list[Row]) -> tuple[str, Cell]:
    """Run a section in a process, and add its rows; return how it ended, and the most memory of
    the GPU that was in use meanwhile, in GiB."""
    context, end, memory = get_context("fork"), time.monotonic() + options.seconds, [0.0]
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_section, args=(section, setup, options, sender, os.getpid()))
    process.start()
    sender.close()
    status = f"stopped after {options.seconds:.0f} s"
    try:
        while time.monotonic() < end:
            for physical in setup.devices.physical[:1]:
                used = ask_gpu(physical, "nvmlDeviceGetMemoryInfo")
                memory.append(used.used / 2**30 if used else 0.0)
            if receiver.poll(LOOK_SECONDS):
                rows.append(receiver.recv())
                print_error(", ".join(f"{name} {show(cell)}" for name, cell in rows[-1].items()))
    except EOFError:  # The process has ended.
        process.join(STOP_SECONDS)
        status = "ok" if process.exitcode == 0 else f"ended with {process.exitcode}"
    finally:
        process.terminate()
        process.join(STOP_SECONDS)
        process.kill()
    return status, max(memory) or None


def _section(section: str, setup: Setup, options: GpuOptions, sender: Any, parent: int) -> None:
    die_with_parent(parent)
    try:
        for row in SECTIONS[section](setup, options):
            sender.send(row)
    except Exception as error:
        sender.send({"failed": (str(error) or repr(error)).splitlines()[-1]})
        raise


def trains(setup: Setup, options: GpuOptions) -> Iterator[Row]:
    """Start training twice."""
    num_envs, name = options.num_envs[0], "first_iteration_seconds"
    first = peer.train_ours(setup, setup.config(num_envs, max_iterations=1))
    again = peer.train_ours(setup, setup.config(num_envs))
    yield {
        "compiling, s": max(0.0, first[name] - again[name]),
        "Enter to the first iteration, s": again[name],
        "env steps/s": again["steps_per_second"],
        "reward at first": again["iterations"][0]["mean_reward"],
        "at last": again["iterations"][-1]["mean_reward"],
        "warnings": again["errors"] or None,
    }


def speed(setup: Setup, options: GpuOptions) -> Iterator[Row]:
    """Compare training with its parts, down to raw launches of mujoco_warp's own step."""
    for num_envs in options.num_envs:
        speeds = time_parts(setup, num_envs)["speeds"]
        yield {"environments": num_envs, **dict(zip(ITERATION, speeds, strict=True))}


def captured(setup: Setup, options: GpuOptions) -> Iterator[Row]:
    """Compare graphs with calls: of the update, then of physics."""
    config = setup.config(options.num_envs[0])
    for how, flags in ("graphs", []), ("calls", ["--agent.no-cuda-graphs"]):
        ms: Cell = NO_CUDA
        if setup.devices.indices:
            ms = 1e3 * peer.train_ours(setup, config, flags)["learn_seconds"]
        yield {"": f"an update by {how}", "ms": ms}
    place = {"device": setup.devices.names[0], "tasks_dir": config.tasks_dir}
    with mjfleet.make(setup.found.name, config=to_dict(config), **place) as env:
        restore, call = env.sim.keep(), lambda function, *args: function(*args)
        for how, launch in ("graphs", env.sim.launch), ("calls", call):
            env.sim.launch = launch
            restore()
            env.sim.step(env.cfg.decimation)
            start = _now(setup)
            for _ in range(config.agent.num_steps_per_env):
                env.sim.step(env.cfg.decimation)
            yield {"": f"physics of a rollout by {how}", "ms": 1e3 * (_now(setup) - start)}


def profile(setup: Setup, options: GpuOptions) -> Iterator[Row]:
    """Find the longest kernels, and how long the GPU is idle; on a CPU, torch's operations."""
    count, on_gpu = options.warmup + options.iterations + 2, bool(setup.devices.indices)
    config = to_dict(setup.config(options.num_envs[0], max_iterations=count))
    activity = ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU
    iterations = mjfleet.iterate(setup.found.name, config=config, tasks_dir=config["tasks_dir"])
    sim: Any = next(iterations).env.sim
    restore, sim._model.opt.graph_conditional = sim.keep(), not on_gpu
    sim._graphs.clear()
    sim._load_kernels()
    restore()
    list(islice(iterations, options.warmup))
    start = _now(setup)
    list(islice(iterations, options.iterations))
    ms = 1e3 * (_now(setup) - start) / options.iterations
    with torch.profiler.profile(activities=[activity]) as profiler:
        next(iterations)
        _now(setup)
    events = [event for event in profiler.events() or () if event.device_type.name == activity.name]
    taken = Counter[str]()
    busy = end = 0.0  # Milliseconds; kernels may run beside each other.
    for event in sorted(events, key=lambda event: event.time_range.start):
        span = event.time_range
        taken[event.name] += (span.elapsed_us() if on_gpu else event.self_cpu_time_total) / 1e3
        busy, end = busy + max(0.0, span.end - max(span.start, end)) / 1e3, max(span.end, end)
    for name, each in taken.most_common(10):
        yield {"kernel": name[:80], "ms": each}
    idle = max(0.0, 1 - busy / ms) if on_gpu else NO_CUDA
    yield {"an iteration, ms": ms, "busy, ms": busy, "idle": idle, "launches": len(events)}


def same(setup: Setup, options: GpuOptions) -> Iterator[Row]:
    """Train twice with one seed, and once in two parts."""
    for flags in (), ("--deterministic",):
        once, *others = (_policy(setup, options, flags, n) for n in (2 * HALF, 2 * HALF, HALF))
        again, resumed = ((once - other).abs().max().item() for other in others)
        yield {"": "".join(flags) or "default", "same seed": again, "continued": resumed}


def _policy(setup: Setup, options: GpuOptions, flags: Sequence[str], length: int) -> torch.Tensor:
    """Train for `length` iterations, and continue up to 2 * HALF; return the policy's weights."""
    weights = list[torch.Tensor]()

    def look(run: Path) -> None:
        if length < 2 * HALF:
            further = ["--run-dir", str(run), "--max-iterations", str(2 * HALF)]
            run_timed([*TRAIN, setup.found.name, *further], setup.scratch)
        state = read_checkpoint(run / "checkpoints" / FINAL)["actor_state_dict"]
        weights.extend(tensor.flatten().double() for tensor in state.values())

    config = setup.config(options.num_envs[0], max_iterations=length)
    train_timed(setup.found, config, setup.scratch, flags, look)
    return torch.cat(weights)


def by_peer(setup: Setup, options: GpuOptions) -> Iterator[Row]:
    """Train the same by mjlab, where there is one."""
    if not options.mjlab or setup.found.name not in peer.MJLAB_TASKS:
        yield {"": "mjlab has no such task" if options.mjlab else "needs --mjlab"}
        return
    other, config = peer.find_peer("mjlab", setup, options.mjlab), setup.config(options.num_envs[0])
    ours, theirs = peer.train_ours(setup, config), peer.train_peer(setup, other, config)
    for figure, (title, _, _) in peer.FIGURES.items():
        values = peer.both(figure, ours, theirs)
        yield {"": title, **dict(zip(("mjfleet", "mjlab", "ratio"), values, strict=True))}


def _now(setup: Setup) -> float:
    """Return the time once the device has done all that it was given."""
    if setup.devices.indices:
        torch.cuda.synchronize(setup.devices.names[0])
    return time.perf_counter()


FUNCTIONS = trains, speed, captured, profile, same, by_peer
SECTIONS = dict(zip(get_args(Section), FUNCTIONS, strict=True))

if __name__ == "__main__":
    run_script(GpuOptions, gpu)
