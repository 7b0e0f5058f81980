"""Building an environment: the room that contacts and constraints get."""

from dataclasses import replace
from typing import Any

import mujoco
import pytest
import torch

from mjfleet.env.factory import build_env
from mjfleet.errors import UserError

from .test_env import BUNDLED

GEOM = "<mujoco><worldbody><geom/></worldbody></mujoco>"  # Its size is 0.
NO_FILE = "<mujoco><asset><mesh file='none.obj'/></asset></mujoco>"


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
