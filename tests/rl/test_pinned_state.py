"""What a CUDA graph uses keeps its place; what cannot is named."""

import itertools
import random
from collections import deque
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from mjfleet.rl.pinned_state import CaptureError, PinnedState


def test_attributes_keep_their_tensors_and_take_the_new_values() -> None:
    a, b = torch.tensor([1.0]), torch.tensor([2.0])
    groups, pair = TensorDict({"x": torch.zeros(1)}), [torch.zeros(1), torch.zeros(1)]
    inner = groups["x"]
    owner = SimpleNamespace(a=a, b=b, groups=groups, pair=pair, untouched="text")
    pinned = PinnedState({"env": owner})
    owner.a, owner.b = owner.b, owner.a  # Each is now what the other was.
    owner.groups = TensorDict({"x": torch.full((1,), 3.0)})
    owner.pair = [pair[0], torch.full((1,), 4.0)]
    pinned.settle()
    assert owner.a is a
    assert owner.b is b
    assert (a.item(), b.item()) == (2.0, 1.0)
    assert owner.groups is groups
    assert (groups["x"].data_ptr(), inner.item()) == (inner.data_ptr(), 3.0)
    assert owner.pair is pair
    assert [t.item() for t in pair] == [0.0, 4.0]


def test_helper_objects_and_what_they_hold_are_pinned() -> None:
    class Slotted:
        __slots__ = ("buffer",)

    slotted, first, second = Slotted(), torch.zeros(2), torch.ones(2)
    slotted.buffer = first
    owner = SimpleNamespace(helper=SimpleNamespace(slotted=slotted, queue=deque([second])))
    owner.helper.owner = owner  # A circle.
    pinned = PinnedState({"env": owner})
    slotted.buffer = torch.full((2,), 3.0)
    owner.helper.queue[0] = torch.full((2,), 4.0)
    pinned.settle()
    assert slotted.buffer is first
    assert owner.helper.queue[0] is second
    assert (first.tolist(), second.tolist()) == ([3, 3], [4, 4])


def test_buffers_that_a_network_replaces_are_pinned() -> None:
    network = torch.nn.BatchNorm1d(2)
    before = network.running_mean
    pinned = PinnedState({"policy": network})
    network.running_mean = torch.ones(2)
    pinned.settle()
    assert network.running_mean is before
    assert network.running_mean.tolist() == [1, 1]


def test_an_iterator_is_refused_since_nothing_can_put_it_back() -> None:
    pinned = PinnedState({"env": SimpleNamespace(numbers=itertools.count())})
    with pytest.raises(CaptureError, match=r"^env.numbers is an iterator"):
        pinned.settle()


def test_numbers_of_networks_are_constants() -> None:
    network = torch.nn.Linear(1, 1)
    vars(network)["calls"] = 0
    pinned = PinnedState({"policy": network})
    vars(network)["calls"] += 1
    with pytest.raises(CaptureError, match=r"^policy.calls has changed"):
        pinned.settle()
    pinned.put_back()
    assert vars(network)["calls"] == 0
    pinned.settle()


def increment(owner: Any) -> None:
    owner.helper.count += 1


CHANGES: dict[str, Any] = {
    "env.helper.count": increment,
    "env.tensor": lambda owner: setattr(owner, "tensor", torch.zeros(2)),
    "env.groups.x": lambda owner: setattr(owner, "groups", {"x": None}),
    "env.array": lambda owner: owner.array.__setitem__(0, 1.0),
    "env.random": lambda owner: owner.random.random(),
    "env.numpy": lambda owner: owner.numpy.random(),
    "env.items.1": lambda owner: owner.items.append(1),
    "env.seen": lambda owner: owner.seen.add(1),
    "env.new": lambda owner: setattr(owner, "new", torch.zeros(1)),
}


@pytest.mark.parametrize("path", CHANGES)
def test_what_cannot_be_pinned_is_named_and_can_be_put_back(path: str) -> None:
    owner = SimpleNamespace(
        helper=SimpleNamespace(count=0),
        tensor=torch.zeros(1),
        groups={"x": torch.zeros(1)},
        array=np.zeros(1),
        random=random.Random(0),
        numpy=np.random.default_rng(0),
        items=[0],
        seen={0},
    )
    pinned = PinnedState({"env": owner})
    CHANGES[path](owner)
    with pytest.raises(CaptureError, match=f"^{path} "):
        pinned.settle()
    pinned.put_back()
    pinned.settle()
