"""`mjfleet bench peer`: the same training by mjfleet and by another stack, in turn.

Runs in the launching process; all training is in child processes.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from mjfleet.bench.benchmark_options import Options, Setup, progress
from mjfleet.bench.mjlab_setup import PEERS
from mjfleet.bench.result import Result, Table
from mjfleet.bench.timed_training import TRAIN, run_timed, train_ours

FIGURES = {
    "steps_per_second": ("Env steps per second, end to end", 1.0),
    "collect_seconds": ("Milliseconds of a rollout", 1e3),
    "learn_seconds": ("Milliseconds of an update", 1e3),
    "first_iteration_seconds": ("Seconds from Enter to the first iteration", 1.0),
    "peak_memory": ("Peak memory of the process, MiB", 2**-20),
}
"""Title and factor to the unit of its table, for each figure of Trained; more of the first is
better, and less of the others."""
NOTES = (
    "Medians of the repeats, with the least and the greatest. Both train in turn, each time in a "
    "new process; a ratio is that of two runs next to each other, and above 1 where mjfleet is "
    "better.",
    "End to end is what passes between the reports of iterations, after the warm-up.",
)


@dataclass(frozen=True, kw_only=True)
class MjlabOptions(Options):
    """The same training by mjlab, which is installed for it, in turn with mjfleet's."""

    peer: ClassVar[str] = "mjlab"
    task = "cartpole-balance"

    num_envs: tuple[int, ...] = (256, 1024, 4096)
    """Numbers of environments to measure."""


@dataclass(frozen=True, kw_only=True)
class RslRlOptions(MjlabOptions):
    """mjfleet's environment under rsl_rl's stock runner and PPO, in turn with mjfleet's."""

    peer = "rsl_rl"


def compare(setup: Setup, options: MjlabOptions) -> Result:
    """Train by both in turn, with each number of environments."""
    iterations = options.warmup + options.iterations
    configs = {n: setup.config(n, max_iterations=iterations) for n in options.num_envs}
    worker = setup.worker_args(configs[options.num_envs[0]], setup.scratch)
    peer = PEERS[options.peer](setup)
    if peer.helps:
        progress("once for the caches of kernels")
        first = setup.config(options.num_envs[0], max_iterations=1)
        train_ours(setup, first)
        peer.train(first, False)
    differences: dict[str, None] = {}

    def measure(num_envs: int) -> dict[str, Any]:
        ours, _ = train_ours(setup, configs[num_envs])
        theirs, found = peer.train(configs[num_envs], False)
        differences.update(dict.fromkeys(found))
        return {"num_envs": num_envs, "mjfleet": asdict(ours), peer.name: asdict(theirs)}

    def measure_help(name: str) -> tuple[float, float]:
        task = [setup.found.name] if "<task>" in name else []
        ours = run_timed([*TRAIN, *task, "--help"], setup.scratch)
        return ours.seconds, run_timed(peer.helps[name], setup.scratch).seconds

    def table(
        title: str, first: str, pairs: Iterable[tuple[Any, tuple[float, float]]], more: bool = False
    ) -> Table:
        rows = [(key, (a, b, a / b if more else b / a)) for key, (a, b) in pairs]
        return Table.of(title, [first, "mjfleet", peer.name, "ratio"], rows)

    measured = setup.rounds(options.num_envs, measure, f"mjfleet, then {peer.name}, {{}} worlds")
    tables = []
    for figure, (title, factor) in FIGURES.items():
        pairs = [
            (n, (s["mjfleet"][figure] * factor, s[peer.name][figure] * factor)) for n, s in measured
        ]
        tables.append(table(title, "worlds", pairs, more=figure == "steps_per_second"))
    if peer.helps:
        helps = setup.rounds(list(peer.helps), measure_help)
        tables.append(table("Seconds to help", "", [(f"`{name}`", pair) for name, pair in helps]))
    return Result(
        name=f"peer-{peer.name}-{setup.found.name}-{worker.engine}-{setup.kind}",
        title=f"{setup.found.name} by mjfleet, {worker.engine} engine on {setup.device}, "
        f"and by {peer.name}",
        tables=tables,
        versions=peer.versions,
        notes=[*NOTES, *peer.notes, *differences],
        samples=[sample for _, sample in measured],
    )
