"""Tells what this user's runs have written from what somebody else has made, by the user's key.

A configuration from elsewhere may say what is learned. Where, as whom, with which environment and
with whose code something runs comes from the command line, or from a file that this user's key has
signed. Runs in the process that the user started, and in workers.
"""

import functools
import hmac
import json
import os
import secrets
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from platformdirs import user_state_path

from mjfleet.config import LaunchConfig, TeacherConfig, TrainConfig, WandbConfig
from mjfleet.config.dict_conversion import by_dotted_name, from_dict, to_dict, value_at
from mjfleet.config.field_kinds import CLASSES, PLACEMENT, TEACHER, is_for_the_user
from mjfleet.errors import UserError
from mjfleet.utils.console import print_error

WANDB = "agent.wandb."
WANDB_RUN = "W&B run"  # Kind of text: the id of a run on Weights & Biases.
SIGNED = "# Signed with a key of the user who trained: "
KEY_BYTES = 32


def signature(values: Mapping[str, Any]) -> str:
    """Return the line that signs PLACEMENT's part of a configuration.

    Empty if there is no folder for the user's key.
    """
    signed = sign("config.yaml", _text(_placement(values)))
    return f"{SIGNED}{signed}\n" if signed else ""


def sign(kind: str, text: str) -> str:
    """Return this user's signature of a `kind` of text; empty if there is no folder for the key."""
    key = _key(may_create=True)
    return _sign(kind, text, key) if key else ""


def is_own(kind: str, text: str, signature: object) -> bool:
    """Return whether `sign` has made the signature of that `kind` of text with this user's key."""
    key = _key()
    if key is None or not isinstance(signature, str):
        return False
    given = signature.encode(errors="surrogatepass")
    return hmac.compare_digest(_sign(kind, text, key).encode(), given)


def leave_out_placement(data: dict[str, Any], text: str, name: str) -> None:
    """Remove PLACEMENT's part from the data of a file, unless the user's key has signed it.

    A line on standard error names what is left out. `text` is the file's; messages call it `name`.

    Raises:
        UserError: a value of that part is not allowed anyway.
    """
    placement = _placement(data)
    try:
        from_dict(LaunchConfig(), {n: v for n, v in placement.items() if "." not in n})
        wandb = {n.removeprefix(WANDB): v for n, v in placement.items() if n.startswith(WANDB)}
        from_dict(WandbConfig(), wandb)
    except UserError as error:
        raise UserError(f"{name}: {error}") from None
    signed = [line.removeprefix(SIGNED) for line in text.splitlines() if line.startswith(SIGNED)]
    if any(is_own("config.yaml", _text(placement), given) for given in signed):
        return
    # A default would replace what the task's author has set.
    for dotted in PLACEMENT | placement.keys():
        folder, _, last = dotted.rpartition(".")
        parent = value_at(data, folder) if folder else data
        if isinstance(parent, dict):
            parent.pop(last, None)
    if placement:
        say_left_out(name, ", ".join(sorted(placement)))


@functools.cache
def say_left_out(name: str, what: str) -> None:
    """Print once what of a file, which messages call `name`, is not used; on rank 0."""
    if os.environ.get("RANK", "0") == "0":
        print_error(
            f"{name}: left out {what}, since the file is not from a run of this user; look at it, "
            "then --trust accepts that."
        )


def _placement(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of PLACEMENT that differ from the defaults, by dotted name."""
    defaults = by_dotted_name(to_dict(TrainConfig()))
    defaults |= by_dotted_name({"agent": {"teacher": to_dict(TeacherConfig())}})
    names = sorted(PLACEMENT | CLASSES | {TEACHER})
    values = {dotted: value_at(data, dotted, defaults[dotted]) for dotted in names}
    return {
        dotted: value
        for dotted, value in values.items()
        if value != defaults[dotted] and is_for_the_user(dotted, value)
    }


def _text(placement: Mapping[str, Any]) -> str:
    return json.dumps(placement, sort_keys=True)


def _sign(kind: str, text: str, key: bytes) -> str:
    message = f"mjfleet {kind}\n{text}".encode(errors="surrogatepass")
    return hmac.new(key, message, "sha256").hexdigest()


def _key(may_create: bool = False) -> bytes | None:
    """Return this user's key. None: there is none, it cannot be made, or others may know it."""
    path = user_state_path("mjfleet") / "config_key"
    if not path.is_absolute():  # There is no home.
        return None
    try:
        if may_create and not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with tempfile.NamedTemporaryFile(dir=path.parent) as aside:  # Its mode is 0600.
                aside.write(secrets.token_bytes(KEY_BYTES))
                aside.flush()
                with suppress(FileExistsError):  # Another process was faster.
                    os.link(aside.name, path)
        with path.open("rb") as file:
            about, key = os.fstat(file.fileno()), file.read(KEY_BYTES + 1)
    except OSError:
        return None
    is_private = about.st_uid == os.geteuid() and not about.st_mode & 0o077
    return key if is_private and len(key) == KEY_BYTES else None
