"""A lack of memory is a message."""

import pytest

from mjfleet.errors import UserError
from mjfleet.utils.memory import enough_memory


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"),
        RuntimeError("Failed to allocate 123 bytes on device 'cuda:0'"),
    ],
)
def test_a_lack_of_memory_says_what_to_lower(error: Exception) -> None:
    with pytest.raises(UserError, match=r"lower --env\.num-envs"), enough_memory():
        raise error


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(RuntimeError, match="shapes"), enough_memory():
        raise RuntimeError("shapes cannot be multiplied")
