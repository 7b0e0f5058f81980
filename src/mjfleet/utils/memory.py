"""Answers a lack of memory by a message that says what to lower. Runs in workers."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from mjfleet.errors import UserError

OUT_OF_MEMORY = "(?i)out of memory|failed to allocate|allocate memory|alloc_failed"
REMEDY = "lower --env.num-envs, --agent.num-steps-per-env, --eval-envs or the sizes of the networks"


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether memory is missing, which warp and other libraries say in the text alone."""
    return isinstance(error, MemoryError) or bool(re.search(OUT_OF_MEMORY, str(error)))


@contextmanager
def enough_memory() -> Iterator[None]:
    """Raise UserError where what allocates the memory of a run, in the block, finds too little."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if is_out_of_memory(error):
            why = str(error).partition("\n")[0] or "no allocation of that size"
            raise UserError(f"there is too little memory ({why}): {REMEDY}.") from error
        raise


def check_fits(what: str, size: int) -> None:
    """Raise UserError for what takes more bytes than this host has.

    Linux promises memory that there is not, and kills the process that comes to use it.
    """
    total = psutil.virtual_memory().total
    if size > total:
        need, have = (f"{number / 2**30:,.0f} GiB" for number in (size, total))
        raise UserError(f"{what} need at least {need} of memory, this host has {have}: {REMEDY}.")
