"""The relay of rank 0's output, where it cannot go on."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from mjfleet.launch.output_relay import OutputRelay
from mjfleet.launch.run_supervisor import RunSupervisor
from mjfleet.utils.wait_until import wait_until
from mjfleet.worker.stop_signals import StopRequest


def has_failed(relay: OutputRelay) -> bool:
    try:
        relay.check()
    except AttributeError:
        return True
    return False


def test_what_ends_the_relay_ends_the_run() -> None:
    plan: Any = SimpleNamespace(workers=[SimpleNamespace(log_file=None)])
    with OutputRelay(None) as relay:
        relay.check()
        relay.say(cast(str, None))  # A mistake of ours.
        assert wait_until(lambda: has_failed(relay), 30.0)
        with pytest.raises(AttributeError):
            RunSupervisor(plan, cast(Any, []), relay).follow(StopRequest())
