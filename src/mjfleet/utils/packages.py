"""Versions of installed packages, and a clear error for optional ones that are missing."""

from collections.abc import Collection
from importlib.util import find_spec

from mjfleet.errors import UserError

STACK = (
    "mjfleet", "mujoco", "mujoco-warp", "warp-lang", "torch", "rsl-rl-lib", "tensordict",
    "torchrunx", "wandb", "numpy",
)  # fmt: skip


def stack_versions(*more: str) -> dict[str, str]:
    """Return the versions of the packages on which a run's result depends, and of `more`."""
    from importlib.metadata import version  # `--help` does without.

    return {name: version(name) for name in (*STACK, *more)}


def need_extra(extra: str, what: str, packages: Collection[str]) -> None:
    """Refuse `what` if packages of an optional dependency are missing.

    Args:
        extra: its name in pyproject.toml.
        what: the flag that needs it.
        packages: the modules to look for.

    Raises:
        UserError: some are missing; the message says how to install them.
    """
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise UserError(
            f"{what} needs {', '.join(missing)}: `uv sync --extra {extra}` in a clone, "
            f'`pip install "mjfleet[{extra}]"` elsewhere.'
        )
