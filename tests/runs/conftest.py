"""These tests start real processes too, as a user who has begun no run yet."""

from pathlib import Path

import pytest

from ..launch.conftest import nothing_is_left

__all__ = ["nothing_is_left"]


@pytest.fixture(autouse=True)
def state(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The state folder of a user, empty."""
    folder = tmp_path_factory.mktemp("state")
    monkeypatch.setenv("XDG_STATE_HOME", str(folder))
    return folder
