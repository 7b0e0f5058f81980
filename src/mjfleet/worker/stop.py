"""Signals that ask a run to stop: what is under way is finished first. Imports nothing heavy."""

import ctypes
import math
import signal
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from types import FrameType

from mjfleet.tell import tell

CONTROLLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SAME_SIGNAL_SECONDS = 0.5
"""A wrapper such as `uv run` may pass on a signal that the whole group has received already."""


class Stopped(BaseException):
    """A signal arrived where nothing needs to be finished first."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal_number)
        self.signal_number = signal_number


class StopRequest:
    """SIGINT, SIGTERM, SIGHUP: raised at once as Stopped, or, while `deferred`, remembered.

    A second signal is raised at once in any case.
    """

    def __init__(
        self, signals: Collection[signal.Signals] = CONTROLLED, say: Callable[[str], object] = tell
    ) -> None:
        self.received: int | None = None
        self._signals = signals
        self._say = say
        self._when = -math.inf
        self._defer: Callable[[], bool] = _never

    @contextmanager
    def installed(self) -> Iterator["StopRequest"]:
        """Handle the signals inside the block; after one, they are ignored while the run ends."""
        controlled = set(self._signals)
        if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
            controlled.discard(signal.SIGHUP)  # nohup: the run is to outlive its terminal.
        before = {number: signal.signal(number, self._handle) for number in controlled}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler if self.received is None else signal.SIG_IGN)

    @contextmanager
    def deferred(self, accept: Callable[[], bool] = lambda: True) -> Iterator[None]:
        """Let the block finish what it is doing; it asks `received`.

        Args:
            accept: called when the first signal arrives; False: there is nothing to finish.
        """
        self._defer = accept
        try:
            yield
        finally:
            self._defer = _never

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del frame
        now = time.monotonic()
        if now - self._when < SAME_SIGNAL_SECONDS:
            return
        self._when = now
        first = self.received is None
        self.received = number
        name = signal.Signals(number).name
        if first and self._defer():
            self._say(f"{name}: stopping after this iteration; once more stops at once")
            return
        self._say(f"{name}: stopping at once")
        raise Stopped(number)


def die_with_parent() -> None:
    """Have this process killed when the one that started it ends, however that happens.

    See prctl(2), PR_SET_PDEATHSIG.
    """
    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, int(signal.SIGKILL))


def _never() -> bool:
    return False
