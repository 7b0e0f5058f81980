"""What cannot fit in memory is refused before it is tried."""

import psutil
import pytest

from mjfleet.errors import UserError
from mjfleet.sim.device_memory import check_fits


def test_what_is_larger_than_this_host_is_refused() -> None:
    check_fits("the worlds", psutil.virtual_memory().total // 2, 8)
    with pytest.raises(
        UserError, match=r"the worlds need at least .* GiB; of 8 environments 4 would fit"
    ):
        check_fits("the worlds", 2 * psutil.virtual_memory().total, 8)


def test_workers_of_one_host_share_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    size = psutil.virtual_memory().total * 3 // 4
    check_fits("the worlds", size, 8)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(UserError, match="of 8 environments 5 would fit"):
        check_fits("the worlds", size, 8)
