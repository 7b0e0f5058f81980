"""What a worker and torchrun's agent, which has started it, leave for each other.

The agent starts its workers again after a fault, or when hosts come and go, and keeps a folder and
a store meanwhile. In the folder workers note which run they have begun; at the store they meet.
Importing this imports nothing heavy; the store is torch's.
"""

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from mjfleet.utils.atomic_write import write_atomically
from mjfleet.worker.failure_record import Failure
from mjfleet.worker.worker_args import Rank

if TYPE_CHECKING:
    from torch.distributed import (  # pyright: ignore[reportPrivateImportUsage]
        PrefixStore,  # pyright: ignore[reportPrivateImportUsage]
        Store,  # pyright: ignore[reportPrivateImportUsage]
    )

ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
"""The variable that says where a worker may write why it failed, under the agent's folder."""
NOTE = "mjfleet-run"
"""The file in that folder that holds the run directory; empty: none, it was given back."""
FIRST = "mjfleet/first"
"""Where the store has the name of rank 0."""
LOOK_SECONDS = 0.05


def is_from_torchrun() -> bool:
    """Whether torchrun has started this worker."""
    return ERROR_FILE in os.environ


@cache
def meeting_store(rank: Rank) -> "Store | None":
    """Where workers meet: the agents' store, or rank 0's; None: torchrun has not started them."""
    if not is_from_torchrun():
        return None
    from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    is_agents = os.environ["TORCHELASTIC_USE_AGENT_STORE"] == "True"
    return TCPStore(address, port, is_master=rank.rank == 0 and not is_agents)


def meet(
    store: "Store", rank: Rank, timeout: timedelta, known: str | None = None
) -> tuple["PrefixStore", str | None]:
    """Meet the workers that were started together with this one.

    The store still has what earlier workers have left, who may have had the same ranks. So each
    makes up a name that nobody has had before, and rank 0 answers the others by theirs.

    Args:
        store: where they meet.
        rank: this worker's place.
        timeout: how long rank 0 waits for each of the others, and they for its answer.
        known: what this worker knows, if it does.

    Returns:
        A part of the store that is theirs alone, and what the first rank knows that knows anything.

    Raises:
        TimeoutError: a worker has not come.
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
        if store.check([FIRST]):
            store.set(f"{store.get(FIRST).decode()}/{rank.rank}", json.dumps([own, known]))
        return store.check([own])

    _wait(is_answered, timeout, "rank 0")
    first, known = json.loads(store.get(own))
    return PrefixStore(first, store), known


def begun_run(rank: Rank, timeout: timedelta) -> str | None:
    """The run that workers of the same agents have begun before; None: there is none.

    Raises:
        TimeoutError: another worker has not come to agree on it.
    """
    note, store = _note(), meeting_store(rank)
    known = note.read_text() if note and note.exists() else None
    return (meet(store, rank, timeout, known)[1] if store else known) or None


def note_run(run_dir: Path | None) -> None:
    """Note for later workers which run these have begun; None: none after all."""
    if note := _note():
        text = str(run_dir or "")
        write_atomically(note, lambda file: file.write(text.encode()))


def _note() -> Path | None:
    """The note's file; None: something else than torchrun has started this worker."""
    path = os.environ.get(ERROR_FILE)
    # <the agent's folder>/attempt_<number>/<local rank>/error.json
    return Path(path).parents[2] / NOTE if path else None


def tell_cause(failure: Failure) -> None:
    """Let torchrun's own report name the cause.

    The form is that of torch.distributed.elastic.multiprocessing.errors.ErrorHandler.
    """
    path = os.environ.get(ERROR_FILE)
    if path:
        extra = {"py_callstack": failure.traceback, "timestamp": str(int(failure.time))}
        message = {"message": f"{failure.kind}: {failure.message}", "extraInfo": extra}
        Path(path).write_text(json.dumps({"message": message} | {"failure": asdict(failure)}))


def _wait(is_there: Callable[[], bool], timeout: timedelta, who: str) -> None:
    """Look again and again, so that signals are noticed meanwhile."""
    deadline = time.monotonic() + timeout.total_seconds()
    while not is_there():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{who} did not come within {timeout}")
        time.sleep(LOOK_SECONDS)
