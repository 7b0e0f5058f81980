"""`mjfleet bench peer`: the same training by us and by another stack, in turn.

Runs in the launching process; all training is in child processes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from mjfleet.bench.children import run_child
from mjfleet.bench.options import PeerOptions
from mjfleet.bench.peers.known import PEERS, Peer
from mjfleet.bench.result import Cell, Result, Spread, Table
from mjfleet.bench.setup import Setup, progress
from mjfleet.bench.training import TRAIN, train_ours

OURS = "mjfleet"
FIGURES = {
    "steps_per_second": ("Env steps per second, end to end", 1.0, True),
    "collect_seconds": ("Milliseconds of a rollout", 1e3, False),
    "learn_seconds": ("Milliseconds of an update", 1e3, False),
    "first_iteration_seconds": ("Seconds from Enter to the first iteration", 1.0, False),
    "peak_memory": ("Peak memory of the process, MiB", 2**-20, False),
}
"""Of each figure of Trained: title, factor to the unit of its table, whether more is better."""
NOTES = (
    "Medians of the repeats, with the least and the greatest. Both train in turn, each time in a "
    "new process; a ratio is that of two runs next to each other, and above 1 where mjfleet is "
    "better.",
    "End to end is what passes between the reports of iterations, after the warm-up.",
)


def compare(setup: Setup, options: PeerOptions, name: str) -> Result:
    """Train by both in turn, with each number of worlds."""
    iterations = options.warmup + options.iterations
    configs = {n: setup.config(n, max_iterations=iterations) for n in options.num_envs}
    job = setup.job(configs[options.num_envs[0]], setup.scratch)
    peer = PEERS[name](setup)
    if peer.compiles:
        progress("once for the caches of kernels")
        first = setup.config(options.num_envs[0], max_iterations=1)
        train_ours(setup, first)
        peer.train(first, False)
    differences: dict[str, None] = {}

    def measure(num_envs: int) -> dict[str, Any]:
        ours, _ = train_ours(setup, configs[num_envs])
        theirs, found = peer.train(configs[num_envs], False)
        differences.update(dict.fromkeys(found))
        return {"num_envs": num_envs, OURS: asdict(ours), peer.name: asdict(theirs)}

    taken = setup.rounds(
        options.num_envs, measure, lambda n: f"{OURS}, then {peer.name}, {n} worlds"
    )
    samples = [sample for _, sample in taken]
    tables = [
        Table(title, _columns("worlds", peer), _rows(samples, peer, figure, options.num_envs))
        for figure, (title, *_) in FIGURES.items()
    ]
    if helps := _helps(setup, peer):
        tables.append(Table("Seconds to help", _columns("", peer), helps))
    where = f"{job.engine} engine on {setup.device}"
    return Result(
        name=f"peer-{peer.name}-{setup.found.name}-{job.engine}-{setup.kind}",
        title=f"{setup.found.name} by mjfleet, {where}, and by {peer.name}",
        tables=tables,
        versions=peer.versions,
        notes=[*NOTES, *peer.notes, *differences],
        samples=samples,
    )


def _columns(first: str, peer: Peer) -> list[str]:
    return [first, OURS, peer.name, "ratio"]


def _rows(
    samples: Sequence[Mapping[str, Any]], peer: Peer, figure: str, sizes: Sequence[int]
) -> list[list[Cell]]:
    """A figure for each number of worlds."""
    _, factor, more_is_better = FIGURES[figure]
    rows: list[list[Cell]] = []
    for n in sizes:
        pairs = [
            (sample[OURS][figure] * factor, sample[peer.name][figure] * factor)
            for sample in samples
            if sample["num_envs"] == n
        ]
        rows.append([str(n), *_pair_cells(pairs, more_is_better)])
    return rows


def _pair_cells(pairs: Sequence[tuple[float, float]], more_is_better: bool) -> list[Cell]:
    """Ours, theirs, and how many times better ours is."""
    ratios = pairs if more_is_better else [(theirs, ours) for ours, theirs in pairs]
    ours, theirs = zip(*pairs, strict=True)
    return [Spread.of(ours), Spread.of(theirs), Spread.of_ratios(ratios)]


def _helps(setup: Setup, peer: Peer) -> list[list[Cell]]:
    """How long both take to answer what they can do, in turn."""
    own = {"train --help": ["--help"], "train <task> --help": [setup.found.name, "--help"]}

    def measure(name: str) -> tuple[float, float]:
        ours = run_child([*TRAIN, *own[name]], setup.scratch).seconds
        return ours, run_child(peer.helps[name], setup.scratch).seconds

    taken = setup.rounds(list(peer.helps), measure)
    return [
        [f"`{name}`", *_pair_cells([pair for key, pair in taken if key == name], False)]
        for name in peer.helps
    ]
