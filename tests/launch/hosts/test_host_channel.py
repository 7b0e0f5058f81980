"""The channel between launcher and host agent, over pipes of this process."""

import io
import json
import os
import queue
from collections.abc import Iterator

import pytest

from mjfleet.launch.hosts.host_channel import (
    FILE_PIECE_BYTES,
    FULL,
    MARK,
    Answer,
    FilePiece,
    HostChannel,
    Message,
    SendSignal,
    decode,
    encode,
)
from mjfleet.utils.wait_until import wait_until
from mjfleet.worker.worker_args import WorkerArgs

from ...conftest import PATIENCE

Inbox = queue.SimpleQueue[Message | None]


class Pair:
    """Two channels that are connected, and what each has received."""

    def __init__(self) -> None:
        here, there = os.pipe(), os.pipe()
        self.noise = os.fdopen(os.dup(here[1]), "wb", buffering=0)
        """Writes where the second channel reads."""
        self.inboxes: tuple[Inbox, Inbox] = (queue.SimpleQueue(), queue.SimpleQueue())
        self.first = HostChannel(there[0], here[1], self.inboxes[0].put, None)
        self.second = HostChannel(here[0], there[1], self.inboxes[1].put, None)


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.noise.close()
    made.first.close()
    made.second.close()


def test_a_message_arrives_as_it_was_sent() -> None:
    args = WorkerArgs(
        task="t", task_folder="", config={"hidden": [1, 2]}, devices=("cpu", "cpu"), engine="warp",
        threads=1, run_dir="run", meeting=("10.0.0.1", 5), log_files=("a", "b"),
    )  # fmt: skip
    for message in (args, FilePiece("model_1.pt", b"\x00\xff\n\x1e")):
        assert decode(encode(message).rstrip(b"\n")) == message


def test_messages_arrive_in_order_other_lines_are_ignored_and_none_is_last(pair: Pair) -> None:
    pair.noise.write(b"Welcome to node1!\n\nPrompt> ")
    for number in range(3):
        pair.first.send(SendSignal(number))
    pair.first.close()
    pair.noise.close()
    arrived = [pair.inboxes[1].get(timeout=PATIENCE) for _ in range(4)]
    assert arrived == [*map(SendSignal, range(3)), None]
    assert pair.second.is_disconnected
    assert not pair.second.is_silent


class CountedFile(io.BytesIO):
    """Counts how often it was read."""

    reads = 0

    def read(self, size: int | None = -1) -> bytes:
        self.reads += 1
        return super().read(size)


def test_no_more_of_a_file_is_read_than_the_peer_takes() -> None:
    ours, theirs = os.pipe(), os.pipe()
    channel = HostChannel(theirs[0], ours[1], lambda message: None)
    file = CountedFile(bytes(8 * FILE_PIECE_BYTES))
    channel.send_file("model_1.pt", file)
    assert wait_until(lambda: file.reads > 0, PATIENCE)
    assert not wait_until(lambda: file.reads > 1, 0.2)
    os.close(ours[0])  # The peer ends before it has the file.
    os.close(theirs[1])
    channel.close()
    assert wait_until(lambda: channel.is_disconnected and file.closed, PATIENCE)
    assert file.reads == 1


def test_a_message_that_cannot_be_read_ends_the_channel_and_is_its_error(pair: Pair) -> None:
    pair.noise.write(MARK + b'{"file": \n')
    assert pair.inboxes[1].get(timeout=PATIENCE) is None
    assert isinstance(pair.second.error, json.JSONDecodeError)
    for _ in range(FULL + 2):
        pair.second.send(Answer(5))  # Nobody is there any more, so nobody waits for room.
    assert not pair.second.is_full


def test_a_peer_that_is_silent_counts_as_lost() -> None:
    reader, writer = os.pipe()
    answer = os.open(os.devnull, os.O_WRONLY)
    inbox: Inbox = queue.SimpleQueue()
    channel = HostChannel(reader, answer, inbox.put, patience=0.1)
    assert inbox.get(timeout=PATIENCE) is None
    assert channel.is_silent
    channel.close()
    os.close(writer)
