"""Files are whole or as they were."""

import os
from pathlib import Path
from typing import BinaryIO

import pytest

from mjfleet.utils.atomic_write import write_atomically


def test_a_failed_write_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    write_atomically(path, lambda file: file.write(b"good"))

    def fail(file: BinaryIO) -> None:
        file.write(b"half")
        raise OSError("No space left on device")

    with pytest.raises(OSError, match="No space"):
        write_atomically(path, fail)
    assert path.read_bytes() == b"good"
    assert [p.name for p in tmp_path.iterdir()] == ["model.pt"]


def test_a_pipe_is_written_and_stays_one(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_atomically(pipe, lambda file: file.write(b"text"))
    assert os.read(reader, 9) == b"text"
    os.close(reader)
    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]
