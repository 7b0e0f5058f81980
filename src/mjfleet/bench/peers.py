"""`mjfleet bench peer`: the same training by mjfleet and by mjlab or stock rsl_rl, in turn.

Runs in the launcher. What is installed is in an environment of its own under the user's cache
folder, because its pins are not mjfleet's.
"""

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

from platformdirs import user_cache_path

from mjfleet.bench.benchmark_options import Counts, Options, Setup
from mjfleet.bench.result import Result, Table
from mjfleet.bench.timed_training import TRAIN, run_timed, summarise, train_ours
from mjfleet.config import TrainConfig
from mjfleet.errors import UserError
from mjfleet.utils.console import print_error

VERSION = "1.6.0"
NEWEST = "2026-11-14T00:00:00Z"  # As for the packages of mjfleet, see pyproject.toml.
PACKAGES = ("mjlab", "mujoco", "mujoco-warp", "warp-lang", "torch", "rsl-rl-lib")
DRIVER = str(Path(__file__).with_name("peer_driver.py"))

WARP_ONLY = "mjlab steps by MuJoCo-Warp on every device, in float32"
CARTPOLE = (
    f"{WARP_ONLY}; its model has a ground plane in addition, and contacts are off in both.",
    "Starts differ a little: its speeds are uniform within 0.01 rad/s and m/s, here normal with "
    "that deviation.",
)
SWINGUP = (
    "Its pole starts at up to 0.034 rad from hanging, uniformly, and its cart in the middle; here "
    "both are normally distributed around that with 0.01 rad and m, as in the suite.",
)
GO1 = (
    f"{WARP_ONLY}.",
    "Robot, commands and rewards of both are of the same kind, but each has its own, and its own "
    "noise, randomisation and observations: mjlab's policy is told the velocity of the trunk, ours "
    "sees three observations in a row. Returns do not compare.",
)
RSL_RL = (
    "rsl_rl has torch's default threads, whose waiting by spinning makes its updates slow where "
    "other processes want a core; the environment variable OMP_WAIT_POLICY=PASSIVE, which mjfleet "
    "sets itself, reaches it too."
)
MJLAB_TASKS = {
    "cartpole-balance": ("Mjlab-Cartpole-Balance", 0.01, "euler", CARTPOLE),
    "cartpole-swingup": ("Mjlab-Cartpole-Swingup", 0.01, "euler", CARTPOLE + SWINGUP),
    "go1-velocity-flat": ("Mjlab-Velocity-Flat-Unitree-Go1", 0.005, "implicitfast", GO1),
    "go1-velocity-rough": ("Mjlab-Velocity-Rough-Unitree-Go1", 0.005, "implicitfast", GO1),
}
"""mjlab's counterparts: its name, our time step (s) and integrator, and how it differs."""
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
)


@dataclass(frozen=True, kw_only=True)
class MjlabOptions(Options):
    """The same training by mjlab, which is installed for this, and by mjfleet in turn."""

    peer: ClassVar[str] = "mjlab"
    task = "cartpole-balance"

    num_envs: Counts = (256, 1024, 4096)
    """Numbers of environments to measure."""


@dataclass(frozen=True, kw_only=True)
class RslRlOptions(MjlabOptions):
    """mjfleet's environment under rsl_rl's stock runner and PPO, in turn with mjfleet's."""

    peer = "rsl_rl"


def compare(setup: Setup, options: MjlabOptions) -> Result:
    """Train by both in turn, with each number of environments."""
    configs = {n: setup.config(n) for n in options.num_envs}
    worker = setup.worker_args(configs[options.num_envs[0]], setup.scratch)
    peer = find_peer(options.peer, setup)
    if peer.helps:
        print_error("once for the caches of kernels")
        first = setup.config(options.num_envs[0], max_iterations=1)
        train_ours(setup, first)
        train_peer(setup, peer, first)

    def measure(num_envs: int) -> dict[str, Any]:
        ours, _ = train_ours(setup, configs[num_envs])
        return {"mjfleet": ours, peer.name: train_peer(setup, peer, configs[num_envs])}

    def measure_help(name: str) -> dict[str, float]:
        task = [setup.found.name] if "<task>" in name else []
        commands = {"mjfleet": [*TRAIN, *task, "--help"], peer.name: peer.helps[name]}
        return {who: run_timed(command, setup.scratch).seconds for who, command in commands.items()}

    keys = [{"num_envs": n} for n in options.num_envs]
    samples = setup.rounds(keys, measure, f"mjfleet, then {peer.name}, {{num_envs}} worlds")
    runs = [(s["num_envs"], s["mjfleet"], s[peer.name]) for s in samples]
    tables = []
    for figure, (title, factor, power) in FIGURES.items():
        pairs = [(n, ours[figure] * factor, theirs[figure] * factor) for n, ours, theirs in runs]
        tables.append(Table.compared(title, "worlds", peer.name, pairs, power))
    if peer.helps:
        helps = setup.rounds([{"name": name} for name in peer.helps], measure_help, "{name}")
        pairs = [(f"`{h['name']}`", h["mjfleet"], h[peer.name]) for h in helps]
        tables.append(Table.compared("Seconds to help", "", peer.name, pairs, -1))
    name = f"peer-{peer.name}-{setup.found.name}-{worker.engine}-{setup.kind}"
    where = f"{worker.engine} engine on {setup.device}"
    title = f"{setup.found.name} by mjfleet, {where}, and by {peer.name}"
    notes = [*NOTES, *peer.notes]
    return Result(name, title, tables, notes, samples, versions=peer.versions)


