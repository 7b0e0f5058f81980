"""Tasks that `mjfleet new-task --from` makes of ten mechanisms: motors reach what is asked for."""

from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
import torch

import mjfleet
from mjfleet.errors import UserError

from ..conftest import Refusal, run_here
from .made_mechanisms import (
    BARS,
    FOUR_BAR,
    GRIPPER,
    LOOP,
    MECHANISMS,
    SERVO_ARM,
    SPINNING_ARM,
    made,
    rod,
)

pytestmark = pytest.mark.usefixtures("here")

WORLDS, FEW_WORLDS, SECONDS = 64, 16, 4.0
MANY = {"rover": 2 * WORLDS, "servo_arm": 2 * WORLDS}
"""Worlds of mechanisms with three and four numbers a goal, near all of which fewer hardly come."""
NEAR, NEAR_IN_4 = 0.2, 0.5
"""How near to each goal random motions must come, where the range of goals is 2; and where a goal
is four numbers, near all of which so few motions hardly come."""


def make(text: str, name: str = "robot") -> mujoco.MjModel:
    """Make a task of the text of a file; return its model."""
    file = Path(f"{name}.urdf" if "<robot" in text else f"{name}.xml")
    file.write_text(text)
    assert run_here("new-task", name, "--from", str(file)) == 0
    return mujoco.MjModel.from_xml_path(f"tasks/{name}/model.xml")


def goals_of(name: str = "robot") -> tuple[list[str], np.ndarray]:
    """Return what goals.csv of a task has: names of the numbers, and rows."""
    path = Path("tasks", name, "goals.csv")
    rows = np.loadtxt(path, delimiter=",", skiprows=1, ndmin=2)
    return path.read_text().splitlines()[0].split(","), rows


