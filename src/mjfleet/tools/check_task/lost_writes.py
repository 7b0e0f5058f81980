"""Finds writes into copies, such as `self.sim.qpos[:, indices][:] = pose`, which change nothing."""

from collections.abc import Iterator

import torch

from mjfleet.tools.check_task.finding import Finding, Place

COPYING = {"__getitem__", "index_select", "to", "float", "double", "reshape", "flatten", "gather"}
"""Functions of torch that return a view of a tensor in some cases, and a copy in others."""


class LostWrites:
    """Follows tensors that a task copies from others and writes to, until they are used."""

    def __init__(self) -> None:
        # By memory, which stays theirs while they are held; the place of the write, if any.
        self._copies: dict[int, tuple[torch.Tensor, str, Place | None]] = {}
        self._used: set[Place] = set()

    def note_read(self, name: str, source: torch.Tensor, result: torch.Tensor) -> None:
        """Remember a copy of a part of a tensor."""
        if name in COPYING and _memory(result) != _memory(source):
            self._copies[_memory(result)] = result, name, None

    def note_write(self, target: torch.Tensor, place: Place) -> None:
        """Remember a write, if it is into such a copy."""
        if copy := self._copies.get(_memory(target)):
            self._copies[_memory(target)] = copy[0], copy[1], place

    def note_use(self, tensor: torch.Tensor) -> None:
        """Forget a copy that has been written to and is used afterwards."""
        copy = self._copies.get(_memory(tensor))
        if copy and copy[2]:
            self._used.add(copy[2])
            del self._copies[_memory(tensor)]

    def end_step(self) -> None:
        """Forget copies that nothing was written to."""
        self._copies = {key: copy for key, copy in self._copies.items() if copy[2]}

    def findings(self) -> Iterator[Finding]:
        """Yield a finding for each line whose writes were never read."""
        lost = {place: name for _, name, place in self._copies.values() if place}
        for place in lost.keys() - self._used:
            how = (
                "indices"
                if lost[place] in ("__getitem__", "index_select", "gather")
                else (f"{lost[place]}()")
            )
            yield Finding(
                f"writes into a copy, since {how} returned one, so that nothing changes; write "
                "into the tensor itself, with one index, as in self.sim.qpos[:, ids] = pose",
                place,
            )


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