@dataclass(frozen=True)
class Peer:
    """Another stack that trains the same."""

    name: str
    python: Sequence[str]  # The command that runs `peer_driver`, without its path.
    task: Mapping[str, Any] | None = None  # What `peer_driver` needs to know about mjlab's task.
    # Its counterparts of `train --help` and `train <task> --help`, where it has a command.
    helps: Mapping[str, Sequence[str]] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)  # `train_peer` adds how its training differs.


def find_peer(name: str, setup: Setup) -> Peer:
    """Return stock rsl_rl, which trains our environment, or mjlab, which `install` installs.

    UserError if mjlab has no such task.
    """
    if name == "rsl_rl":
        return Peer(name, [sys.executable, "-P"], notes=[RSL_RL])
    if setup.found.name not in MJLAB_TASKS:
        known = ", ".join(MJLAB_TASKS)
        raise UserError(f"mjlab has no counterpart of {setup.found.name}; it has those of {known}.")
    task, timestep, integrator, notes = MJLAB_TASKS[setup.found.name]
    folder = install(name, VERSION, setup.scratch)
    train = f"{folder}/bin/train"
    return Peer(
        name,
        [f"{folder}/bin/python"],
        {"name": task, "timestep": timestep, "integrator": integrator},
        {"train --help": [train, "--help"], "train <task> --help": [train, task, "--help"]},
        versions(name, folder, PACKAGES, setup.scratch),
        list(notes),
    )


def train_peer(
    setup: Setup, peer: Peer, config: TrainConfig, records_rewards: bool = False
) -> dict[str, Any]:
    """Train by another stack; return what `summarise` does."""
    folder = setup.scratch / "peer"
    folder.mkdir()
    worker = asdict(setup.worker_args(config, folder))
    request = {"worker": worker, "peer_task": peer.task, "records_rewards": records_rewards}
    try:
        child = run_timed([*peer.python, DRIVER, json.dumps(request)], setup.scratch)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    lines = child.json_lines()
    found = [note for line in lines for note in line.get("notes", [])]
    peer.notes.extend(note for note in found if note not in peer.notes)
    return summarise(setup, config, child, [line for line in lines if "collect_seconds" in line])


def install(name: str, version: str, scratch: Path) -> Path:
    """Return the folder of a package's virtual environment, which is made where there is none.

    It is made beside that and then moved: an existing one is complete.

    Raises:
        UserError: uv is missing, or the folder cannot be made.
        WorkerError: uv could not install it; the message says why.
    """
    folder = user_cache_path("mjfleet") / "bench" / f"{name}-{version}"
    if folder.is_dir():
        return folder
    if not (uv := shutil.which("uv")):
        raise UserError(f"{name} is installed by uv, which is missing: `pip install uv`.")
    print_error(f"installing {name} {version} into {folder}")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        beside = TemporaryDirectory(prefix=".new-", dir=folder.parent)
    except OSError as error:
        what = f"{name}'s environment cannot be made (XDG_CACHE_HOME)"
        raise UserError(f"{what}: {error}") from None
    flags = "--compile-bytecode", "--exclude-newer", NEWEST
    with beside:
        made = Path(beside.name, folder.name)
        # Relocatable, because the scripts of an environment name its folder.
        run_timed([uv, "venv", "--relocatable", "--python", sys.executable, str(made)], scratch)
        package = f"{name}=={version}"
        run_timed([uv, "pip", "install", "--python", str(made), *flags, package], scratch)
        if not folder.is_dir():  # Another benchmark may have been faster.
            made.rename(folder)
    return folder


def versions(name: str, folder: Path, packages: Sequence[str], scratch: Path) -> dict[str, str]:
    """Return the versions of packages in an environment, each under the name of whose it is."""
    code = f"import importlib.metadata as m\nfor name in {packages!r}: print(name, m.version(name))"
    lines = run_timed([f"{folder}/bin/python", "-P", "-c", code], scratch).lines
    found = dict(line.split(" ", 1) for _, line in lines)
    return {
        package if package == name else f"{name}'s {package}": v for package, v in found.items()
    }
