"""Adds up an iteration's numbers over all ranks, for a row of metrics.csv. Runs in a worker.

A number is either a sum with its count, which has the name of its mean, or a value of one rank,
which is not added up.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from mjfleet.env.episode_statistics import Sums, means
from mjfleet.loggers.logger import Row
from mjfleet.rl.device.gpu_usage import usage_columns
from mjfleet.rl.ranks.collectives import Collectives


def gather(
    collectives: Collectives, sums: Sums, values: Mapping[str, float]
) -> tuple[Sums, list[dict[str, float]]]:
    """Return the sums over all ranks, and each rank's values. All ranks pass the same names."""
    flat = [number for pair in sums.values() for number in pair]
    gathered = collectives.all_gather([*flat, *values.values()])
    totals = iter([sum(column, 0.0) for column in zip(*gathered, strict=True)])
    whole = {name: (next(totals), next(totals)) for name in sums}
    return whole, [dict(zip(values, rank[len(flat) :], strict=True)) for rank in gathered]


def make_row(
    iteration: int,
    total_steps: int,
    steps_per_second: float,
    learning_rate: float,
    newest: Sums,
    sums: Sums,
    ranks: Sequence[Mapping[str, float]],
) -> Row:
    """Return a row of metrics.csv. Every row of a run has the same names.

    Args:
        iteration: number of iterations that are done.
        total_steps: environment steps since the run began.
        steps_per_second: in this iteration, of all ranks together.
        learning_rate: after the update.
        newest: of an EpisodeWindow.
        sums: of this iteration, of all ranks. Those that `newest` has are left out.
        ranks: the values of each rank.
    """
    episodes, steps = means(newest), dict(sums)
    nan_resets, _ = steps.pop("nan_resets")
    reward = means({"reward": steps.pop("reward")})["reward"]
    rank, wait, collective = slowest([values["collective_seconds"] for values in ranks])
    warned = sum(n for rank in ranks for name, n in rank.items() if name.startswith("warning/"))
    return {
        "iteration": iteration,
        "world_size": len(ranks),
        "total_steps": total_steps,
        "steps_per_second": round(steps_per_second / len(ranks)),
        "global_steps_per_second": round(steps_per_second),
        "mean_return": episodes.pop("return"),
        "mean_episode_length": episodes.pop("length"),
        "mean_reward": reward,
        **episodes,
        **means({name: pair for name, pair in steps.items() if name not in newest}),
        "learning_rate": learning_rate,
        "slowest_rank": rank,
        "wait_seconds": wait,
        "collective_seconds": collective,
        "sim_warnings": round(warned),
        "nan_resets": round(nan_resets),
        **_room(ranks),
        **usage_columns(ranks),
    }


def _room(ranks: Sequence[Mapping[str, float]]) -> Row:
    """Return the columns of MuJoCo-Warp's buffers: the largest of all ranks."""
    if "njmax" not in ranks[0]:
        return {}
    names = "nconmax", "constraints", "njmax"
    counts = {name: round(max(values[name] for values in ranks)) for name in names}
    return {"contacts": max(values["contacts"] for values in ranks), **counts}


def slowest(waited: Sequence[float]) -> tuple[int, float, float]:
    """Find the rank that kept the others waiting, by the seconds of each in collectives.

    Returns:
        The rank that waited least; the mean seconds that the others waited for it; and its own
        seconds in collectives, which include no wait.
    """
    least, others = min(waited), len(waited) - 1
    return waited.index(least), (sum(waited) - least) / others - least if others else 0.0, least


class EpisodeWindow:
    """Sums over the newest iterations in which, together, at least `episodes` episodes ended.

    Few long episodes end in one iteration, so means over a single one would be noisy.
    """

    def __init__(self, reward_names: Iterable[str], episodes: int = 100) -> None:
        self._names = ["return", "length", *(f"reward/{name}" for name in reward_names)]
        self._wanted = episodes
        self._newest: deque[Sums] = deque()

    def add(self, sums: Sums) -> Sums:
        """Add an iteration, and drop the oldest ones that are no longer needed; return the sums."""
        if sums["return"][1]:
            self._newest.append({name: sums[name] for name in self._names})
        count = sum(old["return"][1] for old in self._newest)
        while self._newest and count - self._newest[0]["return"][1] >= self._wanted:
            count -= self._newest.popleft()["return"][1]
        return {name: (sum(old[name][0] for old in self._newest), count) for name in self._names}

    def state(self) -> list[Sums]:
        """Return the window as plain data for `restore`."""
        return [*self._newest]

    def restore(self, state: Sequence[Sums]) -> None:
        """Restore an earlier window, unless its reward terms were different."""
        if all(list(sums) == self._names for sums in state):
            self._newest = deque(state)
