"""Sizes of MuJoCo-Warp's buffers, and what is told about those that were too small."""

from dataclasses import replace

import pytest

from mjfleet.sim.buffer_use import BufferUse, overflow_texts

USE = BufferUse(contacts=20.25, nconmax=16, constraints=300, njmax=64, world=7)


@pytest.mark.parametrize(
    ("needed", "room"), [(0, 16), (8, 16), (9, 24), (13, 32), (17, 48), (100, 256), (300, 768)]
)
def test_ample_room_is_for_twice_as_much_in_few_sizes(needed: int, room: int) -> None:
    assert replace(USE, constraints=needed).ample("njmax") == room
    assert replace(USE, contacts=needed - 0.5).ample("nconmax") == room


def test_room_is_doubled_until_it_suffices() -> None:
    assert USE.doubled("nconmax") == 32
    assert USE.doubled("njmax") == 512
    assert replace(USE, contacts=1.0).doubled("nconmax") == 32


def test_the_first_rank_that_overflowed_is_named_with_its_world_and_what_would_do() -> None:
    uses = replace(USE, world=1), USE, replace(USE, world=2)
    counts = {"NEFC": 0, "CCD": 0}, {"NEFC": 3, "CCD": 0}, {"NEFC": 1, "CCD": 64}
    texts = overflow_texts(uses, counts)
    assert texts.keys() == {"NEFC", "CCD"}
    for words in ("rank 1's world 7", "300 rows", "--env.njmax was 64, is now 512", "300 would"):
        assert words in texts["NEFC"]
    for words in ("rank 2's world 2", "20.25", "--env.nconmax was 16, is now 32", "21 would"):
        assert words in texts["CCD"]
    (alone,) = overflow_texts([USE], [{"NJMAX_NNZ": 1}]).values()
    assert "rank" not in alone
    assert overflow_texts([None], [{"BADQPOS": 1}]) == {}
    (full,) = overflow_texts([replace(USE, is_full=True)], [{"NEFC": 1}]).values()
    assert "--env.njmax stays 64, because the device has no memory for 512" in full
