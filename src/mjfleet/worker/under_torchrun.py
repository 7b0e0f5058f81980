"""What workers and the torchrun agent that has started them leave for each other.

The agent starts its workers again after a failure, or when hosts come and go. It keeps a folder, in
which workers note the run that they have begun, and a store, at which they meet. Imports nothing
heavy before a store is needed.
"""

import json
import os
from collections.abc import Callable
from dataclasses import asdict
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from mjfleet.errors import WorkerError
from mjfleet.utils.atomic_write import write_atomically
from mjfleet.utils.wait_until import wait_until
from mjfleet.worker.failure_record import Failure
from mjfleet.worker.rank_environment import Rank

if TYPE_CHECKING:
    from torch.distributed import PrefixStore, Store  # pyright: ignore[reportPrivateImportUsage]

ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
"""Environment variable: the file, in the agent's folder, for the reason of a worker's failure."""
NOTE = "mjfleet-run"  # The file there that names the run directory; empty: it was given back.
FIRST = "mjfleet/first"  # The store's key for the name of rank 0.


def is_from_torchrun() -> bool:
    """Return whether torchrun has started this worker."""
    return ERROR_FILE in os.environ


@cache
def meeting_store(rank: Rank) -> "Store":
    """Return the store at which workers meet that we have not started: rank 0's, or torchrun's."""
    from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    is_agents = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return TCPStore(address, port, is_master=rank.rank == 0 and not is_agents)


def meet(
    store: "Store", rank: Rank, timeout: timedelta, known: str | None = None
) -> tuple["PrefixStore", str | None]:
    """Meet the workers that were started together with this one.

    The store still holds what earlier workers with the same ranks have left. So each worker makes
    up a new name, the others write theirs under rank 0's, and rank 0 answers each under its name.
    `known` is a text that this worker knows.

    Returns:
        A part of the store that is theirs alone, and the text of the first rank that has one.

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
            name, theirs = json.loads(store.get(place))
            known = theirs if known is None else known
            others.append(name)
        for name in others:
            store.set(name, json.dumps([own, known]))
        return PrefixStore(own, store), known

    def is_answered() -> bool:
        # The name that is there may still be that of an earlier rank 0.
        if store.check([FIRST]):
            store.set(f"{store.get(FIRST).decode()}/{rank.rank}", json.dumps([own, known]))
        return store.check([own])

    _wait(is_answered, timeout, "rank 0")
    first, known = json.loads(store.get(own))
    return PrefixStore(first, store), known


def begun_run(timeout: timedelta) -> str | None:
    """Return the run that these workers continue, because torchrun has started them again.

    Raises:
        WorkerError: another worker has not come to agree on it.
    """
    if (rank := Rank.from_environ(os.environ)) is None:
        return None
    note, store = _note(), meeting_store(rank) if is_from_torchrun() else None
    known = os.fsdecode(note.read_bytes()) if note and note.exists() else None
    try:
        return (meet(store, rank, timeout, known)[1] if store else known) or None
    except TimeoutError as error:
        raise WorkerError(f"rank {rank.rank}: {error}") from None


def note_run(run_dir: Path | None) -> None:
    """Note for later workers which run these have begun; None: the run was given back."""
    if note := _note():
        write_atomically(note, lambda file: file.write(os.fsencode(run_dir or "")))


def tell_cause(failure: Failure) -> None:
    """Have torchrun's own report name the cause.

    The format is that of torch.distributed.elastic.multiprocessing.errors.ErrorHandler.
    """
    if path := os.environ.get(ERROR_FILE):
        extra = {"py_callstack": failure.traceback, "timestamp": str(int(failure.time))}
        message = {"message": f"{failure.kind}: {failure.message}", "extraInfo": extra}
        Path(path).write_text(json.dumps({"message": message} | {"failure": asdict(failure)}))


def _note() -> Path | None:
    """Return the note's file; None: torchrun has not started this worker."""
    path = os.environ.get(ERROR_FILE)
    # <the agent's folder>/attempt_<number>/<local rank>/error.json
    return Path(path).parents[2] / NOTE if path else None


def _wait(is_there: Callable[[], bool], timeout: timedelta, who: str) -> None:
    if not wait_until(is_there, timeout.total_seconds()):
        raise TimeoutError(f"{who} did not come within {timeout}")
