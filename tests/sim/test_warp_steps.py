"""What warp has computed of the current state, the next step does not compute again."""

from collections import Counter
from typing import Any

import pytest
import torch

from mjfleet.sim import Simulation, make_simulation

from ..env.test_env import BUNDLED
from .test_contract import MODELS, WORLDS, load

GO1 = BUNDLED["go1-velocity-flat"]
HAVE_CONTACTS = ("box", "go1")
DEVICES = ["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)]


def take_step(sim: Simulation, turn: int) -> None:
    """Do what a step of an environment does, in some turns with writes before the physics."""
    generator = torch.Generator(sim.device).manual_seed(turn)
    own: dict[str, Any] = {"generator": generator, "device": sim.device}
    push = 0.1 * torch.randn(WORLDS, sim.model.nv, **own)
    mask = torch.rand(WORLDS, **own) < 0.1
    sim.ctrl[:] = torch.rand(WORLDS, sim.model.nu, **own)
    if turn % 3 == 1:
        sim.qvel[:, :1] += push[:, :1]
    if turn % 7 == 3:
        sim.qpos[:, -1:].add_(0.01)
    sim.step(1 + turn % 3)
    sim.reset(mask)
    sim.qvel[:] = torch.where(mask.unsqueeze(1), push, sim.qvel)
    sim.forward(mask)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", [*MODELS, "go1"])
def test_a_step_that_computes_nothing_twice_gives_the_same_bits(name: str, device: str) -> None:
    model = GO1.load(GO1.task.env_class).make_model(GO1.task.env) if name == "go1" else load(name)
    options: Any = {"device": device, "deterministic": device != "cpu"}
    fast, whole = (make_simulation("warp", model, WORLDS, **options) for _ in range(2))
    for sim in (fast, whole):  # Fields that are read are kept up to date.
        assert sim.xpos.shape[0] == sim.sensordata.shape[0] == sim.qacc.shape[0] == WORLDS
    steps: Counter[tuple[Any, ...]] = Counter()
    launch: Any = getattr(fast, "launch")  # noqa: B009

    def counted(function: Any, *how: Any) -> None:
        steps.update([how[1:]] if how else [])
        launch(function, *how)

    vars(fast)["launch"] = counted
    with torch.inference_mode():
        for turn in range(28):
            take_step(fast, turn)
            whole.mark_written()
            take_step(whole, turn)
            if device != "cpu" and turn > 3 and name in HAVE_CONTACTS:
                continue  # There sums over contacts differ by rounding, from which worlds drift.
            for key, value in (*fast.state().items(), ("xpos", fast.xpos)):
                other = whole.xpos if key == "xpos" else whole.state()[key]
                if device == "cpu" or name not in HAVE_CONTACTS:
                    assert torch.equal(value, other), (turn, key)
                else:
                    torch.testing.assert_close(value, other, rtol=1e-2, atol=1e-2)
    # 4 steps follow a write of positions, 8 one of velocities alone, 16 none: each in its own way.
    assert sorted(steps.values()) == [4, 8, 16]
