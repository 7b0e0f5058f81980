"""Imports mujoco where nothing is drawn, whatever MUJOCO_GL says. Importing this is cheap."""

import os
import sys
from importlib import import_module

LIBRARIES = {"egl": ("OpenGL.EGL",), "osmesa": ("OpenGL.GL", "OpenGL.osmesa")}
"""What mujoco imports for a value of MUJOCO_GL; for others it imports nothing that may fail."""
OTHERS = (
    "", "0", "1", "disable", "disabled", "enable", "enabled", "false", "glfw", "glx", "off", "on",
    "true",
)  # fmt: skip


def import_mujoco() -> None:
    """Import mujoco without what draws, if MUJOCO_GL names a library that cannot be loaded.

    Importing mujoco would raise an error. Videos are drawn by a process of their own: it inherits
    the variable, and says what is wrong.
    """
    chosen = os.environ.get("MUJOCO_GL", "")
    if "mujoco" in sys.modules or _can_be_imported(chosen.lower().strip()):
        return
    os.environ["MUJOCO_GL"] = "disabled"
    try:
        import_module("mujoco")
    finally:
        os.environ["MUJOCO_GL"] = chosen


def _can_be_imported(backend: str) -> bool:
    if backend not in LIBRARIES:
        return backend in OTHERS
    os.environ.setdefault("PYOPENGL_PLATFORM", backend)  # As mujoco does.
    try:
        for library in LIBRARIES[backend]:
            import_module(library)
    except Exception:  # PyOpenGL raises an AttributeError for a library that is not there.
        return False
    return True
