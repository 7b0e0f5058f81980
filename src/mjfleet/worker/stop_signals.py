"""Signals by which a person or a scheduler asks a run to stop. Imports nothing heavy."""

import math
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from mjfleet.errors import Stopped
from mjfleet.utils.console import print_if_read
from mjfleet.utils.parent_death import AT_ONCE, STOP_VARIABLE

CONTROLLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""The signals that are handled. Schedulers often announce the end of a job by SIGUSR1."""
SAME_SIGNAL_SECONDS = 0.2
"""A signal within this time is the same one: `uv run`, for instance, passes on what the terminal
has sent to the whole group."""


class StopRequest:
    """Handles signals: the first raises Stopped or, inside `deferred`, only sets `received`.

    A second signal raises Stopped in any case. SIGUSR1 and SIGUSR2 count as SIGTERM. With
    STOP_VARIABLE, only the parent's AT_ONCE is a second signal: it passes on others, which this
    process may have received as well.

    Args:
        say: prints a line about a signal, and does not hold up what the signal is for.
        ends_from_outside: whether another process ends this one, if it has to end at once: signals
            then only set `received`, however many come.
    """

    def __init__(
        self, say: Callable[[str], object] = print_if_read, ends_from_outside: bool = False
    ) -> None:
        self.received: int | None = None
        self.say, self._ends_from_outside = say, ends_from_outside
        self._is_deferred = self._is_announced = self._is_raised = False
        self._last = 0, -math.inf  # The newest signal, and when it came.
        self._counts = os.environ.get(STOP_VARIABLE) != str(os.getppid())

    @contextmanager
    def installed(self) -> Iterator["StopRequest"]:
        """Handle signals in the block; then restore the handlers, or ignore signals if one came.

        Under nohup, SIGHUP stays ignored; in a worker, all that its host agent ignores.
        """
        kept = CONTROLLED if self._ends_from_outside else (signal.SIGHUP,)
        kept = [number for number in kept if signal.getsignal(number) == signal.SIG_IGN]
        handled = [number for number in CONTROLLED if number not in kept]
        handled += [] if self._counts else [AT_ONCE]
        before = {number: signal.signal(number, self._handle) for number in handled}
        try:
            yield self
        except Exception:
            # A library that a signal has interrupted, as in an import, may fail in any way.
            self.check()
            raise
        finally:
            for number, handler in before.items():
                signal.signal(number, handler if self.received is None else signal.SIG_IGN)

    @contextmanager
    def deferred(self, is_announced: bool = True) -> Iterator[None]:
        """Let the block, which asks `check`, finish this iteration after the first signal."""
        before = self._is_deferred, self._is_announced
        self._is_deferred, self._is_announced = True, is_announced
        try:
            yield
        finally:
            self._is_deferred, self._is_announced = before

    def announce(self, number: int) -> None:
        """Print what the first signal does."""
        name = signal.Signals(number).name
        self.say(f"{name}: stopping after this iteration; once more stops at once")

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
        if number == AT_ONCE:
            number = self.received or signal.SIGTERM
        elif self.received is not None and not self._counts:
            return
        is_first, name = self.received is None, signal.Signals(number).name
        is_user = number in (signal.SIGUSR1, signal.SIGUSR2)
        self.received = signal.SIGTERM if is_user else number
        if self._ends_from_outside or (is_first and self._is_deferred):
            if is_first and self._is_announced:
                self.announce(number)
            elif is_first and is_user:
                self.say(f"{name} counts as SIGTERM")
            return
        self.say(f"{name}: stopping at once")
        self._is_raised = True
        raise Stopped(self.received)
