"""Versions of installed packages, how to install more, and an error for those that are missing."""

import json
import shlex
import sys
from collections.abc import Collection
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from sysconfig import get_path
from types import ModuleType

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

    The message says how to install them: `extra` is their optional dependency in pyproject.toml, if
    they have one.
    """
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        how = f": `{install_command(extra)}` installs what is missing" if extra else ""
        raise UserError(f"{what} needs {', '.join(missing)}{how or ', which is not installed'}.")


def need_part(module: str, what: str) -> ModuleType:
    """Import a part of mjfleet that an installation may lack, and that the flag `what` needs.

    Raises:
        UserError: it is missing.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if is_of_mjfleet(error):
            raise UserError(f"{what} needs {error.name}, which this installation lacks.") from None
        raise


def is_of_mjfleet(error: ModuleNotFoundError) -> bool:
    """Return whether a part of mjfleet is missing, which an installation may lack."""
    return (error.name or "").startswith("mjfleet.")


def find_package(name: str) -> Path:
    """Return the folder of a package, which is not imported; raise UserError without one."""
    spec = find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise UserError(f"the package {name} is not installed.")
    return Path(spec.submodule_search_locations[0])


def clone_folder() -> Path | None:
    """Return the folder of the clone that this package is in, or None if it is installed."""
    folder = Path(__file__).resolve().parents[3]
    return folder if (folder / "pyproject.toml").is_file() else None


def compile_command() -> str:
    """Return the command that compiles the bytecode of all that is installed for this Python."""
    flags = ("-m", "compileall", "-qq", "-j", "0")
    return shlex.join([sys.executable, "-P", *flags, get_path("purelib")])


def install_command(extra: str = "") -> str:
    """Return the command that installs matching packages, or an optional dependency."""
    from importlib.metadata import version

    extras, clone = f"[{extra}]" * bool(extra), clone_folder()
    # An environment that uv made has no pip: the word would mean that of another Python.
    uv = f"uv pip install --python {shlex.quote(sys.prefix)}"
    pip = "pip install" if find_spec("pip") else uv
    if clone is None:
        if any(part.startswith("archive-v") for part in Path(sys.prefix).parts):
            # uvx has made this environment in uv's cache.
            package = f"mjfleet{extras}{_origin()}"
            return f"uvx {'' if extra else '--refresh '}--from '{package}' ..."
        return f"{pip} {'' if extra else '--force-reinstall '}'mjfleet{extras}'"
    if not Path(sys.prefix).is_relative_to(clone):  # Another project's environment has the clone.
        return f"{pip} -e '{clone}{extras}'"
    if version("torch").endswith("+cpu"):  # `uv sync` would replace it by one with CUDA.
        return f"uv pip install -e '{clone}{extras}'"
    return "uv sync --inexact" + f" --extra {extra}" * bool(extra)  # Other extras stay.


def _origin() -> str:
    """Return where the package is from, if not from an index, as a requirement has it (PEP 610)."""
    from importlib.metadata import distribution

    found = json.loads(distribution("mjfleet").read_text("direct_url.json") or "{}")
    if "vcs_info" in found:
        return " @ {vcs}+{url}@{commit_id}".format(url=found["url"], **found["vcs_info"])
    return f" @ {found['url']}" if found else ""
