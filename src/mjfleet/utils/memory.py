"""Answers a lack of memory by a message that says what to lower. Runs in workers."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from mjfleet.errors import UserError

OUT_OF_MEMORY = "(?i)out of memory|failed to allocate|allocate memory|alloc_failed"
REMEDY = (
    "lower --env.num-envs, --agent.num-steps-per-env, --eval-envs, the sizes of the networks or, "
    "with sac, --agent.algorithm.replay-size"
)


@contextmanager
def enough_memory() -> Iterator[None]:
    """Raise UserError where what allocates the memory of a run, in the block, finds too little."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        # warp and other libraries say so in the text alone.
        if isinstance(error, MemoryError) or re.search(OUT_OF_MEMORY, str(error)):
            why = str(error).partition("\n")[0] or "no allocation of that size"
            raise UserError(f"there is too little memory ({why}): {REMEDY}.") from error
        raise
