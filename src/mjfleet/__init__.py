"""Train reinforcement-learning policies on MuJoCo-Warp: one CPU, one GPU or a fleet of GPUs."""


def __getattr__(name: str) -> str:
    """Return `__version__` when it is asked for: reading it takes several milliseconds."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import version

    return version(__name__)
