"""Says what warnings of the simulation mean, and what to do about them. Runs in a worker."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace

from mjfleet.sim import Simulation
from mjfleet.sim.buffer_use import BufferUse, overflow_texts

WARNING_REMEDIES = {
    "HFIELD": "contacts with a height field were dropped, make its grid coarser",
    **dict.fromkeys(
        ("BADQPOS", "BADQVEL", "BADQACC"),
        "a number there was huge or not finite, and MuJoCo reset the world: the task wrote it, "
        "or the simulation went unstable and needs a smaller timestep",
    ),
    "NAN": "a state, reward or observation there was not finite, and the world was reset; "
    "--on-nan stop would end the run and leave a dump of it",
}
"""What to do about a kind of warning."""
OTHER_REMEDY = "see mjtWarning in MuJoCo's documentation, OverflowType in MuJoCo-Warp's"
WARNING_PREFIX = "warning/"


def warning_values(
    kinds: Sequence[str], found: Mapping[str, int], use: BufferUse | None
) -> Mapping[str, float]:
    """Return a rank's values: worlds with each kind of warning, and the use of buffers, if any."""
    counts = {f"{WARNING_PREFIX}{kind}": found.get(kind, 0) for kind in kinds}
    return counts | (asdict(use) if use else {})


class SimulationWarnings:
    """Describes each overflow of a buffer, and each other kind of warning once."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def describe(
        self, ranks: Sequence[Mapping[str, float]], use: BufferUse | None, nan_resets: int
    ) -> list[str]:
        """Return the texts that are due.

        Args:
            ranks: the values of each rank, among them its `warning_values`.
            use: this rank's use of buffers; None: the engine has none.
            nan_resets: of all ranks.
        """
        counts = [
            {
                name.removeprefix(WARNING_PREFIX): int(count)
                for name, count in values.items()
                if name.startswith(WARNING_PREFIX)
            }
            for values in ranks
        ]
        like = asdict(use) if use else {}
        typed = [{k: type(v)(values[k]) for k, v in like.items()} for values in ranks]
        uses = [replace(use, **fields) if use else None for fields in typed]
        overflows = overflow_texts(uses, counts)
        found = {k: f"in {n} worlds" for k, n in sum(map(Counter, counts), Counter()).items()}
        if nan_resets:
            found["NAN"] = f"{nan_resets} times"
        due = [kind for kind in found if kind in overflows or kind not in self._known]
        self._known |= found.keys()
        remedies = WARNING_REMEDIES | overflows
        return [f"{kind} {found[kind]}; {remedies.get(kind, OTHER_REMEDY)}" for kind in due]


def describe_now(sim: Simulation) -> list[str]:
    """Return what a simulation has warned of since its warnings were read. Waits for the device."""
    found, use = sim.warnings(), sim.buffer_use
    return SimulationWarnings().describe([warning_values(sim.warning_kinds, found, use)], use, 0)
