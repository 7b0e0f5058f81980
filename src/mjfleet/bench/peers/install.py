"""mjlab in an environment of its own, under the user's cache folder. Runs in the launching process.

Its pins of torch, MuJoCo and rsl_rl are not ours.
"""

import os
import shutil
import sys
from pathlib import Path

from mjfleet.bench.children import run_child
from mjfleet.bench.setup import progress
from mjfleet.errors import UserError

VERSION = "1.6.0"
NEWEST = "2026-11-14T00:00:00Z"
"""The newest packages that its environment may have: those of ours, see pyproject.toml."""
PACKAGES = ("mjlab", "mujoco", "mujoco-warp", "warp-lang", "torch", "rsl-rl-lib")


def mjlab_environment(scratch: Path) -> Path:
    """The folder of mjlab's virtual environment, which is made where there is none.

    It is made aside and renamed: one that is there is whole.

    Raises:
        UserError: uv is not there.
        WorkerError: uv could not install it; the text says why.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "mjfleet" / "bench" / f"mjlab-{VERSION}"
    if folder.is_dir():
        return folder
    uv = shutil.which("uv")
    if uv is None:
        raise UserError("mjlab is installed by uv, which is not there: `pip install uv`.")
    progress(f"installing mjlab {VERSION} into {folder}")
    aside = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"mjlab's environment cannot be made (XDG_CACHE_HOME): {error}") from None
    try:
        # Relocatable, because the scripts of an environment name its folder.
        run_child([uv, "venv", "--relocatable", "--python", sys.executable, str(aside)], scratch)
        run_child(
            [uv, "pip", "install", "--python", str(aside), "--compile-bytecode",
             "--exclude-newer", NEWEST, f"mjlab=={VERSION}"],
            scratch,
        )  # fmt: skip
        if not folder.is_dir():  # Another benchmark may have been faster.
            aside.rename(folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return folder


def mjlab_versions(environment: Path, scratch: Path) -> dict[str, str]:
    """Versions of what decides its speed."""
    code = (
        "from importlib.metadata import version\n"
        f"for name in {PACKAGES!r}: print(name, version(name))"
    )
    child = run_child([str(environment / "bin" / "python"), "-c", code], scratch)
    found = dict(line.split(" ", 1) for _, line in child.lines)
    return {"mjlab": found.pop("mjlab")} | {f"mjlab's {name}": v for name, v in found.items()}
