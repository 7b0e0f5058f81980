"""Tells this user's config.yaml from somebody else's, which may not say where or as whom to run.

A configuration from elsewhere may say what is learned. Where, as whom, with which environment and
with whose code something runs comes from the command line, or from a file that this user's key has
signed. Runs in the process that the user started.
"""

import functools
import hmac
import json
import os
import secrets
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from platformdirs import user_state_path

from mjfleet.config import LaunchConfig, TeacherConfig, TrainConfig, WandbConfig
from mjfleet.config.dict_conversion import by_dotted_name, from_dict, to_dict
from mjfleet.config.field_kinds import CLASSES, PLACEMENT, TEACHER, is_for_the_user
from mjfleet.errors import UserError

WANDB = "agent.wandb."
SIGNED = "# Signed with a key of the user who trained: "
CODE = b"mjfleet task\n"  # What the signature of a task's code begins with.
KEY_BYTES = 32


def signature(values: Mapping[str, Any]) -> str:
    """Return the line that signs PLACEMENT's part of a configuration.

    Empty if all of that part has its defaults, or if there is no folder for the user's key.
    """
    placement = _placement(values)
    key = _key(may_create=True) if placement else None
    return f"{SIGNED}{_sign(placement, key)}\n" if key else ""


def sign_code(task_hash: str) -> str:
    """Return the signature of a task's code, by its hash; empty without a folder for the key."""
    key = _key(may_create=True)
    return hmac.new(key, CODE + task_hash.encode(), "sha256").hexdigest() if key else ""


def is_own_code(task_hash: str, signature: str) -> bool:
    """Return whether `sign_code` has signed it with this user's key."""
    key = _key()
    expected = hmac.new(key, CODE + task_hash.encode(), "sha256").hexdigest() if key else ""
    return key is not None and hmac.compare_digest(expected.encode(), signature.encode())


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
    if not placement or _is_signed(placement, text):
        return
    for dotted in placement:
        *folders, last = dotted.split(".")
        functools.reduce(lambda inner, part: inner[part], folders, data).pop(last, None)
    _warn(
        f"{name}: left out {', '.join(sorted(placement))}, since the file is not from a run of "
        "this user; look at it, then --trust accepts them."
    )


def _placement(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of PLACEMENT that differ from the defaults, by dotted name."""
    defaults = by_dotted_name(to_dict(TrainConfig()))
    defaults |= by_dotted_name({"agent": {"teacher": to_dict(TeacherConfig())}})
    names = sorted(PLACEMENT | CLASSES | {TEACHER})
    values = {dotted: _value(data, dotted, defaults[dotted]) for dotted in names}
    return {
        dotted: value
        for dotted, value in values.items()
        if value != defaults[dotted] and is_for_the_user(dotted, value)
    }


def _value(data: Any, dotted: str, default: Any) -> Any:
    for part in dotted.split("."):
        if not isinstance(data, Mapping) or part not in data:
            return default
        data = data[part]
    return data


def _sign(placement: Mapping[str, Any], key: bytes) -> str:
    message = json.dumps(placement, sort_keys=True).encode()
    return hmac.new(key, b"mjfleet config.yaml\n" + message, "sha256").hexdigest()


def _is_signed(placement: Mapping[str, Any], text: str) -> bool:
    signed = [line.removeprefix(SIGNED) for line in text.splitlines() if line.startswith(SIGNED)]
    if not signed or (key := _key()) is None:
        return False
    expected = _sign(placement, key).encode()
    return any(hmac.compare_digest(given.encode(), expected) for given in signed)


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


@functools.cache
def _warn(line: str) -> None:
    """Print a line once, on rank 0, however often the file is read."""
    if os.environ.get("RANK", "0") == "0":
        print(line, file=sys.stderr)
