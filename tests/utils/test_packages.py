"""Advice about packages fits how mjfleet was installed."""

import json
import sys
from pathlib import Path

import pytest

from mjfleet.errors import UserError
from mjfleet.utils.packages import find_installation, need_extra

WHEEL = "file:///tmp/mjfleet-0.1.0-py3-none-any.whl"
CLONE = {"url": "file:///home/me/mjfleet", "dir_info": {"editable": True}}


def install(folder: Path, name: str, version: str, **files: str) -> None:
    """What an installer leaves of a package."""
    records = folder / f"{name}-{version}.dist-info"
    records.mkdir(parents=True)
    (records / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
    for file, text in files.items():
        (records / file.replace("_json", ".json")).write_text(text)


@pytest.mark.parametrize(
    ("origin", "installer", "torch", "is_tool", "install_all", "install_extra"),
    [
        (CLONE, "uv", "2.15.0", False, "uv sync --inexact",
         "uv sync --inexact --extra viewer"),
        (CLONE, "uv", "2.15.0+cpu", False, "uv pip install --reinstall -e /home/me/mjfleet",
         "uv pip install -e '/home/me/mjfleet[viewer]'"),
        ({"url": WHEEL}, "uv", "2.15.0", True,
         f"uv tool install --force --reinstall 'mjfleet @ {WHEEL}'",
         f"uv tool install --force 'mjfleet[viewer] @ {WHEEL}'"),
        ({}, "uv", "2.15.0", False, "uv pip install --reinstall mjfleet",
         "uv pip install 'mjfleet[viewer]'"),
        ({"url": WHEEL}, "pip", "2.15.0", False,
         f"{sys.executable} -m pip install --force-reinstall 'mjfleet @ {WHEEL}'",
         f"{sys.executable} -m pip install 'mjfleet[viewer] @ {WHEEL}'"),
    ],
)  # fmt: skip
def test_a_command_installs_what_is_missing_where_mjfleet_is(
    origin: dict[str, object], installer: str, torch: str, is_tool: bool, install_all: str,
    install_extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    install(tmp_path, "mjfleet", "0.1.0", INSTALLER=installer, direct_url_json=json.dumps(origin))
    install(tmp_path, "torch", torch)
    monkeypatch.syspath_prepend(str(tmp_path))
    if is_tool:
        (tmp_path / "uv-receipt.toml").touch()
        monkeypatch.setattr(sys, "prefix", str(tmp_path))
    found = find_installation()
    assert found.command() == install_all
    assert found.command("viewer") == install_extra
    assert ("--compile-bytecode" in found.command(compiles=True)) == (installer == "uv")
    with pytest.raises(UserError) as missing:
        need_extra("viewer", "--viewer web", ["no_such_module"])
    assert f"no_such_module: `{install_extra}`" in str(missing.value)
