"""The messages between the launcher and a host agent, each a line of JSON.

AskFacts, HostFacts, WorkerArgs, WorkerStatus, Failure and Outcome are messages too.
"""

import base64
import json
from dataclasses import dataclass
from typing import Literal

from mjfleet.launch.host_facts import AskFacts, HostFacts
from mjfleet.launch.worker_watchdog import WorkerStatus
from mjfleet.worker.failure_record import Failure
from mjfleet.worker.worker_args import Outcome, WorkerArgs

MARK = b"\x1e"
"""Begins a message (RFC 7464). Other lines, such as those that a login prints, are ignored."""


@dataclass(frozen=True)
class Meet:
    """Asks the first host to listen where workers will meet, another one to connect to its port."""

    address: str
    port: int | None = None


@dataclass(frozen=True)
class Answer:
    """Says whether `Meet` worked, and at which port the first host listens."""

    port: int | None = None
    error: str = ""


@dataclass(frozen=True)
class Prepare:
    """Has the host agent import what workers need, with so many threads."""

    engine: Literal["warp", "native"]
    threads: int


@dataclass(frozen=True)
class SendSignal:
    """Has the host agent send a signal to all of its workers."""

    number: int


@dataclass(frozen=True)
class AllHang:
    """Says whether no worker of any host moves."""

    value: bool


@dataclass(frozen=True)
class FilePiece:
    """Bytes that the receiver appends to its copy of a file."""

    name: str
    data: bytes


Message = (
    AskFacts | HostFacts | Meet | Answer | Prepare | WorkerArgs | SendSignal | AllHang | FilePiece
    | WorkerStatus | Failure | Outcome
)  # fmt: skip
TYPES = {kind.__name__: kind for kind in Message.__args__}


def encode(message: Message) -> bytes:
    """Return a message as a line."""
    fields = dict(vars(message))
    if isinstance(message, FilePiece):
        fields["data"] = base64.b64encode(message.data).decode()
    return MARK + json.dumps([type(message).__name__, fields]).encode() + b"\n"


def decode(line: bytes) -> Message:
    """Return the message in a line that begins with MARK."""
    name, fields = json.loads(line[len(MARK) :])
    if name == FilePiece.__name__:
        fields["data"] = base64.b64decode(fields["data"])
    # JSON has made lists of tuples, of which messages consist.
    return TYPES[name](**{n: tuple(v) if isinstance(v, list) else v for n, v in fields.items()})
