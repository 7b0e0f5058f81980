"""The same training by mjfleet and by another stack, in turn.

    python benchmarks/peer.py mjlab [TASK] --mjlab FOLDER [flags]
    python benchmarks/peer.py rsl_rl [TASK] [flags]

mjlab has a virtual environment of its own: its pins are its own. Of stock rsl_rl, runner and PPO
train our environment.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Literal

import tyro

from mjfleet.bench.benchmark import Counts, Options, Setup, run_script
from mjfleet.bench.result import Result, Table
from mjfleet.bench.timed_training import TimedChild, run_timed, train_timed
from mjfleet.config import TrainConfig
from mjfleet.config.validation import OptionalFolder
from mjfleet.errors import UserError
from mjfleet.utils.console import print_error
from mjfleet.utils.input_files import find_files

PACKAGES = ("mjlab", "mujoco", "mujoco-warp", "warp-lang", "torch", "rsl-rl-lib")
DRIVER = str(Path(__file__).with_name("peer_driver.py"))

MJLAB_TASKS = {
    "cartpole-balance": ("Mjlab-Cartpole-Balance", 0.01, "euler"),
    "cartpole-swingup": ("Mjlab-Cartpole-Swingup", 0.01, "euler"),
    "go1-velocity-flat": ("Mjlab-Velocity-Flat-Unitree-Go1", 0.005, "implicitfast"),
    "go1-velocity-rough": ("Mjlab-Velocity-Rough-Unitree-Go1", 0.005, "implicitfast"),
    "g1-tracking": (
        "Mjlab-Tracking-Flat-Unitree-G1-No-State-Estimation",
        0.01,
        "implicitfast",
    ),
}
"""mjlab's counterparts: its name, our time step (s) and integrator."""
FIGURES = {
    "steps_per_second": ("Env steps per second, end to end", 1.0, 1),
    "collect_seconds": ("Milliseconds of a rollout", 1e3, -1),
    "learn_seconds": ("Milliseconds of an update", 1e3, -1),
    "first_iteration_seconds": ("Seconds from Enter to the first iteration", 1.0, -1),
    "peak_memory": ("Peak memory of the process, MiB", 2**-20, -1),
}
"""By figure of a run: title, factor to the unit of its table, 1 where more is better (else -1)."""
NOTES = (
    "Medians of the repeats, with the least and the greatest. Both train in turn, each time in a "
    "new process; a ratio is that of two runs next to each other, and above 1 where mjfleet is "
    "better.",
    "End to end is what passes between the reports of iterations, after the warm-up.",
    "docs/benchmarks.md says how the two differ.",
)


@dataclass(frozen=True, kw_only=True)
class MjlabOptions(Options):
    """The flags of every benchmark, and where mjlab is."""

    mjlab: OptionalFolder = None
    """A virtual environment with mjlab, which `uv venv FOLDER` and `uv pip install --python FOLDER
    mjlab==1.6.0` make."""


@dataclass(frozen=True, kw_only=True)
class PeerOptions(MjlabOptions):
    """Train the same by another stack and by mjfleet in turn."""

    peer: tyro.conf.Positional[Literal["mjlab", "rsl_rl"]]
    """`mjlab`, for which --mjlab is needed, or rsl_rl's stock runner and PPO in our environment."""
    num_envs: Counts = (256, 1024, 4096)
    """Numbers of environments to measure."""


@dataclass(frozen=True)
class Peer:
    """Another stack that trains the same."""

    name: str
    python: Sequence[str]  # The command that runs `peer_driver`, without its path.
    task: Mapping[str, Any] | None = None  # What `peer_driver` needs to know about mjlab's task.
    versions: Mapping[str, str] = field(default_factory=dict)
    lacks: dict[str, None] = field(default_factory=dict)  # Settings, as `train_peer` finds.


