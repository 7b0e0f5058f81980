"""How fast a camera of a task renders, by number of environments, size and kinds.

python benchmarks/cameras.py [TASK] [flags]
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import mjfleet
from mjfleet.bench.benchmark import Counts, Options, Setup, run_script
from mjfleet.bench.result import Result, Table
from mjfleet.config import to_dict
from mjfleet.config.validation import Count
from mjfleet.errors import UserError

KINDS: tuple[Any, ...] = ("depth",), ("rgb",), ("segmentation",), ("depth", "rgb")
"""What is rendered at once."""
NOTES = (
    "Medians of single renderings, of all environments at once, with the least and the greatest. "
    "Before each, the environments take a step with random actions, whose time is in the last "
    "column; that of a task which has cameras contains their rendering.",
    "CPU seconds are those of all threads of the process: what other programs do changes them less "
    "than the time that passes.",
)


@dataclass(frozen=True, kw_only=True)
class CameraOptions(Options):
    """Measure how fast a camera of a task renders."""

    camera: str | None = None
    """Name of the camera; None: the model's first."""
    num_envs: Counts = (16, 128, 1024)
    """Numbers of environments."""
    sizes: Counts = (32, 64)
    """Widths and heights of the images, pixels."""
    iterations: Count = 10
    """Renderings that are measured."""
    warmup: Count = 2
    """Renderings before those."""
    repeats: Count = 1
    """How often to measure everything, in turn."""


def cameras(setup: Setup, options: CameraOptions) -> Result:
    """Render with each number of environments, of each size and each of KINDS."""
    samples: list[dict[str, Any]] = []

    def measure(num_envs: int) -> dict[str, Any]:
        samples.extend(_measure(setup, options, num_envs))
        return {}

    keys = [{"num_envs": number} for number in options.num_envs]
    setup.rounds(keys, measure, "{num_envs} environments")
    columns = ("environments, pixels, kinds", "images/s", "per CPU second", "ms", "a step, ms")
    measured = ((sample["view"], _figures(sample)) for sample in samples)
    return setup.result("cameras", [Table.of("Rendering", columns, measured)], NOTES, samples)


def _figures(sample: Mapping[str, Any]) -> list[float]:
    seconds, cpu, step = (sample[name] for name in ("seconds", "cpu_seconds", "step_seconds"))
    return [sample["num_envs"] / seconds, sample["num_envs"] / cpu, 1e3 * seconds, 1e3 * step]


def _measure(setup: Setup, options: CameraOptions, num_envs: int) -> Iterator[dict[str, Any]]:
    """Yield each measured rendering; UserError if the model has no such camera."""
    import torch  # After mjfleet, which says how its threads wait.

    device = f"cuda:{setup.devices.indices[0]}" if setup.devices.indices else "cpu"
    config = to_dict(setup.base)
    with mjfleet.make(setup.found.name, num_envs=num_envs, device=device, config=config) as env:
        names = [env.sim.model.camera(i).name for i in range(env.sim.model.ncam)]
        if not names:
            raise UserError(f"{setup.found.name}: the model has no camera; choose another task.")
        camera = options.camera or names[0]
        for size, kinds in product(options.sizes, KINDS):
            view = f"{num_envs} x {size} x {size}, {' and '.join(kinds)}"
            render = partial(env.sim.images, camera, size, size, kinds)
            render()  # Compiles.
            for number in range(options.warmup + options.iterations):
                actions = torch.rand(num_envs, env.num_actions, device=env.device) * 2 - 1
                step, _ = _time(env, partial(env.step, actions))
                seconds, cpu = _time(env, render)
                if number >= options.warmup:
                    yield {"view": view, "num_envs": num_envs, "seconds": seconds,
                           "cpu_seconds": cpu, "step_seconds": step}  # fmt: skip


def _time(env: Any, function: Callable[[], object]) -> tuple[float, float]:
    """Return seconds and CPU seconds of a call, until the device has done what it asks for."""
    begun = _now(env)
    function()
    ended = _now(env)
    return ended[0] - begun[0], ended[1] - begun[1]


def _now(env: Any) -> tuple[float, float]:
    if str(env.device) != "cpu":
        import torch

        torch.cuda.synchronize(env.device)
    return time.perf_counter(), time.process_time()


if __name__ == "__main__":
    run_script(CameraOptions, cameras)
