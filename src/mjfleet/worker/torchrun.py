"""What a worker and torchrun's agent, which has started it, tell each other.

The agent starts its workers again after a fault, or when hosts come and go. It keeps a store for
them meanwhile: there rank 0 notes which run they have begun, and there they meet. Importing this
imports nothing heavy; the store is torch's.
"""

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from mjfleet.worker.failure import Failure
from mjfleet.worker.job import Rank

if TYPE_CHECKING:
    from torch.distributed import (  # pyright: ignore[reportPrivateImportUsage]
        PrefixStore,  # pyright: ignore[reportPrivateImportUsage]
        Store,  # pyright: ignore[reportPrivateImportUsage]
    )

BEGUN = "mjfleet/begun"
"""Where the store has the run that the workers have begun."""
FIRST = "mjfleet/first"
"""Where it has the name that rank 0 has for one meeting."""
LOOK_SECONDS = 0.05


def agent_store() -> "Store | None":
    """The agent's store; None: something else than torchrun has started this worker."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return TCPStore(address, port, is_master=False)


def meet(
    store: "Store", rank: Rank, timeout: timedelta, word: str = ""
) -> tuple["PrefixStore", str]:
    """Meet the workers that were started together with this one.

    The store still has what earlier workers have left, who may have had the same ranks. So each
    makes up a name that nobody has had before, and rank 0 answers the others by theirs.

    Args:
        store: that of the agent.
        rank: this worker's place.
        timeout: how long rank 0 waits for each of the others, and they for its answer.
        word: what rank 0 tells the others.

    Returns:
        A part of the store that is theirs alone, and rank 0's word.

    Raises:
        TimeoutError: a worker has not come.
    """
    from torch.distributed import PrefixStore  # pyright: ignore[reportPrivateImportUsage]

    own = uuid4().hex
    if rank.rank == 0:
        store.set(FIRST, own)
        for other in range(1, rank.world_size):
            place = f"{own}/{other}"
            _wait(lambda place=place: store.check([place]), timeout, f"rank {other}")
            store.set(store.get(place).decode(), f"{own} {word}")
        return PrefixStore(own, store), word

    def is_answered() -> bool:
        if store.check([FIRST]):
            store.set(f"{store.get(FIRST).decode()}/{rank.rank}", own)
        return store.check([own])

    _wait(is_answered, timeout, "rank 0")
    first, _, word = store.get(own).decode().partition(" ")
    return PrefixStore(first, store), word


def begun_run(rank: Rank, timeout: timedelta) -> str | None:
    """The run that workers of the same agents have begun before; None: these are the first.

    Raises:
        TimeoutError: another worker has not come to agree on it.
    """
    store = agent_store()
    if store is None:
        return None
    begun = store.get(BEGUN).decode() if rank.rank == 0 and store.check([BEGUN]) else ""
    return meet(store, rank, timeout, begun)[1] or None


def note_run(run_dir: Path | None) -> None:
    """Note for later workers which run these have begun; None: none after all."""
    store = agent_store()
    if store is not None and run_dir is None:
        store.delete_key(BEGUN)
    elif store is not None:
        store.set(BEGUN, str(run_dir))


def tell_cause(failure: Failure) -> None:
    """Let torchrun's own report name the cause.

    The form is that of torch.distributed.elastic.multiprocessing.errors.ErrorHandler.
    """
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
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
