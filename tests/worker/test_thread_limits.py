"""What a worker's process is given before it imports torch."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mjfleet.worker.thread_limits import thread_variables

LEARN = """
import os, sys
from mjfleet.worker.thread_limits import prepare
prepare()
assert "torch" not in sys.modules
import mjfleet.rl.runner
print(os.environ["OMP_WAIT_POLICY"])
"""

MAPPED = """
import ctypes
from mjfleet.worker.thread_limits import prepare
prepare()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.mallinfo2.restype = type("mallinfo2", (ctypes.Structure,),
    {"_fields_": [(f"field{i}", ctypes.c_size_t) for i in range(10)]})
before = libc.mallinfo2().field3
libc.malloc(1 << 20)
print(libc.mallinfo2().field3 - before)
"""
"""Prints how many memory maps malloc makes for a MiB: the field `hblks` of mallinfo(3)."""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="needs glibc 2.33")
@pytest.mark.parametrize(
    ("chosen", "maps"), [({}, "0"), ({"MALLOC_MMAP_THRESHOLD_": "65536"}, "1")]
)
def test_freed_memory_is_kept_unless_the_user_sets_thresholds(
    chosen: dict[str, str], maps: str
) -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    done = subprocess.run(
        [sys.executable, "-c", MAPPED],
        check=True,
        env=environ | chosen,
        capture_output=True,
        text=True,
    )
    assert done.stdout == f"{maps}\n"


@pytest.mark.slow
def test_training_can_be_imported_where_there_is_no_git(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LEARN],
        check=False,
        env={"PATH": str(tmp_path), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "PASSIVE\n"


def test_a_worker_has_as_many_threads_as_it_is_given() -> None:
    assert thread_variables(3)["OMP_NUM_THREADS"] == "3"
