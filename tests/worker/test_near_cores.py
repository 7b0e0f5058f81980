"""The cores near a worker's GPU, and its share of them."""

import pytest

from mjfleet.worker.near_cores import near_share

NODES = [0x00FF], [0xFF00]
"""Masks of two NUMA nodes with 8 cores each."""


def test_near_cores_are_the_allowed_ones_among_those_of_nvml() -> None:
    allowed = {0, 1, 2, 3, 64, 65, 200}
    assert near_share([[0b1010, 0b1]], allowed, 0, 2) == ({1, 3, 64}, 2)


@pytest.mark.parametrize("unknown", [[], [()], [(0,)]])
def test_without_known_cores_nothing_changes(unknown: list[tuple[int, ...]]) -> None:
    assert near_share(unknown, {0, 1}, 0, 2) == (set(), 2)


@pytest.mark.parametrize(
    ("nodes", "local_rank", "planned", "threads"),
    [
        pytest.param([0], 0, 16, 8, id="one GPU of one node: not the whole machine"),
        pytest.param([0, 1], 1, 8, 8, id="one GPU a node"),
        pytest.param([0, 0, 0, 1], 2, 4, 2, id="three GPUs of one node"),
        pytest.param([0, 0, 0, 1], 3, 4, 4, id="alone on its node: what was planned"),
        pytest.param([0] * 16, 5, 1, 1, id="more workers than cores"),
    ],
)
def test_workers_whose_gpus_are_near_the_same_cores_divide_them(
    nodes: list[int], local_rank: int, planned: int, threads: int
) -> None:
    masks = [NODES[node] for node in nodes]
    cores, found = near_share(masks, {*range(16)}, local_rank, planned)
    first = 8 * nodes[local_rank]
    assert cores == {*range(first, first + 8)}
    assert found == threads