@pytest.mark.parametrize("name", MECHANISMS)
def test_motors_reach_all_goals_and_stay_stable(name: str) -> None:
    make(MECHANISMS[name], name)
    worlds = MANY.get(name, WORLDS)
    draws, reached = torch.Generator().manual_seed(0), list[torch.Tensor]()
    changes = {"episode_seconds": 100.0, "spread": 1.0}
    env: Any
    with mjfleet.make(name, num_envs=worlds, device="cpu", env=changes) as env:
        actions = torch.zeros(worlds, env.num_actions)
        for step in range(round(SECONDS / env.step_dt)):
            # Each is held for some time, at most 2 s; half of the worlds start near home.
            renewed = torch.rand(worlds, generator=draws) < (0.02 if step else 1.0)
            drawn = 2 * torch.rand(actions.shape, generator=draws) - 1
            drawn[::2] *= torch.rand(worlds // 2, 1, generator=draws)
            actions[renewed] = drawn[renewed]
            env.step(actions)
            reached.append((env.goal - env.way() * env.scale) / env.scale)
        wanted, found = (env.goals / env.scale).float(), torch.cat(reached).float()
        assert len(wanted) > 100
        assert (wanted.amax(dim=0) - wanted.amin(dim=0)).amax() == pytest.approx(2.0)
        distances = torch.cdist(wanted, found).amin(dim=1)
        assert distances.max() < (NEAR_IN_4 if env.goals.shape[1] == 4 else NEAR)
        assert not any(env.sim.warnings().values())
    # A new one in each step, in worlds enough for what diverges.
    with mjfleet.make(name, num_envs=FEW_WORLDS, device="cpu", env=changes) as env:
        for _ in range(round(SECONDS / env.step_dt)):
            env.step(2 * torch.rand(env.action.shape, generator=draws) - 1)
            assert env.sim.qvel.abs().max() < 1000.0
        assert not any(env.sim.warnings().values())


def test_a_motor_that_begins_at_an_end_of_its_range_is_asked_to_leave_it() -> None:
    make(GRIPPER)
    _, rows = goals_of()
    near = rows[: len(rows) // 2]  # Which the task uses unless it is told otherwise.
    assert (near > 0.21).mean() > 0.5


def test_a_home_that_breaks_a_coupling_is_mended_and_what_follows_is_named() -> None:
    model = make(GRIPPER)
    drive, follow = model.key("home").qpos
    assert drive == pytest.approx(-follow, abs=1e-3)
    assert 0.2 <= drive + 1e-3 <= 0.8
    readme = Path("tasks/robot/README.md").read_text()
    assert "+0.200 rad or m to `home`" not in readme
    assert "rad or m to `home`, as equality constraints need" in readme
    assert "Is it right that `follow` follows `drive`? It has no motor of its own." in readme
    assert "Which joints have motors?" not in readme
    names, rows = goals_of()
    assert names == ["qpos drive"]
    assert ((rows > 0.19) & (rows < 0.81)).all()


def test_a_coupling_that_no_pose_satisfies_is_refused(refusal: Refusal) -> None:
    never = '<equality><joint joint1="a" joint2="b" polycoef="5 0 0 0 0"/></equality>'
    limited = 'axis="0 1 0" range="-60 60"'
    bodies = rod("a", "0 0 0", "0 0 0.1", about=limited) + rod("b", "0.1 0 0", "0 0 0.1")
    Path("robot.xml").write_text(made(bodies, never))
    message = refusal("new-task", "robot", "--from", "robot.xml")
    assert "satisfies the constraint <joint> of `a` and `b`" in message


def test_a_closed_loop_has_as_many_motors_as_it_can_move_independently() -> None:
    assert make(FOUR_BAR, "bars").nu == 1
    lift = rod("lift", "0 0 0", "0 0 0.1", BARS, 'type="slide" axis="0 0 1" range="0 0.2"')
    model = make(made(lift, LOOP))
    driven = [model.joint(joint).name for joint in model.actuator_trnid[:, 0]]
    assert driven == ["lift", "crank"]


RANGES = {
    '<position joint="a" kp="20"/>': (-0.5, 1.0),
    '<position joint="a" kp="20" gear="-2"/>': (-2.0, 1.0),
    '<position joint="a" kp="20" ctrlrange="0 0.3"/>': (0.0, 0.3),
    '<intvelocity joint="a" kp="20" actrange="-1 1"/>': (-0.75, 0.75),
    '<velocity joint="a" kv="2"/>': (-0.75, 0.75),
    '<motor joint="a" forcerange="-3 3" gear="2"/>': (-3.0, 3.0),
    '<general joint="a" gainprm="4" forcerange="-2 2"/>': (-0.5, 0.5),
    '<position tendon="t" kp="20"/>': (-1.0, 2.0),
}
"""An actuator of a joint of -0.5 to 1 rad, or of a tendon twice that, and its control's range."""


@pytest.mark.parametrize("actuator", RANGES)
def test_a_control_without_a_range_gets_that_of_what_it_moves(actuator: str) -> None:
    rest = f"""<tendon><fixed name="t"><joint joint="a" coef="2"/></fixed></tendon>
      <actuator>{actuator}</actuator>"""
    joint = 'axis="0 1 0" range="-28.6479 57.2958" damping="0.1"'
    model = make(made(rod("a", "0 0 0", "0 0 0.1", about=joint), rest))
    assert model.actuator_ctrllimited.all()
    assert model.actuator_ctrlrange[0] == pytest.approx(RANGES[actuator], abs=1e-3)


def test_the_torque_limit_of_a_joint_is_the_range_of_its_motor() -> None:
    joint = 'axis="0 1 0" range="-60 60" actuatorfrcrange="-3 3"'
    rest = '<actuator><motor joint="a" gear="2"/></actuator>'
    model = make(made(rod("a", "0 0 0", "0 0 0.1", about=joint), rest))
    assert model.actuator_ctrlrange[0] == pytest.approx((-1.5, 1.5))


def test_the_home_of_a_control_that_is_a_speed_is_0() -> None:
    kinds = '<intvelocity joint="a" kp="20" actrange="-1 1"/>', '<position joint="a" kp="20"/>'
    joint = 'axis="0 1 0" range="20 60" damping="0.1"'
    for name, kind, control in zip("ab", kinds, (0.0, np.radians(20)), strict=True):
        rest = f"<actuator>{kind}</actuator>"
        model = make(made(rod("a", "0 0 0", "0 0 0.1", about=joint), rest), name)
        assert model.key("home").ctrl[0] == pytest.approx(control, abs=1e-3)


def test_actuators_that_move_nothing_are_refused(refusal: Refusal) -> None:
    damper = '<actuator><damper joint="a" kv="1" ctrlrange="0 1"/></actuator>'
    bodies = rod("a", "0 0 0", "0 0 -0.1", about='axis="0 1 0" range="-60 60"')
    balls = '<body pos="0 0 1"><joint name="b" type="ball"/><geom size="0.1" pos="0.1 0 0"/></body>'
    motor = '<actuator><motor joint="b" gear="0 1 0"/></actuator>'
    for model in (made(bodies, damper), made(balls, motor)):
        Path("robot.xml").write_text(model)
        assert "its actuators move no joint" in refusal("new-task", "robot", "--from", "robot.xml")


def test_motors_of_a_ball_get_ranges_whatever_axis_they_turn_about() -> None:
    inner = rod("b", "0 0 0.1", "0.1 0 0")
    bodies = rod("a", "0 0 0", "0 0 0.1", inner, 'type="ball"')
    motors = [f'<motor joint="a" gear="{axis}"/>' for axis in ("2 0 0", "0 0 -2")]
    model = make(made(bodies, f'<actuator>{"".join(motors)}<motor joint="b"/></actuator>'))
    assert np.isfinite(model.actuator_ctrlrange).all()
    assert model.actuator_ctrlrange[0] == pytest.approx(model.actuator_ctrlrange[1])


def test_a_column_of_goals_that_are_all_the_same_is_refused() -> None:
    make(SERVO_ARM)
    with pytest.raises(UserError, match=r"of the 1 rows that --env\.spread keeps"):
        mjfleet.make("robot", num_envs=4, device="cpu", env={"spread": 0.001})
    path = Path("tasks/robot/goals.csv")
    path.write_text("x,y,z\n" + "0.1,0.1,0.5\n" * 9)
    with pytest.raises(UserError, match=r"of the \d rows that .* leave the column out"):
        mjfleet.make("robot", num_envs=4, device="cpu")


def test_a_step_of_a_files_own_that_is_too_long_is_shortened() -> None:
    option = '<option timestep="0.02"/>'
    assert make(SERVO_ARM.replace("<mujoco>", f"<mujoco>{option}")).opt.timestep < 0.02
    assert make(SPINNING_ARM, "arm").opt.timestep == pytest.approx(0.002)
