"""Signals that ask a run to stop. Used by every process that a person or a scheduler may signal.

Imports nothing heavy.
"""

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from types import FrameType

from mjfleet.errors import Stopped, UserError
from mjfleet.utils.console import print_line

CONTROLLED = (
    signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT,
)  # fmt: skip
"""The signals that are handled. Schedulers often announce the end of a job by SIGUSR1."""
FORCE_SECONDS = 1.5  # How long a second signal waits for the main thread, perhaps in a library.
SAME_SIGNAL_SECONDS = 0.2
"""A signal within this time is the same one: `uv run`, for instance, passes on what the terminal
has sent to the whole group."""


class StopRequest:
    """Handles signals: the first raises Stopped or, inside `deferred`, only sets `received`.

    A second signal raises Stopped in any case, SIGQUIT (Ctrl-\\) at once. SIGUSR1 and SIGUSR2 count
    as SIGTERM. `say` prints a line about a signal. If a second signal finds the main thread inside
    a library that does not return, `force` is called with its number, and the process ends.
    """

    def __init__(
        self,
        signals: Collection[signal.Signals] = CONTROLLED,
        say: Callable[[str], object] = print_line,
        force: Callable[[int], object] | None = None,
    ) -> None:
        self.received: int | None = None
        self._signals, self._say, self._force = signals, say, force
        self._is_deferred = self._is_raised = False
        self._is_announced = True
        self._last = 0, -math.inf  # The newest signal, and when it came.

    @contextmanager
    def installed(self) -> Iterator["StopRequest"]:
        """Handle signals in the block; then restore the handlers, or ignore signals if one came."""
        controlled = set(self._signals)
        if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
            controlled.discard(signal.SIGHUP)  # nohup: the run is to outlive its terminal.
        before = {number: signal.signal(number, self._handle) for number in controlled}
        try:
            with self._watching_for_second():
                yield self
        except (ImportError, UserError):
            self.check()  # An import that a signal has interrupted can fail when it is repeated.
            raise
        finally:
            for number, handler in before.items():
                signal.signal(number, handler if self.received is None else signal.SIG_IGN)

    @contextmanager
    def deferred(self, is_announced: bool = True) -> Iterator[None]:
        """Let the block, which asks `check`, finish what it is doing after the first signal.

        With `is_announced`, a line says that this iteration is still finished.
        """
        before = self._is_deferred, self._is_announced
        self._is_deferred, self._is_announced = True, is_announced
        try:
            yield
        finally:
            self._is_deferred, self._is_announced = before

    def check(self) -> int | None:
        """Return the signal that was received and deferred, if any.

        Raises:
            Stopped: a signal was raised before, and a library has caught the exception.
        """
        if self._is_raised and self.received is not None:
            raise Stopped(self.received)
        return self.received

    def _handle(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if number == self._last[0] and now - self._last[1] < SAME_SIGNAL_SECONDS:
            return
        self._last = number, now
        is_first, self.received = self.received is None, _counts_as(number)
        name = signal.Signals(number).name
        if is_first and self._is_deferred and number != signal.SIGQUIT:
            if self._is_announced:
                self._say(f"{name}: stopping after this iteration; once more stops at once")
            return
        self._say(f"{name}: stopping at once")
        self._is_raised = True
        raise Stopped(self.received)

    @contextmanager
    def _watching_for_second(self) -> Iterator[None]:
        """After a second signal, end the process if the main thread does not.

        A thread watches for it: Python's handlers run in the main thread alone.
        """
        if (force := self._force) is None:
            yield
            return
        over = threading.Event()
        reader, writer = os.pipe()
        os.set_blocking(writer, False)

        def watch() -> None:
            count, last = 0, -math.inf
            while not over.is_set():
                for number in set(os.read(reader, 64)) & set(self._signals):
                    if time.monotonic() - last >= SAME_SIGNAL_SECONDS:
                        count, last = count + 1, time.monotonic()
                    is_last = count > 1 or number == signal.SIGQUIT
                    if is_last and not over.wait(FORCE_SECONDS):
                        force(_counts_as(number))
                        os._exit(128 + _counts_as(number))

        before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        thread = threading.Thread(target=watch, name="signals", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            signal.set_wakeup_fd(before)
            os.write(writer, b"\0")  # Wakes the thread.
            thread.join()
            os.close(reader)
            os.close(writer)


def _counts_as(number: int) -> int:
    return signal.SIGTERM if number in (signal.SIGUSR1, signal.SIGUSR2) else number
