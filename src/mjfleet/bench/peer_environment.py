"""Installs another stack into an environment of its own, because its pins are not mjfleet's.

Runs in the launcher. The environments are under the user's cache folder.
"""

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from platformdirs import user_cache_path

from mjfleet.bench.benchmark_options import progress
from mjfleet.bench.timed_training import run_timed
from mjfleet.errors import UserError

NEWEST = "2026-11-14T00:00:00Z"  # As for the packages of mjfleet, see pyproject.toml.


def install(name: str, version: str, scratch: Path, further: Sequence[str] = ()) -> Path:
    """Return the folder of a package's virtual environment, which is made where there is none.

    It is made under another name and then renamed: an existing one is complete. `further` are
    requirements besides the package.

    Raises:
        UserError: uv is missing, or the folder cannot be made.
        WorkerError: uv could not install it; the message says why.
    """
    folder = user_cache_path("mjfleet") / "bench" / f"{name}-{version}"
    if folder.is_dir():
        return folder
    if not (uv := shutil.which("uv")):
        raise UserError(f"{name} is installed by uv, which is missing: `pip install uv`.")
    progress(f"installing {name} {version} into {folder}")
    aside = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        what = f"{name}'s environment cannot be made (XDG_CACHE_HOME)"
        raise UserError(f"{what}: {error}") from None
    flags = "--compile-bytecode", "--exclude-newer", NEWEST
    try:
        # Relocatable, because the scripts of an environment name its folder.
        run_timed([uv, "venv", "--relocatable", "--python", sys.executable, str(aside)], scratch)
        packages = f"{name}=={version}", *further
        run_timed([uv, "pip", "install", "--python", str(aside), *flags, *packages], scratch)
        if not folder.is_dir():  # Another benchmark may have been faster.
            aside.rename(folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return folder


def versions(name: str, folder: Path, packages: Sequence[str], scratch: Path) -> dict[str, str]:
    """Return the versions of packages in an environment, each under the name of whose it is."""
    code = f"import importlib.metadata as m\nfor name in {packages!r}: print(name, m.version(name))"
    lines = run_timed([f"{folder}/bin/python", "-P", "-c", code], scratch).lines
    found = dict(line.split(" ", 1) for _, line in lines)
    return {
        package if package == name else f"{name}'s {package}": v for package, v in found.items()
    }
