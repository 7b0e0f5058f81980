"""Lines that are printed while something else is."""

import io
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from mjfleet.utils.console import print_line


def test_nobody_who_reads_is_no_word_and_a_full_disk_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as pipe, open("/dev/full", "w") as disk:
        for stream in (pipe, disk):
            assert not caplog.records
            monkeypatch.setattr(sys, "stdout", stream)
            print_line("first")
            print_line("later")
    assert "No space left" in caplog.text


def test_a_signal_inside_of_a_print_may_print(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "output").open("wb", buffering=0) as file:

        class Interrupted(io.RawIOBase):
            """A stream in whose system call a signal arrives, once; the handler prints a line."""

            def writable(self) -> bool:
                return True

            def fileno(self) -> int:
                return file.fileno()

            def write(self, data: Any) -> int:
                written = file.write(data)
                if bytes(data) == b"iteration 1\n":
                    print_line("stopping")
                return written

        stream = io.TextIOWrapper(io.BufferedWriter(Interrupted()), encoding="utf-8")
        monkeypatch.setattr(sys, "stdout", stream)
        print_line("iteration 1")
        print_line("iteration 2")
    assert (tmp_path / "output").read_text() == "iteration 1\nstopping\niteration 2\n"
