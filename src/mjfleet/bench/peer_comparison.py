"""`mjfleet bench peer`: the same training by mjfleet and another stack. In the launcher."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from mjfleet.bench.benchmark_options import Counts, Options, Setup, progress
from mjfleet.bench.peers import find_peer, train_peer
from mjfleet.bench.result import Result, Table
from mjfleet.bench.timed_training import TRAIN, run_timed, train_ours

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
        progress("once for the caches of kernels")
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

    def table(title: str, column: str, pairs: Iterable[Any], power: int = -1) -> Table:
        rows = [(key, [ours, theirs, (ours / theirs) ** power]) for key, ours, theirs in pairs]
        return Table.of(title, [column, "mjfleet", peer.name, "ratio"], rows)

    keys = [{"num_envs": n} for n in options.num_envs]
    samples = setup.rounds(keys, measure, f"mjfleet, then {peer.name}, {{num_envs}} worlds")
    runs = [(s["num_envs"], s["mjfleet"], s[peer.name]) for s in samples]
    tables = []
    for figure, (title, factor, power) in FIGURES.items():
        pairs = [(n, ours[figure] * factor, theirs[figure] * factor) for n, ours, theirs in runs]
        tables.append(table(title, "worlds", pairs, power))
    if peer.helps:
        helps = setup.rounds([{"name": name} for name in peer.helps], measure_help, "{name}")
        pairs = [(f"`{h['name']}`", h["mjfleet"], h[peer.name]) for h in helps]
        tables.append(table("Seconds to help", "", pairs))
    name = f"peer-{peer.name}-{setup.found.name}-{worker.engine}-{setup.kind}"
    where = f"{worker.engine} engine on {setup.device}"
    title = f"{setup.found.name} by mjfleet, {where}, and by {peer.name}"
    notes = [*NOTES, *peer.notes]
    return Result(name, title, tables, notes, samples, versions=peer.versions)
