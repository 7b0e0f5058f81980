"""How much room the worlds need for contacts and constraints. Imports nothing heavy."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

LEAST_ROOM = 16
NEEDED_BY = {
    "NEFC": "njmax",
    "NJMAX_NNZ": "njmax",
    "BROADPHASE": "nconmax",
    "NARROWPHASE": "nconmax",
    "CCD": "nconmax",
}
"""The size that is too small, by kind of overflow, as mujoco_warp names both."""


@dataclass(frozen=True, kw_only=True)
class BufferUse:
    """The sizes of MuJoCo-Warp's buffers, and what the worlds needed of them in some steps."""

    contacts: float
    """The most contacts at a time per world, as a mean over the worlds, which share their room."""
    nconmax: int  # Room for contacts, per world.
    constraints: int  # The most constraint rows of a world.
    njmax: int  # Room for constraint rows in each world.
    world: int  # The number of the world with the most rows.
    is_full: bool = False  # Whether the device had no memory for larger ones.

    def needed(self, size: str) -> int:
        """Return the least `nconmax` or `njmax` that would have sufficed."""
        return math.ceil(self.contacts) if size == "nconmax" else self.constraints

    def doubled(self, size: str) -> int:
        """Return `nconmax` or `njmax`, doubled until it suffices."""
        room = 2 * getattr(self, size)
        while room < self.needed(size):
            room *= 2
        return room

    def ample(self, size: str) -> int:
        """Return room for twice as much as was needed: 16, 24, 32, 48, 64 and so on.

        Few sizes, as in mujoco_warp, because it compiles kernels for each `njmax`.
        """
        room = LEAST_ROOM
        while room < 2 * self.needed(size):
            room = room * 3 // 2 if room & (room - 1) == 0 else room * 4 // 3
        return room

    def overflow(self, kind: str, place: str) -> str:
        """Return what a kind of overflow did and what follows; `place` comes before the world."""
        size, world = NEEDED_BY[kind], f"{place}world {self.world}"
        room, needed, doubled = getattr(self, size), self.needed(size), self.doubled(size)
        if size == "nconmax":
            what = f"contacts: {self.contacts:.4g} per world were needed, most of them in {world}"
        else:
            what = f"constraints: {world} needed {self.constraints} rows"
        outcome = f"was {room}, is now {doubled}"
        if self.is_full:
            outcome = (
                f"stays {room}, because the device has no memory for {doubled}, which fewer "
                "--env.num-envs would leave"
            )
        enough = f", {needed} would have sufficed" if needed > room else ""
        return f"no room for all {what}; --env.{size} {outcome}{enough}"


def overflowed_sizes(kinds: Iterable[str]) -> set[str]:
    """Return those of `nconmax` and `njmax` that were too small, by kinds of warnings."""
    return {NEEDED_BY[kind] for kind in kinds if kind in NEEDED_BY}


def overflow_texts(
    uses: Sequence[BufferUse | None], warnings: Sequence[Mapping[str, int]]
) -> dict[str, str]:
    """Return a text about each kind of overflow, of the first rank where it happened."""
    texts: dict[str, str] = {}
    for rank, (use, counts) in enumerate(zip(uses, warnings, strict=True)):
        place = f"rank {rank}'s " if len(uses) > 1 else ""
        kinds = [kind for kind, worlds in counts.items() if worlds and kind in NEEDED_BY]
        texts = {kind: use.overflow(kind, place) for kind in kinds if use} | texts
    return texts
