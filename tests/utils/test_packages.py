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


@pytest.mark.parametrize(
    ("has_pip", "pip"),
    [(True, "pip install"), (False, "uv pip install --python '/home/me/a b/.venv'")],
)
def test_a_clone_in_the_environment_of_another_project_stays_there(
    has_pip: bool, pip: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pip", pytest if has_pip else None)
    monkeypatch.setattr(sys, "prefix", "/home/me/a b/.venv")
    assert install_command("viewer") == f"{pip} -e '{REPOSITORY}[viewer]'"


@pytest.mark.parametrize(
    ("origin", "package"),
    [
        (None, "'mjfleet{}'"),
        ('{"url": "file:///home/me/a%20b", "dir_info": {}}', "'mjfleet{} @ file:///home/me/a%20b'"),
        ('{"url": "https://git.lab/mjfleet", "vcs_info": {"vcs": "git", "commit_id": "12ab"}}',
         "'mjfleet{} @ git+https://git.lab/mjfleet@12ab'"),
    ],
)  # fmt: skip
def test_uvx_gets_what_is_missing_by_the_command_itself(
    origin: str | None, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its environment is a part of uv's cache, which no command is to change."""
    records = tmp_path / "mjfleet-1.dist-info"
    records.mkdir()
    (records / "METADATA").write_text("Name: mjfleet\nVersion: 1\n")
    if origin:
        (records / "direct_url.json").write_text(origin)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(packages, "__file__", str(tmp_path / "a/b/c/d.py"))
    monkeypatch.setattr(sys, "prefix", "/home/me/.cache/uv/archive-v0/oqjz7TQhalQ24_bd")
    assert install_command("viewer") == f"uvx --from {package.format('[viewer]')} ..."
    assert install_command() == f"uvx --refresh --from {package.format('')} ..."


def test_a_package_of_no_extra_is_not_installed_by_a_command_of_ours() -> None:
    with pytest.raises(UserError, match=r"task a needs no_such_module, which is not installed\.$"):
        need_extra("", "task a", ["no_such_module"])
