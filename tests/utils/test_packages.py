"""Advice about packages fits how mjfleet was installed."""

import sys
from pathlib import Path

import pytest

from mjfleet.errors import UserError
from mjfleet.utils import packages
from mjfleet.utils.packages import install_command, need_extra

from ..conftest import REPOSITORY


@pytest.mark.parametrize(
    ("is_clone", "has_pip", "torch", "whole", "extra"),
    [
        (True, False, "2.15.0", "uv sync --inexact", "uv sync --inexact --extra viewer"),
        (True, False, "2.15.0+cpu", f"uv pip install -e '{REPOSITORY}'",
         f"uv pip install -e '{REPOSITORY}[viewer]'"),
        (False, True, "2.15.0", "pip install --force-reinstall 'mjfleet'",
         "pip install 'mjfleet[viewer]'"),
        (False, False, "2.15.0",
         f"uv pip install --python {sys.prefix} --force-reinstall 'mjfleet'",
         f"uv pip install --python {sys.prefix} 'mjfleet[viewer]'"),
    ],
)  # fmt: skip
def test_a_command_installs_what_is_missing_where_mjfleet_is(
    is_clone: bool, has_pip: bool, torch: str, whole: str, extra: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    records = tmp_path / f"torch-{torch}.dist-info"
    records.mkdir()
    (records / "METADATA").write_text(f"Name: torch\nVersion: {torch}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, "pip", pytest if has_pip else None)
    if not is_clone:
        monkeypatch.setattr(packages, "__file__", str(tmp_path / "a/b/c/d.py"))
    assert install_command() == whole
    with pytest.raises(UserError) as missing:
        need_extra("viewer", "--viewer web", ["no_such_module"])
    assert f"no_such_module: `{extra}`" in str(missing.value)


def test_a_package_of_no_extra_is_not_installed_by_a_command_of_ours() -> None:
    with pytest.raises(UserError, match=r"task a needs no_such_module, which is not installed\.$"):
        need_extra("", "task a", ["no_such_module"])
