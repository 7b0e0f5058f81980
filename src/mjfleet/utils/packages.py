"""Versions of installed packages, how to install more, and an error for those that are missing."""

import json
import shlex
import sys
from collections.abc import Collection
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from mjfleet.errors import UserError

STACK = (
    "mjfleet", "mujoco", "mujoco-warp", "warp-lang", "torch", "rsl-rl-lib", "tensordict",
    "torchrunx", "numpy",
)  # fmt: skip


def stack_versions(*more: str) -> dict[str, str]:
    """Return the versions of the packages on which a run's result depends, and of `more`."""
    from importlib.metadata import version  # `--help` does without.

    return {name: version(name) for name in (*STACK, *more)}


def need_extra(extra: str, what: str, packages: Collection[str]) -> None:
    """Raise UserError if modules that the flag `what` needs are missing.

    The message says how to install them: `extra` is their optional dependency in pyproject.toml.
    """
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        command = find_installation().command(extra)
        raise UserError(f"{what} needs {', '.join(missing)}: `{command}` installs what is missing.")


def find_package(name: str) -> Path:
    """Return the folder of a package, which is not imported; raise UserError without one."""
    spec = find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise UserError(f"the package {name} is not installed.")
    return Path(spec.submodule_search_locations[0])


class Installation(NamedTuple):
    """How mjfleet was installed, for advice that fits."""

    how: str
    """`clone` (by `uv sync`), `editable` (by `uv pip install -e`), `tool` (by `uv tool install`),
    or the installer of a package: `uv` or `pip`."""
    source: str | None = None  # Folder of a clone, or URL of a wheel; None: from an index.

    def command(self, extra: str = "", compiles: bool = False) -> str:
        """Return the command that installs matching packages, and those of an optional dependency.

        `compiles`: whether they are to be stored as compiled bytecode.
        """
        if self.how == "clone":
            # Without --inexact, other extras that are installed would be removed.
            more = f" --extra {extra}" * bool(extra) + " --compile-bytecode" * compiles
            return f"uv sync --inexact{more}"
        extras = f"[{extra}]" * bool(extra)
        if self.how == "editable":
            wanted = f"-e {shlex.quote(f'{self.source}{extras}')}"
        else:
            origin = f" @ {self.source}" if self.source else ""
            wanted = shlex.quote(f"mjfleet{extras}{origin}")
        if self.how == "pip":
            redo = "" if extra else " --force-reinstall"
            return f"{shlex.quote(sys.executable)} -m pip install{redo} {wanted}"
        redo = ("" if extra else " --reinstall") + " --compile-bytecode" * compiles
        program = "uv tool install --force" if self.how == "tool" else "uv pip install"
        return f"{program}{redo} {wanted}"


def find_installation() -> Installation:
    """Return how mjfleet was installed, by what its installer has recorded (PEP 376, PEP 610)."""
    from importlib.metadata import distribution, version

    package = distribution("mjfleet")
    origin = json.loads(package.read_text("direct_url.json") or "{}")
    source: str | None = origin.get("url")
    if origin.get("dir_info", {}).get("editable") and source:
        # uv sync would replace a torch without CUDA, which the user has chosen.
        how = "editable" if version("torch").endswith("+cpu") else "clone"
        return Installation(how, source.removeprefix("file://"))
    if Path(sys.prefix, "uv-receipt.toml").exists():
        return Installation("tool", source)
    is_by_uv = (package.read_text("INSTALLER") or "").strip() == "uv"
    return Installation("uv" if is_by_uv else "pip", source)