def compare(setup: Setup, options: PeerOptions) -> Result:
    """Train by both in turn, with each number of environments."""
    peer = find_peer(options.peer, setup, options.mjlab)
    print_error("once for the caches of kernels")
    first = setup.config(options.num_envs[0], max_iterations=1)
    train_ours(setup, first)
    train_peer(setup, peer, first)

    def measure(num_envs: int) -> dict[str, Any]:
        config = setup.config(num_envs)
        ours = train_ours(setup, config)
        return {"mjfleet": ours, peer.name: train_peer(setup, peer, config)}

    keys = [{"num_envs": n} for n in options.num_envs]
    samples = setup.rounds(keys, measure, f"mjfleet, then {peer.name}, {{num_envs}} environments")
    tables = []
    for figure, (title, _, _) in FIGURES.items():
        rows = [(s["num_envs"], both(figure, s["mjfleet"], s[peer.name])) for s in samples]
        tables.append(Table.of(title, ["environments", "mjfleet", peer.name, "ratio"], rows))
    notes = [*NOTES, *peer.lacks]
    return setup.result(f"peer-{peer.name}", tables, notes, samples, versions=peer.versions)


def both(figure: str, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[float]:
    """Return one of FIGURES of two runs in the unit of its table, and their ratio."""
    _, factor, power = FIGURES[figure]
    a, b = ours[figure] * factor, theirs[figure] * factor
    return [a, b, (a / b) ** power]


def find_peer(name: str, setup: Setup, folder: str | None) -> Peer:
    """Return stock rsl_rl, or mjlab in its folder; UserError without one, or without the task."""
    if name == "rsl_rl":
        return Peer(name, [sys.executable, "-P"])
    if setup.found.name not in MJLAB_TASKS:
        known = ", ".join(MJLAB_TASKS)
        raise UserError(f"mjlab has no counterpart of {setup.found.name}; it has those of {known}.")
    task, timestep, integrator = MJLAB_TASKS[setup.found.name]
    if not folder:
        raise UserError("mjlab is needed: say by --mjlab FOLDER where it is, see --help.")
    python = str(Path(folder, "bin", "python"))
    code = f"from importlib.metadata import version as v\nfor n in {PACKAGES}: print(n, v(n))"
    lines = [line.split(" ") for _, line in run_timed([python, "-c", code], setup.scratch).lines]
    versions = {n if n == name else f"{name}'s {n}": version for n, version in lines}
    request: dict[str, Any] = {"name": task, "timestep": timestep, "integrator": integrator}
    if clips := getattr(setup.base.env, "clips", ()):
        request["clip"] = str(
            find_files(clips, [setup.found.folder], (".npz",), "--env.clips")[0].path
        )
    return Peer(name, [python], request, versions)


def train_ours(setup: Setup, config: TrainConfig, flags: Sequence[str] = ()) -> dict[str, Any]:
    """Train by mjfleet, with further flags; return what `summarise` does, and printed `errors`."""
    rows, child = train_timed(setup.found, config, setup.scratch, flags)
    found = summarise(config, setup.options.warmup, child, rows)
    return found | {"errors": " ".join(child.errors.split())}


def train_peer(setup: Setup, peer: Peer, config: TrainConfig) -> dict[str, Any]:
    """Train by another stack; return what `summarise` does."""
    request = {"worker": asdict(setup.worker_args(config)), "peer_task": peer.task}
    child = run_timed([*peer.python, DRIVER, json.dumps(request)], setup.scratch)
    rows = [{"seconds": at, **json.loads(line)} for at, line in child.lines if line[:2] == '{"']
    peer.lacks.update(dict.fromkeys(rows.pop(0)["lacks"]))
    return summarise(config, setup.options.warmup, child, rows)


def summarise(
    config: TrainConfig, warmup: int, child: TimedChild, rows: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Return FIGURES of a run, after the warm-up, and the rows of its iterations with the `seconds`
    since its start."""
    steps = config.env.num_envs * config.agent.num_steps_per_env
    first = min(warmup, len(rows) - 1)
    elapsed = rows[-1]["seconds"] - (rows[first - 1]["seconds"] if first else 0.0)
    return {
        "steps_per_second": (len(rows) - first) * steps / elapsed,
        "collect_seconds": median(row["collect_seconds"] for row in rows[first:]),
        "learn_seconds": median(row["learn_seconds"] for row in rows[first:]),
        "first_iteration_seconds": rows[0]["seconds"],
        "peak_memory": child.peak_memory,
        "iterations": rows,
    }


if __name__ == "__main__":
    run_script(PeerOptions, compare)
