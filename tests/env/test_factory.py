"""Building an environment: what a task folder may get wrong is refused with one message."""

from pathlib import Path

import pytest

from mjfleet.env.factory import build_env
from mjfleet.errors import UserError
from mjfleet.registry import find_task
from mjfleet.tools.new_task import new_task


def test_a_method_that_has_been_renamed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    new_task(["balance"])
    (file,) = tmp_path.rglob("env.py")
    build = find_task("balance", file.parent)
    build_env(build, build.defaults(), "native", "cpu", 1)
    other = tmp_path / "tasks" / "other"
    file.parent.rename(other)
    code = (other / "env.py").read_text()
    (other / "env.py").write_text(code + "\n    def arrows(self):\n        return {}\n")
    found = find_task("balance", other)
    with pytest.raises(UserError, match=r"arrows\(\).*debug_vis\(\)"):
        build_env(found, found.defaults(), "native", "cpu", 1)
