"""Has one worker of each host compile MuJoCo-Warp's kernels. Runs in every worker."""

from collections.abc import Iterator
from contextlib import contextmanager

from mjfleet.rl.ranks.collectives import Collectives
from mjfleet.worker.heartbeat import Heartbeat
from mjfleet.worker.rank_environment import Rank


@contextmanager
def first_worker_compiles(
    rank: Rank, collectives: Collectives, heartbeat: Heartbeat
) -> Iterator[None]:
    """Run the block on the first worker of each host, then on the others.

    The others find the compiled kernels in warp's cache.
    """
    is_first = rank.local_rank == 0
    if not is_first:
        with heartbeat.excused():
            collectives.total([0])
    yield
    if is_first:
        collectives.total([0])
