"""Every test here starts real processes: none of them, and nothing of theirs, may be left."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from mjfleet.utils.wait_until import wait_until

from ..conftest import PATIENCE


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path) -> Iterator[None]:
    """No process of a run, and nothing in the folder for temporary files."""
    before = set(Path(tempfile.gettempdir()).glob("mjfleet-*-*"))
    yield
    left = [p for p in psutil.process_iter() if _works_in(p, tmp_path)]
    for process in left:
        process.kill()
    assert not left
    # A host agent ends after its launcher, and removes its folder.
    assert wait_until(lambda: not _folders_of_the_ended(before), PATIENCE)


def _folders_of_the_ended(before: set[Path]) -> list[Path]:
    new = set(Path(tempfile.gettempdir()).glob("mjfleet-*-*")) - before
    return [folder for folder in new if not psutil.pid_exists(int(folder.name.split("-")[1]))]


def _works_in(process: psutil.Process, folder: Path) -> bool:
    try:
        return process.pid != os.getpid() and Path(process.cwd()).is_relative_to(folder)
    except psutil.Error:
        return False
