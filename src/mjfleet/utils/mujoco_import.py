"""Imports mujoco where nothing is drawn, whatever MUJOCO_GL says. Importing this is cheap."""

import os
from importlib import import_module


def import_mujoco() -> None:
    """Import mujoco without what draws, if MUJOCO_GL names a library that cannot be loaded.

    The process that draws videos inherits the variable, and says what is wrong.
    """
    if not (chosen := os.environ.get("MUJOCO_GL")):
        return
    try:
        import_module("mujoco")
    except Exception:  # PyOpenGL raises an AttributeError for a library that is not there.
        if chosen == "disabled":
            raise
        os.environ["MUJOCO_GL"] = "disabled"
        try:
            import_module("mujoco")
        finally:
            os.environ["MUJOCO_GL"] = chosen
