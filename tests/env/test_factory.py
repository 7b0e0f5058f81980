"""Building an environment: the room that contacts and constraints get."""

from pathlib import Path
from typing import Any

import mujoco
import pytest
import torch

from mjfleet.env.factory import build_env
from mjfleet.errors import UserError
from mjfleet.registry import find_task

from ..conftest import TESTS, write_task
from .test_env import BUNDLED

GEOM = "<mujoco><worldbody><geom/></worldbody></mujoco>"  # Its size is 0.
NO_FILE = "<mujoco><asset><mesh file='none.obj'/></asset></mujoco>"
BOX_CONFIG = """
from mjfleet.config import EnvConfig, Task
TASKS = {"box": Task(summary="A box.", env=EnvConfig(num_envs=4, nconmax=17), env_class="env:Box")}
"""
BOX_ENV = """
from mjfleet.env import Env


class Box(Env):
    model_file = "model.xml"

    def reset_worlds(self, mask):
        pass

    def apply(self, action):
        self.sim.ctrl[:] = action

    def observe(self):
        return dict.fromkeys(("actor", "critic"), self.sim.qvel)

    def rewards(self):
        return {"speed": self.sim.qvel[:, 2]}
"""
PUSH = '<actuator><motor joint="root" gear="1 0 0 0 0 0"/></actuator></mujoco>'


def test_room_on_warp_is_what_a_short_run_needs_unless_it_is_given(tmp_path: Path) -> None:
    """A box falls onto a floor, which it touches at four points."""
    model = (TESTS / "models/box.xml").read_text().replace("</mujoco>", PUSH)
    found = find_task("box", write_task(tmp_path, "box", BOX_CONFIG, BOX_ENV, model))
    config = found.defaults()
    torch.manual_seed(3)
    env = build_env(found, config, "warp", "cpu", 1)
    numbers = torch.rand(2)
    torch.manual_seed(3)
    assert torch.equal(torch.rand(2), numbers), "the short run has random numbers of its own"
    for _ in range(32):
        env.step(torch.randn_like(env.action))
    assert env.sim.warnings() == {}
    use = env.sim.buffer_use
    assert use is not None
    assert 1.0 < use.contacts < use.nconmax == 17
    assert 4 < use.constraints < use.njmax < 128


def test_a_model_that_is_not_compiled_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    found = BUNDLED["cartpole-balance"]
    kind = found.load(found.task.env_class)
    monkeypatch.setattr(kind, "make_model", classmethod(lambda cls, cfg: mujoco.MjSpec()))
    with pytest.raises(UserError, match=r"make_model\(\) returns MjSpec; .* spec.compile\(\)"):
        build_env(found, found.defaults(), "native", "cpu", 1)


@pytest.mark.parametrize("text", ["<mujoco", "<mujoco><worldbody nme=''/></mujoco>", GEOM, NO_FILE])
def test_a_model_that_mujoco_refuses_is_one_message(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = BUNDLED["cartpole-balance"]
    kind = found.load(found.task.env_class)

    def make(cls: Any, cfg: Any) -> mujoco.MjModel:
        return mujoco.MjModel.from_xml_string(text)

    monkeypatch.setattr(kind, "make_model", classmethod(make))
    with pytest.raises(UserError, match=r"make_model\(\), .*test_factory.py, line \d+: .*rror"):
        build_env(found, found.defaults(), "native", "cpu", 1)
