"""One worker of each host compiles warp's kernels while the others wait: they share its cache."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from torch.distributed import Store  # pyright: ignore[reportPrivateImportUsage]

from mjfleet.utils.wait_until import wait_until
from mjfleet.worker.rank_environment import Rank


@contextmanager
def local_rank_0_first(
    store: Store, rank: Rank, timeout: timedelta, beat: Callable[[], object]
) -> Iterator[None]:
    """Enter the block in the others of a host only when its local rank 0 has left it.

    They meet at the store of the process group, and call `beat` while they wait.

    Raises:
        TimeoutError: local rank 0 was not done in time.
    """
    done = f"mjfleet/first/{rank.node}"

    def is_done() -> bool:
        beat()
        return store.check([done])

    if rank.local_rank > 0 and not wait_until(is_done, timeout.total_seconds()):
        raise TimeoutError(f"local rank 0 was not done after {timeout}")
    yield
    if rank.local_rank == 0:
        store.set(done, "")
