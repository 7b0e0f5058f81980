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
