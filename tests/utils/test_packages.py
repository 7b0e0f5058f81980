"""Advice about packages fits how mjfleet was installed."""

from pathlib import Path

import pytest

from mjfleet.errors import UserError
from mjfleet.utils import packages
from mjfleet.utils.packages import install_command, need_extra

from ..conftest import REPOSITORY


@pytest.mark.parametrize(
    ("is_clone", "torch", "whole", "extra"),
    [
        (True, "2.15.0", "uv sync --inexact", "uv sync --inexact --extra viewer"),
        (True, "2.15.0+cpu", f"uv pip install -e '{REPOSITORY}'",
         f"uv pip install -e '{REPOSITORY}[viewer]'"),
        (False, "2.15.0", "pip install --force-reinstall 'mjfleet'",
         "pip install 'mjfleet[viewer]'"),
    ],
)  # fmt: skip
def test_a_command_installs_what_is_missing_where_mjfleet_is(
    is_clone: bool, torch: str, whole: str, extra: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    records = tmp_path / f"torch-{torch}.dist-info"
    records.mkdir()
    (records / "METADATA").write_text(f"Name: torch\nVersion: {torch}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    if not is_clone:
        monkeypatch.setattr(packages, "__file__", str(tmp_path / "a/b/c/d.py"))
    assert install_command() == whole
    with pytest.raises(UserError) as missing:
        need_extra("viewer", "--viewer web", ["no_such_module"])
    assert f"no_such_module: `{extra}`" in str(missing.value)


def test_a_package_of_no_extra_is_not_installed_by_a_command_of_ours() -> None:
    with pytest.raises(UserError, match=r"task a needs no_such_module, which is not installed\.$"):
        need_extra("", "task a", ["no_such_module"])
