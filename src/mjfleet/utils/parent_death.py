"""A process that ends with the one that started it."""

import ctypes
import os
import signal
import threading
import time

PARENT_VARIABLE = "MJFLEET_PARENT"  # With the process number of the parent, which sets it.
MISTAKE_VARIABLE = "MJFLEET_MISTAKE"  # With the parent's file for a mistake of the user's.
STOP_VARIABLE = "MJFLEET_STOP"
"""With the number of the parent, where the parent ends this process at once by AT_ONCE: a signal
that a scheduler or systemd sends to every process, and that the parent passes on, is one signal."""
AT_ONCE = signal.SIGRTMIN  # A signal that nobody else sends.
PARENT_POLL_SECONDS = 0.1
ORPHAN_STOP_SECONDS = 60.0  # For a process to save and stop after its parent has ended.


def die_with_parent(parent: int | None = None) -> None:
    """Have Linux kill this process when its parent ends, however the parent ends.

    The parent may have ended before this call: `parent` says which process it was, or
    PARENT_VARIABLE, which between fork and exec is still the parent's own. Linux sends the signal
    when the parent's thread that started this process ends. See prctl(2), PR_SET_PDEATHSIG.
    """
    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, int(signal.SIGKILL))
    if os.getppid() != int(parent or os.environ.get(PARENT_VARIABLE, os.getppid())):
        os._exit(1)


def stop_with_parent(parent: int) -> None:
    """Have this process receive SIGTERM once its parent has ended, however the parent ends.

    It then has ORPHAN_STOP_SECONDS to finish what it does, and is killed with its process group.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_POLL_SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(ORPHAN_STOP_SECONDS)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, name="parent", daemon=True).start()
