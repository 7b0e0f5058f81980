"""Which GPU MuJoCo draws on, where UUIDs tell CUDA which ones are visible."""

import pytest

from mjfleet.utils.hardware_names import rendering_numbers, rendering_variables

UUIDS = ["GPU-a0", "GPU-a1", "GPU-b7"]


@pytest.mark.parametrize(
    ("visible", "numbers"),
    [
        ("GPU-b7", "2"),
        ("GPU-b, GPU-a1", "2,1"),  # CUDA takes the first part of a UUID, too.
        ("GPU-a", None),
        ("GPU-c", None),
        ("GPU-b7,MIG-a0", None),
    ],
)
def test_uuids_of_visible_gpus_become_numbers(visible: str, numbers: str | None) -> None:
    found = rendering_numbers(visible, UUIDS)
    assert found.get("CUDA_VISIBLE_DEVICES") == numbers
    assert bool(found) == (numbers is not None)


@pytest.mark.parametrize("visible", [None, "", "0,1", "MIG-a0", "GPU-unknown"])
def test_what_mujoco_can_read_or_nobody_knows_stays(visible: str | None) -> None:
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert rendering_variables(environ) == {}
