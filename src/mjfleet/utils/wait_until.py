"""Waits for a condition. Runs in every process."""

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], object], seconds: float) -> bool:
    """Look again and again, for so many seconds, whether a condition holds; return whether it does.

    Unlike a wait inside a library, this lets signal handlers run.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.05)
    return True
