"""One worker of each host compiles warp's kernels while the others wait: they share its cache."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from torch.distributed import Store  # pyright: ignore[reportPrivateImportUsage]

from mjfleet.worker.rank_environment import Rank

LOOK_SECONDS = 0.1


@contextmanager
def local_rank_0_first(
    store: Store, rank: Rank, timeout: timedelta, beat: Callable[[], object]
) -> Iterator[None]:
    """Enter the block in the others of a host only when its local rank 0 has left it.

    Args:
        store: the store of the process group.
        rank: this worker's place.
        timeout: how long the others wait.
        beat: called while they wait.

    Raises:
        TimeoutError: local rank 0 was not done in time.
    """
    done = f"mjfleet/first/{rank.node}"
    deadline = time.monotonic() + timeout.total_seconds()
    while rank.local_rank > 0 and not store.check([done]):
        if time.monotonic() > deadline:
            raise TimeoutError(f"local rank 0 was not done after {timeout}")
        beat()
        time.sleep(LOOK_SECONDS)
    yield
    if rank.local_rank == 0:
        store.set(done, "")
