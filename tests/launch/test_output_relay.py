"""The relay of rank 0's output, where it cannot continue."""

import pytest

from mjfleet.launch import output_relay
from mjfleet.launch.output_relay import OutputRelay
from mjfleet.utils.wait_until import wait_until

from ..conftest import PATIENCE


def has_failed(relay: OutputRelay) -> bool:
    try:
        relay.check()
    except AttributeError:
        return True
    return False


def test_what_ends_the_relay_is_raised_for_who_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(stream: int, writer: int) -> None:
        raise AttributeError("a mistake of ours")

    with OutputRelay(None) as relay:
        relay.check()
        monkeypatch.setattr(output_relay, "_pass_on_size", broken)
        assert wait_until(lambda: has_failed(relay), PATIENCE)
