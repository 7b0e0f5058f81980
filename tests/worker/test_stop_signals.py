"""Signals that ask to stop: the first, the second, and those that come while libraries load."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from mjfleet.errors import Stopped
from mjfleet.utils.parent_death import AT_ONCE, STOP_VARIABLE
from mjfleet.worker.stop_signals import CONTROLLED, SAME_SIGNAL_SECONDS, StopRequest

IMPORTING = """
import os, signal, sys
from mjfleet.errors import Stopped
from mjfleet.worker.stop_signals import StopRequest
try:
    with StopRequest(say=print).installed():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except BaseException:
            pass  # As a library does that can do without the one that it imports.
        raise RecursionError("as of a module that is imported again and again")
except Stopped as stopped:
    sys.exit(128 + stopped.signal_number)
"""


@pytest.fixture(autouse=True)
def same_handlers_afterwards() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (*CONTROLLED, AT_ONCE)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def send(number: signal.Signals) -> None:
    time.sleep(SAME_SIGNAL_SECONDS)  # Sooner, it would be the same one.
    os.kill(os.getpid(), number)


def test_a_signal_is_raised_and_later_ones_are_ignored_once_the_block_is_left() -> None:
    lines: list[str] = []
    with pytest.raises(Stopped) as stopped, StopRequest(say=lines.append).installed():
        send(signal.SIGUSR1)
    assert stopped.value.signal_number == signal.SIGTERM
    assert "SIGUSR1" in lines[0]
    send(signal.SIGTERM)


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM])
def test_one_that_the_workers_are_not_sent_is_named_where_they_announce(
    number: signal.Signals,
) -> None:
    lines: list[str] = []
    with StopRequest(say=lines.append).installed() as stop, stop.deferred(is_announced=False):
        send(number)
        assert stop.check() == signal.SIGTERM
    is_passed_on = number == signal.SIGTERM
    assert lines == ([] if is_passed_on else [f"{number.name} counts as SIGTERM"])


def test_without_a_signal_everything_is_as_before() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with StopRequest().installed() as stop:
        assert signal.getsignal(signal.SIGTERM) != before
        assert stop.check() is None
    assert signal.getsignal(signal.SIGTERM) == before
    with pytest.raises(ImportError), StopRequest().installed():
        raise ImportError


def test_what_defers_a_signal_finishes_and_a_second_one_is_raised() -> None:
    lines: list[str] = []
    with StopRequest(say=lines.append).installed() as stop:
        with stop.deferred():
            send(signal.SIGINT)
            assert stop.check() == signal.SIGINT
            with pytest.raises(Stopped):
                send(signal.SIGINT)
        with pytest.raises(Stopped):
            stop.check()
    assert len(lines) == 2


def test_signals_of_scheduler_and_launcher_finish_a_workers_iteration_once() -> None:
    lines: list[str] = []
    stop = StopRequest(lines.append, ends_from_outside=True)
    with stop.installed():
        with stop.deferred():
            send(signal.SIGTERM)
            send(signal.SIGTERM)
        assert stop.check() == signal.SIGTERM
    assert len(lines) == 1


def test_where_the_parent_passes_signals_on_it_alone_says_what_ends_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(STOP_VARIABLE, str(os.getppid()))
    said: list[str] = []
    with StopRequest(said.append).installed() as stop, stop.deferred():
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT):
            send(number)
        assert stop.check() == signal.SIGTERM
        with pytest.raises(Stopped) as stopped:
            send(AT_ONCE)
    assert stopped.value.signal_number == signal.SIGTERM
    assert [line.partition(";")[0] for line in said] == [
        "SIGTERM: stopping after this iteration", "SIGTERM: stopping at once",
    ]  # fmt: skip


def test_another_signal_is_another_one_however_soon() -> None:
    lines: list[str] = []
    with StopRequest(say=lines.append).installed() as stop, stop.deferred(is_announced=False):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)  # As `uv run` passes it on.
        assert lines == []
        with pytest.raises(Stopped):
            os.kill(os.getpid(), signal.SIGTERM)


def test_nohup_is_respected_and_what_a_worker_is_to_ignore() -> None:
    for number in (signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    with StopRequest().installed():
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        # A batch script may ignore what is meant for the run.
        assert signal.getsignal(signal.SIGUSR1) != signal.SIG_IGN
    with StopRequest(ends_from_outside=True).installed():
        assert signal.getsignal(signal.SIGUSR1) == signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) != signal.SIG_IGN


def test_an_import_that_fails_because_of_a_signal_is_a_stop() -> None:
    command = [sys.executable, "-c", IMPORTING]
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (143, "")
