"""Building an environment: what a task folder may get wrong is refused with one message."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mjfleet.env.factory import build_env
from mjfleet.errors import UserError
from mjfleet.registry import find_task
from mjfleet.sim.unread import read
from mjfleet.tools.new_task import new_task

from .test_env import BUNDLED


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


def test_a_task_that_changes_torchs_default_type_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    new_task(["balance"])
    (file,) = tmp_path.rglob("env.py")
    found, code = find_task("balance", file.parent), file.read_text()
    begin = "        self.target = self.add_state("
    file.write_text(code.replace(begin, f"        torch.set_default_dtype(torch.float64)\n{begin}"))
    try:
        with pytest.raises(UserError, match=r"torch\.float64.*need torch\.float32.*`dtype=`"):
            build_env(found, found.defaults(), "native", "cpu", 1)
    finally:
        torch.set_default_dtype(torch.float32)


def test_room_on_warp_is_what_a_short_run_needs_unless_it_is_given() -> None:
    found = BUNDLED["go1-velocity-flat"]
    config = found.defaults().with_num_envs(4)
    config = replace(config, env=replace(config.env, nconmax=17))
    torch.manual_seed(3)
    env = build_env(found, config, "warp", "cpu", 1)
    numbers = torch.rand(2)
    torch.manual_seed(3)
    assert torch.equal(torch.rand(2), numbers), "the short run has random numbers of its own"
    for _ in range(32):
        env.step(torch.randn_like(env.action))
    assert not any(read(env.unread_warnings())[0].values())
    use = env.sim.buffer_use
    assert use is not None
    assert 1.0 < use.contacts < use.nconmax == 17
    assert 4 < use.constraints < use.njmax < 128
