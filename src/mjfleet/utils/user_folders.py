"""Gives libraries a home, a user's name and folders to write, as in a container without a user."""

import getpass
import os
import pwd
import stat
from collections.abc import MutableMapping
from contextlib import suppress
from pathlib import Path
from tempfile import gettempdir, mkdtemp

from mjfleet.utils.console import print_error

FOLDERS = {
    "XDG_CACHE_HOME": ".cache",  # Compiled kernels of warp and torch, for instance.
    "XDG_STATE_HOME": ".local/state",  # Notes of the runs that this installation began.
    "MPLCONFIGDIR": ".config/matplotlib",
}
"""Variables that name folders to write, and the folder of the home that each means by default."""
IF_SET = ("TORCHINDUCTOR_CACHE_DIR", "WANDB_CACHE_DIR", "WARP_CACHE_PATH")
"""Variables that do so only if they are set."""


def have_user_folders(environ: MutableMapping[str, str]) -> None:
    """Replace a home that is unknown, and the user's folders that cannot be written.

    The folders that take their place are below the one for temporary files, where later commands of
    the same user find them again. A line says so; of the workers of a host, the first prints it.
    """
    try:
        getpass.getuser()
    except (KeyError, OSError):
        environ["LOGNAME"] = str(os.geteuid())  # `getuser` looks there first.
    home = _home(environ)
    places = {name: f"{home}/{folder}" for name, folder in FOLDERS.items() if home}
    places |= {n: environ[n] for n in FOLDERS if environ.get(n, "").startswith("/")}
    places |= {name: environ[name] for name in IF_SET if environ.get(name)}
    lost = [name for name, place in places.items() if not is_writable(Path(place))]
    if home and not lost:
        environ["HOME"] = home
        return
    folder = _own_folder()
    environ["HOME"] = home or str(folder)
    environ.update({name: str(folder / FOLDERS.get(name, name.lower())) for name in lost})
    if environ.get("LOCAL_RANK", "0") == "0":
        why = f"{places[lost[0]]} cannot be written" if home else "there is no home directory"
        print_error(f"{why}: compiled kernels and notes of runs are kept in {folder}")


def _home(environ: MutableMapping[str, str]) -> str:
    """Return the user's home, an absolute path; empty if none is known."""
    if environ.get("HOME", "").startswith("/"):
        return environ["HOME"]
    with suppress(KeyError):
        return pwd.getpwuid(os.getuid()).pw_dir
    return ""


def is_writable(path: Path) -> bool:
    """Return whether a folder can be written, or a path be made that is not there."""
    with suppress(OSError):
        near = next(one for one in (path, *path.absolute().parents) if os.path.lexists(one))
        return near.is_dir() and os.access(near, os.W_OK | os.X_OK)
    return False


def _own_folder() -> Path:
    """Return this user's folder among temporary files; a new one if others can write there.

    What they write there would be run as compiled kernels of this user.
    """
    folder = Path(gettempdir(), f"mjfleet-home-{os.geteuid()}")
    with suppress(OSError):
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
        if is_own and not found.st_mode & 0o022 and os.access(folder, os.W_OK | os.X_OK):
            return folder
    return Path(mkdtemp(prefix="mjfleet-home-"))
