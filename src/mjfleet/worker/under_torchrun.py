"""How workers that torchrun, srun or mpirun has started meet, and what rank 0 tells the others."""

import json
import os
from collections.abc import Callable
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING
from uuid import uuid4

from mjfleet.errors import RepeatedError, UserError, WorkerError
from mjfleet.utils.console import in_a_line
from mjfleet.utils.wait_until import wait_until
from mjfleet.worker.rank_environment import Rank

if TYPE_CHECKING:
    from torch.distributed import PrefixStore, Store  # pyright: ignore[reportPrivateImportUsage]

READ_SECONDS = 10.0  # For the others to read what rank 0 has decided, or why it ends.
FIRST = "mjfleet/first"  # The store's key for the name of rank 0.


@cache
def meeting_store(rank: Rank) -> "Store":
    """Return the store at which workers meet that we have not started: rank 0's, or torchrun's.

    WorkerError if rank 0 cannot listen there, or another rank cannot connect.
    """
    from torch.distributed import DistError, TCPStore  # pyright: ignore[reportPrivateImportUsage]

    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    is_agents = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    try:
        return TCPStore(address, port, is_master=rank.rank == 0 and not is_agents)
    except DistError as error:
        raise WorkerError(
            f"rank {rank.rank} cannot meet the others at {address} (MASTER_ADDR), port {port} "
            f"(MASTER_PORT): {in_a_line(error)}"
        ) from None


def meet(
    store: "Store", rank: Rank, timeout: timedelta, text: str = ""
) -> tuple["PrefixStore", str]:
    """Meet the workers that were started together with this one.

    The store still holds what earlier workers have left. So each worker makes up a new name, the
    others write theirs under rank 0's, and rank 0 answers each under its name.

    Returns:
        A part of the store that is theirs alone, and the text of rank 0.

    Raises:
        TimeoutError: a worker has not come, or rank 0 has not answered.
    """
    from torch.distributed import PrefixStore  # pyright: ignore[reportPrivateImportUsage]

    own = uuid4().hex
    if rank.rank == 0:
        store.set(FIRST, own)
        others = []
        for other in range(1, rank.world_size):
            place = f"{own}/{other}"
            _wait(lambda place=place: store.check([place]), timeout, f"rank {other}")
            others.append(store.get(place).decode())
        for name in others:
            store.set(name, json.dumps([own, text]))
        return PrefixStore(own, store), text

    def is_answered() -> bool:
        # The name that is there may still be that of an earlier rank 0.
        if store.check([FIRST]):
            store.set(f"{store.get(FIRST).decode()}/{rank.rank}", own)
        return store.check([own])

    _wait(is_answered, timeout, "rank 0")
    first, text = json.loads(store.get(own))
    return PrefixStore(first, store), text


def decided_by_rank_0(
    store: "Store", rank: Rank, decide: Callable[[], str], timeout: timedelta
) -> str:
    """Have rank 0 call `decide`, and return its text on all ranks.

    Raises:
        UserError: rank 0 has found a mistake of the user's; a RepeatedError on the others.
        WorkerError: a worker has not come, or rank 0 has failed.
        SystemExit: rank 0 has ended.
    """
    problem: BaseException | None = None
    kind = text = ""
    if rank.rank == 0:
        try:
            text = decide()
        except BaseException as error:
            problem, kind, text = error, type(error).__name__, str(error)
    try:
        part, decision = meet(store, rank, timeout, json.dumps([kind, text]))
        part.set(f"read{rank.rank}", "")
        if rank.rank == 0:  # The store may end with this process, which may find a mistake next.
            names = [f"read{other}" for other in range(rank.world_size)]
            wait_until(lambda: part.check(names), READ_SECONDS)
    except TimeoutError as error:
        raise problem or WorkerError(f"rank {rank.rank}: {error}") from None
    if problem:
        raise problem
    kind, text = json.loads(decision)
    if kind == UserError.__name__:
        raise RepeatedError(text)
    if kind == SystemExit.__name__:
        raise SystemExit(int(text))
    if kind:
        raise WorkerError(f"rank {rank.rank}: rank 0 has failed: {kind}: {text}")
    return text


def leave_after_rank_0(rank: Rank, seconds: float) -> None:
    """Wait on other ranks until rank 0 calls this at its end, or has ended; at most so long.

    What has started the workers may kill them all once one has ended: srun with
    --kill-on-bad-exit, mpirun. Rank 0 saves the checkpoint and records how the run has ended.
    """
    if rank.world_size == 1:
        return
    from torch.distributed import DistError  # pyright: ignore[reportPrivateImportUsage]

    store = meeting_store(rank)
    try:
        left = f"{store.get(FIRST).decode()}/left"
        if rank.rank == 0:
            store.set(left, "")
        else:
            wait_until(lambda: store.check([left]), seconds)
    except DistError:  # The process that keeps the store, which is rank 0's or torchrun, has ended.
        return


def _wait(is_there: Callable[[], bool], timeout: timedelta, who: str) -> None:
    if not wait_until(is_there, timeout.total_seconds()):
        raise TimeoutError(f"{who} did not come within {timeout}")
