"""What the simulation on MuJoCo-Warp computes itself, in all worlds at once. Runs in a worker."""

from typing import Any

import warp as wp


@wp.kernel(enable_backward=False)
def note_use(
    nacon: Any, ncollision: Any, nefc: Any, overflow: Any, contacts: Any, rows: Any, overflowed: Any
) -> None:
    """Note what a step needed. mujoco_warp counts also what it had to drop."""
    world = wp.tid()
    rows[world] = wp.max(rows[world], nefc[world])
    overflowed[world] = overflowed[world] | overflow[world]
    if world == 0:
        contacts[0] = wp.max(contacts[0], wp.max(nacon[0], ncollision[0]))


@wp.kernel(enable_backward=False)
def clear_columns(columns: Any, values: Any) -> None:
    """Set columns of an array to zero, for each world."""
    world = wp.tid()
    for i in range(columns.shape[0]):
        values[world, columns[i]] = 0.0
