"""These tests start real processes too."""

from ..launch.conftest import nothing_is_left

__all__ = ["nothing_is_left"]
