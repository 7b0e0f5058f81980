"""A folder for temporary files that is gone after its process, however that ends.

Used in the launcher, in the host agent and in workers; imports nothing heavy.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mjfleet.errors import UserError

MAKE_AND_REMOVE = """
trap "" HUP INT TERM PIPE
folder=$(mktemp -d "$0") && echo "$folder"
exec >/dev/null
cat
rm -rf -- "$folder"
"""
"""A shell's program. `cat` ends when no process is left that could write to its standard input."""
END_SECONDS = 2.0  # For which the end of the block waits until the folder is gone.


@contextmanager
def vanishing_folder(parent: Path | None = None) -> Iterator[Path]:
    """Make a folder, which is removed after the block, or after this process and all its forks.

    It is made in `parent`, or where temporary files belong. UserError if it cannot be.
    """
    name = f"mjfleet-{os.getpid()}-{os.uname().nodename}-XXXXXX"
    try:
        template = Path(parent or tempfile.gettempdir(), name)
        remover = subprocess.Popen(
            ["/bin/sh", "-c", MAKE_AND_REMOVE, template],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
            text=True,
        )
    except OSError as error:
        raise UserError(f"temporary files: {error}; set TMPDIR to a writable folder.") from None
    assert remover.stdin
    assert remover.stdout
    try:
        with remover.stdout:
            folder = remover.stdout.read().rstrip("\n")
        if not folder:
            if not shutil.which("mktemp"):
                raise UserError(
                    "there is no command `mktemp` on PATH, which makes folders for temporary "
                    "files: install coreutils."
                )
            remedy = "" if parent else ": set TMPDIR to another"
            raise UserError(f"no folder can be made in {template.parent}{remedy}.")
        yield Path(folder)
    finally:
        remover.stdin.close()
        # A fork that cannot be killed, inside a driver, would hold the folder.
        with suppress(subprocess.TimeoutExpired):
            remover.wait(END_SECONDS)
