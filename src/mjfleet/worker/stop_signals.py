"""Signals that ask a run to stop: what is under way is finished first. Imports nothing heavy."""

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from types import FrameType

from mjfleet.errors import Stopped
from mjfleet.utils.console import print_line

CONTROLLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""A scheduler announces the end of a job by the signal that its user chose, often SIGUSR1."""
FORCE_SECONDS = 1.5
"""How long a second signal waits for the main thread, which may be inside a library."""
SAME_SIGNAL_SECONDS = 0.5
"""A wrapper such as `uv run` may pass on a signal that the whole group has received already."""


class StopRequest:
    """Signals of CONTROLLED: raised at once as Stopped, or, while `deferred`, remembered.

    A second signal is raised at once in any case. SIGUSR1 and SIGUSR2 count as SIGTERM.

    Args:
        signals: those to handle.
        say: prints a line about a signal.
        force: called with a signal's number before the process is ended by force, when a second
            one finds the main thread inside a library that does not return; None: it never is.
    """

    def __init__(
        self,
        signals: Collection[signal.Signals] = CONTROLLED,
        say: Callable[[str], object] = print_line,
        force: Callable[[int], object] | None = None,
    ) -> None:
        self.received: int | None = None
        self._signals = signals
        self._say = say
        self._force = force
        self._over = threading.Event()
        self._is_raised = False
        self._when = -math.inf
        self._defer: Callable[[], bool] = _never

    @contextmanager
    def installed(self) -> Iterator["StopRequest"]:
        """Handle the signals inside the block; after one, they are ignored while the run ends."""
        controlled = set(self._signals)
        if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
            controlled.discard(signal.SIGHUP)  # nohup: the run is to outlive its terminal.
        before = {number: signal.signal(number, self._handle) for number in controlled}
        # Blocked while a run that has failed starts itself anew.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, controlled)
        try:
            with self._forcing():
                yield self
        except ImportError:
            self.check()  # A library that is imported anew after a signal may refuse.
            raise
        finally:
            for number, handler in before.items():
                signal.signal(number, handler if self.received is None else signal.SIG_IGN)

    @contextmanager
    def _forcing(self) -> Iterator[None]:
        """Look at signals in a thread too: Python's handlers wait for the main thread."""
        if self._force is None:
            yield
            return
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        thread = threading.Thread(target=self._look, args=(reader,), name="signals", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            signal.set_wakeup_fd(before)
            os.write(writer, bytes(1))  # A fork of this process may have the pipe open as well.
            thread.join()
            os.close(writer)
            os.close(reader)

    def _look(self, reader: int) -> None:
        """After a second signal, end the process if the main thread does not."""
        count, when = 0, -math.inf
        while (numbers := os.read(reader, 64)) and not self._over.is_set():
            for number in set(numbers) & {int(one) for one in self._signals}:
                now = time.monotonic()
                if now - when < SAME_SIGNAL_SECONDS:
                    continue
                count, when = count + 1, now
                if count > 1 and not self._over.wait(FORCE_SECONDS):
                    assert self._force is not None
                    self._force(_counts_as(number))
                    os._exit(128 + _counts_as(number))

    @contextmanager
    def deferred(
        self,
        accept: Callable[[], bool] = lambda: True,
        say: Callable[[str], object] | None = None,
    ) -> Iterator[None]:
        """Let the block finish what it is doing; it asks `received`.

        Args:
            accept: called when the first signal arrives; False: there is nothing to finish.
            say: prints lines about signals meanwhile; None: what does so otherwise.
        """
        before = self._say
        self._defer, self._say = accept, say or before
        try:
            yield
        finally:
            self._defer, self._say = _never, before

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del frame
        now = time.monotonic()
        if now - self._when < SAME_SIGNAL_SECONDS:
            return
        self._when = now
        first = self.received is None
        self.received = _counts_as(number)
        name = signal.Signals(number).name
        if first and self._defer():
            self._say(f"{name}: stopping after this iteration; once more stops at once")
            return
        self._say(f"{name}: stopping at once")
        self._is_raised = True
        raise Stopped(self.received)

    def check(self) -> int | None:
        """The signal that was received and is to be obeyed in good time.

        Raises:
            Stopped: once more, where a library has caught it, as some do while they are imported.
        """
        if self._is_raised and self.received is not None:
            raise Stopped(self.received)
        return self.received


def _counts_as(number: int) -> int:
    return signal.SIGTERM if number in (signal.SIGUSR1, signal.SIGUSR2) else number


def _never() -> bool:
    return False
