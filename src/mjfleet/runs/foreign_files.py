"""Distinguishes what runs of this installation have written from what somebody else has made.

A file says what is learned. Where, as whom, with which environment and with whose code something
runs comes from the command line, or from a file that says the same as a run which this installation
began: the user's state folder keeps a hash of each. Runs in the launcher and in workers.
"""

import hashlib
from contextlib import suppress

from platformdirs import user_state_path

from mjfleet.utils.atomic_write import append

WRITTEN = "written"  # The file in the state folder: a hash in each line.


def remember(kind: str, text: str) -> None:
    """Keep in the user's state folder, if there is one, that a run of ours has this text."""
    path = user_state_path("mjfleet") / WRITTEN
    if path.is_absolute() and not is_own(kind, text):
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            append(path, _hash(kind, text) + b"\n")


def is_own(kind: str, text: str) -> bool:
    """Return whether `remember` has kept that `kind` of text."""
    path = user_state_path("mjfleet") / WRITTEN
    try:
        return path.is_absolute() and _hash(kind, text) in path.read_bytes().split()
    except OSError:
        return False


def _hash(kind: str, text: str) -> bytes:
    message = f"mjfleet {kind}\n{text}".encode(errors="surrogatepass")
    return hashlib.sha256(message).hexdigest().encode()
