"""`mjfleet new-task --from`: a task from a robot's own file; what it refuses leaves nothing."""

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import chdir, redirect_stdout
from functools import cache
from io import StringIO
from pathlib import Path

import mujoco
import numpy as np
import pytest

from mjfleet.legged.config import RoughVelocityConfig, VelocityConfig
from mjfleet.registry import discover
from mjfleet.tools.check_task.examine import examine, on_native

from ..conftest import REPOSITORY, Output, Refusal, only_run, rows, run_here
from .own_robots import (
    BIPED,
    CART,
    HAND,
    LEGS,
    PELVIS,
    QUADRUPED,
    leg,
    urdf_arm,
    urdf_joint,
    urdf_link,
    write_obj,
    write_robots,
    write_stl,
)

KINDS = {
    "quadruped": ("legged", 12), "biped": ("legged", 10), "arm": ("reach", 4),
    "fixed": ("reach", 4), "hand": ("pose", 10), "cart": ("pose", 4), "closed": ("pose", 4),
}  # fmt: skip
"""The kind of task of each robot, and its number of actions."""
MARKS = {"legged": "(RoughVelocityEnv", "reach": "places that the motors", "pose": "self.wheels ="}
"""What only the environment of a kind has."""
FEET = ("FR", "FL", "RR", "RL")


pytestmark = pytest.mark.usefixtures("here")


def make(name: str, file: Path | str) -> Path:
    """Make a task; return its folder."""
    assert run_here("new-task", name, "--from", str(file)) == 0
    return Path("tasks", name)


@cache
def made_once(name: str) -> tuple[Path, str]:
    """Make a task of one of own_robots.py, then move its source away; return the folder that has
    both, and what was printed."""
    folder = Path(tempfile.mkdtemp())
    with chdir(folder), redirect_stdout(StringIO()) as printed:
        make(name, write_robots(Path("sources"))[name])
        Path("sources").rename("moved")
    return folder, printed.getvalue()


def make_own(name: str) -> Path:
    """Copy the task of one of own_robots.py; return the copy."""
    folder, _ = made_once(name)
    return Path(shutil.copytree(folder / "tasks" / name, Path("tasks", name)))


def make_of(text: str, name: str = "robot", kind: str = "xml") -> Path:
    """Make a task of the text of a file."""
    Path(f"robot.{kind}").write_text(text)
    return make(name, f"robot.{kind}")


def two_links(one: str, other: str, is_arm: bool = True) -> str:
    """Return an MJCF with two hinges of these names, one after the other or side by side."""
    link = '<joint axis="0 0 1" range="-90 90" name="{}"/><geom size=".02" fromto="0 0 0 .2 0 0"/>'
    first, second = (link.format(name).replace(' name=""', "") for name in (one, other))
    between = "" if is_arm else "</body>"
    return f"""<mujoco><default><geom type="capsule"/></default><worldbody>
      <body name="frame" pos="0 0 0.5"><geom type="sphere" size="0.02"/>
        <body name="left" pos="0 0.1 0">{first}{between}
          <body pos="0.2 0 0">{second}</body>{"</body>" * is_arm}</body></worldbody></mujoco>"""


def model_of(folder: Path) -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_path(str(folder / "model.xml"))


def mistakes_on_native(name: str) -> list[str]:
    return [finding.text for finding in on_native(discover({}).tasks[name])]


@pytest.mark.parametrize("name", KINDS)
def test_each_robot_becomes_a_task_of_the_right_kind_without_mistakes(
    tmp_path: Path, name: str
) -> None:
    kind, actions = KINDS[name]
    (made, printed), folder = made_once(name), make_own(name)
    assert [each for each, text in MARKS.items() if text in (folder / "env.py").read_text()] == [
        kind
    ]
    assert folder.stat().st_mode == folder.parent.stat().st_mode
    model, readme = model_of(folder), (folder / "README.md").read_text()
    assert model.nu == actions == discover({}).tasks[name].task.num_actions
    assert model.key("home").qpos.shape == (model.nq,)
    assert model.geom("floor").type == mujoco.mjtGeom.mjGEOM_PLANE
    assert model.nlight
    is_free = kind != "reach" and name != "hand"
    assert (mujoco.mjtJoint.mjJNT_FREE in model.jnt_type) == is_free
    # What was added and what is asked is printed, and is in README.md.
    for line in printed.splitlines():
        said = line.partition(": ")[2] if line.startswith(("added", "to answer")) else ""
        assert said in readme
    assert printed.count("\nadded: ") > 4
    assert f"mjfleet check-task {name}\n" in printed
    # The source is as it was, and is not needed any more.
    write_robots(tmp_path / "sources")
    before, after = (
        {path.relative_to(root): path.read_bytes() for path in root.rglob("*") if path.is_file()}
        for root in (tmp_path / "sources", made / "moved")
    )
    assert after == before
    assert mistakes_on_native(name) == []


@pytest.mark.parametrize(
    "name",
    ["arm", *(pytest.param(name, marks=pytest.mark.slow) for name in KINDS if name != "arm")],
)
def test_tasks_have_no_mistakes_on_both_engines_and_train(
    output: Output, tmp_path: Path, name: str
) -> None:
    make_own(name)
    assert not examine(discover({}).tasks[name], "cpu")
    output("train", name, "--agent.max-iterations", "2", "--num-envs", "16", "--gpu-ids", "None")
    assert len(rows(only_run(tmp_path, name))) == 2


@pytest.mark.slow
def test_an_arm_learns_to_reach(output: Output, tmp_path: Path) -> None:
    make_own("arm")
    output("train", "arm", "--gpu-ids", "None", "--agent.max-iterations", "60")
    learned = rows(only_run(tmp_path, "arm"))
    assert float(learned[0]["mean_reward"]) < 0 < float(learned[-1]["mean_reward"])
    assert float(learned[-1]["task/final_distance"]) < 0.3  # The farthest goals are 1 away.


@pytest.mark.slow
# A quadruped that only stands has 0.51 m/s and 1.44 rad/s, a biped 0.5 m/s.
@pytest.mark.parametrize(
    ("name", "velocity", "yaw"), [("quadruped", 0.38, 0.7), ("biped", 0.4, 2.0)]
)
def test_robots_on_legs_learn_to_walk(
    name: str, velocity: float, yaw: float, output: Output, tmp_path: Path
) -> None:
    make_own(name)
    output("train", name, "--gpu-ids", "None", "--agent.max-iterations", "300")
    learned = rows(only_run(tmp_path, name))
    assert float(learned[-1]["task/velocity_error"]) < velocity
    assert float(learned[-1]["task/yaw_error"]) < yaw


def stand(model: mujoco.MjModel, seconds: float) -> tuple[mujoco.MjData, float]:
    """Stand in the home; return what is then, and the height as a share of that at the start."""
    data = mujoco.MjData(model)
    mujoco.mj_resetDataKeyframe(model, data, 0)
    height = data.qpos[2].item()
    mujoco.mj_step(model, data, round(seconds / model.opt.timestep))
    return data, data.qpos[2] / height


def test_robots_on_legs_stand_in_their_home() -> None:
    for name, seconds in (("quadruped", 2.0), ("closed", 2.0), ("biped", 0.5)):
        model = model_of(make_own(name))
        data, height = stand(model, seconds)
        assert height > 0.9
        assert data.xmat[model.jnt_bodyid[0], 8] > 0.98
        assert (model.geom_group[model.geom_bodyid > 0] > 0).all()  # Rays see the ground, in 0.
        advice = Path("tasks", name, "README.md").read_text()
        assert ("until it topples" in advice) == (name == "biped")


def test_legs_bend_as_their_ranges_let_them_with_feet_below_hips() -> None:
    for name, joints, share in (("quadruped", 3, 0.7), ("biped", 5, 0.95)):
        model = model_of(make_own(name))
        data, legs = mujoco.MjData(model), model.key_qpos[0, 7:].reshape(-1, joints)
        low, high = model.jnt_range[1:].T.reshape(2, -1, joints)
        assert ((low <= legs) & (legs <= high)).all()
        assert np.abs(legs - legs[0]).max() < 1e-3  # Mirror images.
        foot = int(model.body_geomadr[model.jnt_bodyid[joints]]) + (joints == 3)
        below_hip = []
        for angles in (np.zeros(model.nu), legs.ravel()):
            data.qpos[7:] = angles
            mujoco.mj_kinematics(model, data)
            below_hip.append(data.geom_xpos[foot] - data.xanchor[1])
        assert below_hip[1] == pytest.approx(below_hip[0] * (1, 1, share), abs=0.005)
    # Nothing tells how a leg bends: it stays straight, and the question says so.
    text = QUADRUPED.replace('range="-150 -20"', 'range="-100 100"')
    straight = make_of(text.replace("-60 120", "-90 90"), "straight")
    assert not model_of(straight).key_qpos[0, 7:].any()
    assert "bend legs; joints are at 0" in (straight / "README.md").read_text()


def test_a_leg_of_four_joints_without_an_ankle_bends() -> None:
    text = QUADRUPED
    for name in FEET:
        roll = f'<joint name="{name}_roll"'
        yaw = f'<joint name="{name}_yaw" axis="0 0 1" range="-40 40"/>'
        text = text.replace(roll, yaw + roll)
    legs = model_of(make_of(text)).key_qpos[0, 7:].reshape(4, 4)
    assert np.abs(legs[:, :2]).max() < 0.2
    assert legs[:, 2:] == pytest.approx(np.tile((0.8, -1.6), (4, 1)), abs=0.1)


def test_a_very_small_robot_stands_with_a_shorter_physics_step() -> None:
    def scaled(factor: float) -> Callable[[re.Match[str]], str]:
        return lambda found: " ".join(
            [f'{found[1]}="', *(f"{factor * float(x):.5g}" for x in found[2].split()), '"']
        )

    text = re.sub(r'(pos|size|fromto)="([^"]*)"', scaled(0.05), QUADRUPED)
    text = re.sub(r'(mass)="([^"]*)"', scaled(1e-4), text)
    data, height = stand(model_of(make_of(text)), 2.0)
    assert 0.8 < height <= 1.0
    assert not any(warning.number for warning in data.warning)


def test_a_frame_below_the_base_does_not_hide_legs(tmp_path: Path) -> None:
    file = write_robots(tmp_path / "sources")["biped"]
    frame = '<link name="map"/><link name="base_footprint"></link>'
    frame += urdf_joint("up", "base_footprint", "pelvis", "0 0 0.8")
    frame += urdf_joint("on", "map", "base_footprint", "0 0 0")
    file.write_text(BIPED.replace("</robot>", f"{frame}</robot>"))
    folder = make("biped", file)
    assert 'base = "pelvis"' in (folder / "env.py").read_text()
    readme = (folder / "README.md").read_text()
    assert "Is the frame `map` needed?" in readme
    assert "Is the frame `base_footprint` needed?" in readme


def test_a_robot_that_is_turned_stands_on_the_same_legs() -> None:
    legs = leg("R", 0, -0.06) + leg("L", 0, 0.06)
    turned = '<body name="body" quat="0.7071 0 0 0.7071" pos="0 0 0.4">'
    text = QUADRUPED.replace(LEGS, legs).replace('<body name="body" pos="0 0 0.4">', turned)
    assert MARKS["legged"] in (make_of(text) / "env.py").read_text()


def test_feet_do_not_depend_on_ground_of_the_files_own() -> None:
    ground = '<worldbody><geom name="ground" type="box" size="9 9 0.1" pos="0 0 -0.1"/>'
    folder = make_of(QUADRUPED.replace("<worldbody>", ground))
    assert '"FR_calf_foot"' in (folder / "env.py").read_text()
    assert "beside the robot, `ground`, needed?" in (folder / "README.md").read_text()


SPHERE = '<geom type="sphere" size="0.02" pos="0 0 -0.15" mass="0.05"/>'
TOE = f"""{SPHERE}<body pos="0 0 -0.15"><geom type="sphere" size="0.02" mass="0.05"/>
    <joint {{}}/></body>"""
ASKED = {
    "legs that lie": (HAND, "Does it stand on legs? It does not with joints at 0, and `palm` is "
                      "fixed to the world"),
    "passive feet": (QUADRUPED.replace(SPHERE, TOE.format('type="slide" range="-0.02 0" '
                     'axis="0 0 1" stiffness="8000"')), "Which joints have motors? `joint_"),
    "toes": (QUADRUPED.replace(SPHERE, TOE.format('axis="0 1 0" range="-5 5"')),
             "May `FR_calf`, `FL_calf`, `RR_calf`, `RL_calf` touch the ground, too?"),
    "what touches": (QUADRUPED.replace('mass="4"', 'mass="4" contype="2"'),
                     "Which of its own parts may it touch?"),
    "keyframes": (QUADRUPED.replace("</mujoco>", f"""<keyframe><key name="up" qpos="{'0 ' * 12}"/>
                  <key name="home" qpos="{'0 ' * 12}"/></keyframe></mujoco>"""),
                  "Is the keyframe `up` needed? It is left out."),
    "legs without ranges": (re.sub(r' range="[^"]*"', "", QUADRUPED),
                            "Are `FR_roll`, `FR_pitch`, `FL_roll`"),
}  # fmt: skip


@pytest.mark.parametrize("case", ASKED)
def test_what_a_file_does_not_say_is_asked(case: str) -> None:
    text, question = ASKED[case]
    assert question in (make_of(text) / "README.md").read_text()


def test_feet_are_found_and_named() -> None:
    quadruped, biped = ((make_own(n) / "env.py").read_text() for n in ("quadruped", "biped"))
    assert re.findall('"(.*_foot)",', quadruped) == [f"{leg}_calf_foot" for leg in FEET]
    assert re.findall('"(.*_foot)",', biped) == ["left_foot", "right_foot"]
    assert 'base = "pelvis"' in biped
    assert "class FlatEnv(BipedEnv):" in biped


def test_gains_follow_from_the_limits_of_a_file_and_else_from_mass() -> None:
    biped = model_of(make_own("biped"))
    assert (biped.actuator_forcerange[:, 1] == 40).all()
    assert biped.actuator("left_knee_joint").gainprm[0] == pytest.approx(40 / 0.25)
    quadruped = make_own("quadruped")
    torque = model_of(quadruped).actuator_forcerange[:, 1]
    weight = 9.81 * model_of(quadruped).body("body").subtreemass[0]
    assert (torque > 0.05 * weight).all()  # N·m, with legs of 0.3 m.
    assert (torque < 0.3 * weight).all()
    assert "What torque" in (quadruped / "README.md").read_text()


@pytest.mark.parametrize("armature", [0.0, 1.0])
def test_accelerations_of_joints_without_armature_cost_no_more_than_others(armature: float) -> None:
    model = model_of(make_of(QUADRUPED.replace("<joint ", f'<joint armature="{armature}" ')))
    config = discover({}).tasks["robot"].task.env
    assert isinstance(config, VelocityConfig)
    weight, least = config.weights.acceleration, -1e-7
    most = np.square(model.actuator_forcerange[:, 1] * model.dof_invweight0[6:]).sum()
    assert weight == (least if armature else pytest.approx(-24 / most, rel=0.5))
    assert least * most > -24 if armature else least * most < -24


@pytest.mark.parametrize(
    ("name", "legs", "entropy"), [("quadruped", 0.32, 0.006), ("biped", 0.66, 0.001)]
)
def test_rough_ground_is_as_high_as_legs_are_long(name: str, legs: float, entropy: float) -> None:
    make_own(name)
    task = discover({}).tasks[f"{name}-rough"].task
    assert isinstance(task.env, RoughVelocityConfig)
    assert task.env.terrain_scale == pytest.approx(legs / 0.4, rel=0.15)  # docs/tasks.md
    assert task.agent.ppo.entropy_coef == pytest.approx(entropy)


def test_a_heavy_robot_has_weights_that_are_not_0() -> None:
    text = re.sub('mass="([^"]*)"', lambda found: f'mass="{300 * float(found[1])}"', QUADRUPED)
    make_of(text)
    config = discover({}).tasks["robot"].task.env
    assert isinstance(config, VelocityConfig)
    weights = config.weights
    assert max(weights.torque, weights.power, weights.acceleration) < 0


def test_motors_become_controllers_for_legs_with_their_own_limits() -> None:
    names = [f"{leg}_{part}" for leg in FEET for part in ("roll", "pitch", "knee")]
    motors = "".join(f'<motor joint="{name}" gear="2" ctrlrange="-7 7"/>' for name in names[::-1])
    folder = make_of(QUADRUPED.replace("</mujoco>", f"<actuator>{motors}</actuator></mujoco>"))
    model = model_of(folder)
    assert model.actuator_trnid[:, 0].tolist() == list(range(1, 13))
    assert (model.actuator_forcerange[:, 1] == 14).all()
    assert (model.actuator_gainprm[:, 0] == -model.actuator_biasprm[:, 1]).all()
    assert "12 actuators in place of 12 others" in (folder / "README.md").read_text()


def test_controllers_without_damping_get_some_and_a_keyframe_their_controls() -> None:
    names = [f"{leg}_{part}" for leg in FEET for part in ("roll", "pitch", "knee")]
    motors = "".join(f'<position joint="{name}" kp="30"/>' for name in names)
    angles = "0 0.8 -1.6 " * 4
    more = f"""<actuator>{motors}</actuator>
      <keyframe><key qpos="0 0 0.3 1 0 0 0 {angles}" ctrl="{"0.1 " * 12}"/></keyframe></mujoco>"""
    text = QUADRUPED.replace('pos="0 0 0.4">', 'pos="0 0 0.4"><freejoint/>')
    folder = make_of(text.replace("</mujoco>", more))
    assert MARKS["legged"] in (folder / "env.py").read_text()
    model = model_of(folder)
    assert (model.actuator_gainprm[:, 0] == 30).all()
    assert (model.actuator_biasprm[:, 2] < 0).all()
    assert model.key_ctrl[0] == pytest.approx(model.key_qpos[0, 7:])


def test_a_model_that_lacks_nothing_stays_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    source = REPOSITORY / "tasks/go2/go2.xml"
    folder = make("mine", source)
    (mine, go2) = model_of(folder), mujoco.MjModel.from_xml_path(str(source))
    for name in ("actuator_gainprm", "actuator_biasprm", "jnt_range", "dof_armature", "body_mass"):
        assert getattr(mine, name) == pytest.approx(getattr(go2, name), rel=1e-5)
    assert mine.key("home").qpos == pytest.approx(go2.key("home").qpos, abs=1e-3)
    printed = capsys.readouterr().out
    assert "to answer" not in printed
    assert printed.count("added: ") == 2  # Ground and sensors.


def test_closed_loops_have_motors_near_the_base_and_a_question() -> None:
    folder = make_own("closed")
    model = model_of(folder)
    driven = [model.joint(joint).name for joint in model.actuator_trnid[:, 0]]
    assert driven == ["left_front", "left_back", "right_front", "right_back"]
    readme = (folder / "README.md").read_text()
    assert "Which joints have motors? `left_shin`, `left_link`, `right_shin`" in readme
    assert "each hinge needs one actuator" in readme


def test_a_link_that_follows_another_has_no_motor(tmp_path: Path) -> None:
    mimic = '<mimic joint="joint1" multiplier="2"/>'
    text = urdf_arm("meshes/a.stl").replace(
        '<child link="link2"/>', f'<child link="link2"/>{mimic}'
    )
    write_stl(tmp_path / "meshes/a.stl")
    model = model_of(make_of(text, kind="urdf"))
    assert [model.actuator(i).name for i in range(model.nu)] == ["joint0", "joint1", "joint3"]
    assert model.neq == 1


def test_a_urdf_keeps_its_links_and_what_it_does_not_weigh_has_no_mass(tmp_path: Path) -> None:
    file = write_robots(tmp_path / "sources")["biped"]
    light = urdf_link("marker", 1, '<sphere radius="0.1"/>')
    light = light[: light.index("<inertial>")] + light[light.index("</inertial>") + 11 :]
    text = BIPED.replace(
        "</robot>", light + urdf_joint("m", "pelvis", "marker", "0 0 0.2") + "</robot>"
    )
    file.write_text(text)
    model = model_of(make("biped", file))
    names = {model.body(i).name for i in range(model.nbody)}
    assert {"pelvis", "imu", "marker", "left_foot"} <= names
    assert model.body("pelvis").mass[0] == 8
    assert model.body("marker").mass[0] == 0


def test_a_fixed_base_stays_fixed_and_is_asked_about(tmp_path: Path) -> None:
    mount = '<link name="world"/>' + urdf_joint("mount", "world", "pelvis", "0 0 0.8")
    file = write_robots(tmp_path / "sources")["biped"]
    file.write_text(BIPED.replace("</robot>", f"{mount}</robot>"))
    folder = make("biped", file)
    assert mujoco.mjtJoint.mjJNT_FREE not in model_of(folder).jnt_type
    assert "The file fixes it to the world." in (folder / "README.md").read_text()


def test_meshes_are_found_beside_the_file_and_copied_in_their_folders(tmp_path: Path) -> None:
    write_obj(tmp_path / "visual/link.obj")
    write_obj(tmp_path / "collision/link.obj", 0.06)
    one, other = (f"package://own_arm/{kind}/link.obj" for kind in ("visual", "collision"))
    text = other.join(urdf_arm(one).rsplit(one, 1))
    folder = make_of(text, kind="urdf")
    copies = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.obj"))
    assert copies == ["collision/link.obj", "visual/link.obj"]
    assert model_of(folder).nmesh == 2
    # A package with other folders, of which only the meshes were copied beside the file.
    write_obj(tmp_path / "meshes/deep.obj")
    deep = urdf_arm("package://other/deep/deep.obj")
    assert model_of(make_of(deep, "arm", "urdf")).nmesh == 1


@pytest.mark.parametrize("stripped", ["", 'strippath="true" '])
def test_an_mjcf_with_includes_and_folders_of_meshes_becomes_one_file(
    tmp_path: Path, stripped: str
) -> None:
    mesh = "assets/shell.stl" if stripped else "assets/deep/shell.stl"
    write_stl(tmp_path / mesh)
    text = HAND.replace("<worldbody>", f'<compiler {stripped}meshdir="assets"/><asset><mesh '
                        'name="shell" file="deep/shell.stl"/></asset><worldbody>')  # fmt: skip
    text = text.replace('<geom type="box" size="0.04 0.04 0.015" mass="0.3"/>',
                        '<geom type="mesh" mesh="shell" mass="0.3"/>')  # fmt: skip
    (tmp_path / "hand.xml").write_text(text)
    (tmp_path / "scene.xml").write_text(
        '<mujoco><include file="hand.xml"/><worldbody><geom name="table" type="plane" '
        'size="1 1 0.1"/><light pos="0 0 2"/></worldbody></mujoco>'
    )
    folder = make("hand", tmp_path / "scene.xml")
    model = model_of(folder)
    assert (folder / mesh).is_file()
    assert model.nmesh == 1
    assert (model.geom_type == mujoco.mjtGeom.mjGEOM_PLANE).sum() == 1
    assert model.nlight == 1


SPHERES = urdf_arm().replace('<mesh filename="meshes/link.obj"/>', '<sphere radius="0.04"/>')
"""An arm without meshes."""


def test_comments_and_tags_of_other_programs_may_be_as_mujoco_reads_them() -> None:
    comment = "<!-- ---- from <robot> ---- -->"
    assert model_of(make_of(HAND.replace("<worldbody>", comment + "<worldbody>"), "hand")).nu
    text = SPHERES.replace("</robot>", f"{comment}<sensor:camera>0</sensor:camera></robot>")
    assert model_of(make_of(text, kind="urdf")).nu == 4


def test_a_urdf_is_read_in_the_encoding_that_it_names() -> None:
    text = SPHERES.replace("1.0", '1.0" encoding="ISO-8859-1', 1).replace("own", "\xe4")
    Path("robot.urdf").write_bytes(text.encode("latin-1"))
    assert model_of(make("arm", "robot.urdf")).nu == 4


def test_names_of_any_characters_become_a_task_that_steps(output: Output) -> None:
    site = '<site name="to\\ol&quot;s"/></body></body></body>'
    steps = ("--actions", "zero", "--episodes", "1", "--env.num-envs", "1")
    make_of(two_links("关节, 1", "ellbö").replace("</body></body></body>", site))
    output("play", "robot", *steps)
    make_of(two_links("关节, 1", "ellbö", is_arm=False), "pose")
    output("play", "pose", *steps)


def test_what_has_no_name_gets_one_that_nothing_else_has() -> None:
    robot = two_links("joint_1", "", is_arm=False).replace('"left"', '"body_2"')
    motors = '<actuator><motor joint="joint_1" name="actuator_1"/><motor joint="joint_1_"/>'
    model = model_of(make_of(robot.replace("</mujoco>", f"{motors}</actuator></mujoco>")))
    assert [model.body(i).name for i in range(1, 4)] == ["frame", "body_2", "body_2_"]
    assert [model.joint(i).name for i in range(2)] == ["joint_1", "joint_1_"]
    assert [model.actuator(i).name for i in range(2)] == ["actuator_1", "actuator_1_"]


def test_a_keyframe_of_a_robot_that_gets_a_free_joint_keeps_its_place_and_what_lies_around() -> (
    None
):
    cube = (
        '<body name="cube" pos="1 1 0.05"><freejoint/><geom type="box" size=".05 .05 .05"/></body>'
    )
    turned = QUADRUPED.replace(
        'name="body" pos="0 0 0.4"', 'name="body" pos="0 3 0.4" euler="0 0 90"'
    )
    numbers = "1 2 0.05 1 0 0 0" + " 0" * 12
    keyframe = f'<keyframe><key name="home" qpos="{numbers}"/></keyframe></mujoco>'
    robot = turned.replace("<worldbody>", f"<worldbody>{cube}").replace("</mujoco>", keyframe)
    home = model_of(make_of(robot)).key("home").qpos
    assert home[:7] == pytest.approx([1, 2, 0.05, 1, 0, 0, 0])
    assert home[7:9] == pytest.approx([0, 3])
    assert home[10:14] == pytest.approx([0.5**0.5, 0, 0, 0.5**0.5], abs=1e-4)


def test_sensors_of_motors_that_are_replaced_are_those_of_the_new_ones() -> None:
    joints = re.findall(r'joint name="(\w+)"', QUADRUPED)
    late = 'dyntype="filterexact" dynprm="0.02" gainprm="20" ctrlrange="-1 1"'
    motors = "".join(f'<general name="m_{j}" joint="{j}" {late}/>' for j in joints)
    sensors = "".join(f'<actuatorfrc name="s_{j}" actuator="m_{j}"/>' for j in joints)
    rest = f"<actuator>{motors}</actuator><sensor>{sensors}</sensor><keyframe>"
    rest += f'<key name="home" qpos="{"0 " * 12}" act="{"0 " * 12}"/></keyframe></mujoco>'
    model = model_of(make_of(QUADRUPED.replace("</mujoco>", rest)))
    assert model.nu == 12
    for name in joints:
        assert model.actuator(model.sensor(f"s_{name}").objid[0]).name == name


def test_a_wall_is_no_ground() -> None:
    wall = '<geom name="wall" type="plane" size="1 1 0.1" pos="2 0 0" zaxis="-1 0 0"/>'
    robot = two_links("one", "other").replace("<worldbody>", f"<worldbody>{wall}")
    folder = make_of(robot)
    model, data = model_of(folder), mujoco.MjData(model_of(folder))
    mujoco.mj_kinematics(model, data)
    up = {model.geom(i).name: data.geom_xmat[i, 8] for i in range(2)}
    assert up == pytest.approx({"wall": 0.0, "floor": 1.0})
    assert "has beside the robot, `wall`, needed?" in (folder / "README.md").read_text()


def test_what_is_written_is_formatted_and_has_no_lint() -> None:
    for name in KINDS:
        make_own(name)
    ruff, rules = [sys.executable, "-m", "ruff"], ["--isolated", "--line-length", "100"]
    for command in (["check", "--select", "E,F,W,B,UP,PIE"], ["format", "--diff"]):
        done = subprocess.run([*ruff, *command, *rules, "tasks"], check=False, capture_output=True)
        assert done.returncode == 0, done.stdout.decode()


Change = Callable[[Path], object]


def text_of(name: str, text: str) -> Change:
    return lambda folder: (folder / name).write_text(text)


TWO = QUADRUPED.replace("</worldbody>", HAND.split("<worldbody>")[1].split("</mujoco>")[0])
REFUSALS: dict[str, tuple[str, Change, str]] = {
    "no file": ("nothing.xml", lambda _: None, "'nothing.xml'; there is no such file"),
    "no XML": ("robot.xml", text_of("robot.xml", "<mujoco>\n<body"), "robot.xml: .*Line number=2"),
    "not text": (
        "robot.xml", lambda folder: (folder / "robot.xml").write_bytes(b"\xff\xfe\x00"), "robot.xml"
    ),
    "does not compile": (
        "robot.xml", text_of("robot.xml", QUADRUPED.replace('size="0.03"', 'size="-1"', 1)),
        "geom . of the body `FR_hip`, line 7: size 0 must be positive in geom"
    ),
    "two robots": (
        "robot.xml", text_of("robot.xml", TWO), "2 robots .* 'body', 'palm'; --robot names one"
    ),
    "a link without mass": (
        "robot.urdf",
        text_of("robot.urdf", re.sub("<inertial>.*?</inertial>", "", CART, count=1, flags=re.S)),
        "the body `chassis`: it moves, and needs a mass and an inertia above 0, as <inertial>"
    ),
    "a joint of a link that is not there": (
        "robot.urdf", text_of("robot.urdf", CART.replace('child link="wheel1"', 'child link="w"')),
        "the joint `wheel1_joint`: its child is the link `w`, which is not there"
    ),
    "links of one name": (
        "robot.urdf", text_of("robot.urdf", CART.replace('"wheel1"', '"wheel0"')),
        "there are 2 links named `wheel0`"
    ),
    "a joint that follows none": (
        "robot.urdf", text_of("robot.urdf", CART.replace('<child link="wheel1"/>',
                              '<child link="wheel1"/><mimic joint="j"/>')),
        "the joint `wheel1_joint` mimics the joint `j`, which is not there"
    ),
    "an actuator of a joint that is not there": (
        "robot.xml", text_of("robot.xml", QUADRUPED.replace("</mujoco>",
                             '<actuator><motor name="m" joint="j"/></actuator></mujoco>')),
        "the actuator `m`, line .*: unknown transmission target 'j'"
    ),
    "another encoding": (
        "robot.xml",
        lambda folder: (folder / "robot.xml").write_bytes(b"<mujoco/><!-- \xe4 -->"),
        r"robot.xml: its text is not in UTF-8: save it in UTF-8\.$"
    ),
    "an encoding that is none": (
        "robot.urdf", text_of("robot.urdf", "<?xml version='1.0' encoding='klingon'?><robot/>"),
        "its text is not in klingon: save it in UTF-8"
    ),
    "a floor that moves": (
        "robot.xml", text_of("robot.xml", HAND.replace("<geom ", '<geom name="floor" ', 1)),
        "the geom `floor` is not the ground, a plane that does not move: give it another name"
    ),
    "a floor beside the ground": (
        "robot.xml",
        text_of("robot.xml", QUADRUPED.replace("<worldbody>", '<worldbody><geom type="plane" '
                'size="1 1 1"/><geom name="floor" type="box" size="1 1 1"/>')),
        "the geom `floor` is not the ground, a plane that does not move"
    ),
    "no joint": (
        "robot.urdf", text_of("robot.urdf", f"<robot name='a'>{PELVIS}</robot>"),
        "no body has a joint"
    ),
    "a mistake below a comment": (
        "robot.urdf",
        text_of("robot.urdf", f"<!--\n-->\n<robot\nname='a'>{PELVIS}\n<joint name='a'/></robot>"),
        f"line {5 + PELVIS.count(chr(10))}"
    ),
    "frames in a circle": (
        "robot.urdf",
        text_of("robot.urdf", '<robot name="a"><link name="a"/><link name="b"/><link name="c"/>'
                f"{urdf_joint('on', 'a', 'b', '0 0 0')}{urdf_joint('to', 'b', 'c', '0 0 0')}"
                f"{urdf_joint('back', 'c', 'b', '0 0 0')}</robot>"),
        "body has multiple parents"
    ),
    "a mesh is missing": (
        "robot.urdf", text_of("robot.urdf", BIPED), "'package://own_biped/meshes/shin.stl' in"
    ),
    "a mesh of an MJCF is missing": (
        "robot.xml",
        text_of("robot.xml", '<mujoco>\n<asset>\n<mesh file="a.stl"/></asset></mujoco>'),
        "robot.xml: line 3: there is no file 'a.stl'"
    ),
    "a mesh that MuJoCo cannot read": (
        "robot.urdf",
        lambda folder: [
            text_of("robot.urdf", urdf_arm("meshes/a.dae"))(folder),
            write_stl(folder / "meshes/a.dae"),
        ],
        "no decoder found for mesh file 'meshes/a.dae'"
    ),
    "a mesh that is in two folders": (
        "robot.xml",
        lambda folder: [
            text_of("robot.xml", '<mujoco>\n<asset><mesh file="a.stl"/></asset></mujoco>')(folder),
            write_stl(folder / "arm/a.stl"), write_stl(folder / "hand/a.stl"),
        ],
        "line 2: 'a.stl' may be any of arm/a.stl, hand/a.stl"
    ),
    "../ of a URDF": (
        "robot.urdf", text_of("robot.urdf", urdf_arm("../outside.stl")), r"no file '../outside.stl'"
    ),
    "an absolute path": (
        "robot.urdf", text_of("robot.urdf", urdf_arm("/etc/hostname")), "no file '/etc/hostname'"
    ),
    "an include that leaves": (
        "robot.xml",
        lambda folder: [
            text_of("robot.xml", '<mujoco>\n<include file="b.xml"/></mujoco>')(folder),
            text_of("b.xml", '<mujoco><include file="../other.xml"/></mujoco>')(folder),
        ],
        "b.xml: <include>: '../other.xml' leaves"
    ),
    "a link to outside": (
        "robot.urdf",
        lambda folder: [
            text_of("robot.urdf", urdf_arm("a.stl"))(folder),
            (folder / "a.stl").symlink_to("../outside.stl"),
        ],
        "'a.stl' leaves"
    ),
    "a keyframe of another robot": (
        "robot.xml", text_of("robot.xml", QUADRUPED.replace("</mujoco>", '<keyframe><key name="up" '
                     'qpos="0 1 2"/></keyframe></mujoco>')),
        "the keyframe `up` has 3 numbers in qpos; there must be 12"
    ),
    "nothing that moves": (
        "robot.xml", text_of("robot.xml", "<mujoco><worldbody><body/></worldbody></mujoco>"),
        "no body has a joint"
    ),
    "xacro": (
        "robot.urdf.xacro", text_of("robot.urdf.xacro", BIPED),
        r"it must be MJCF \(.xml\) or URDF \(.urdf\), to which xacro"
    ),
}  # fmt: skip
"""The file that is named, what is in its folder, and the message."""


@pytest.mark.parametrize("case", REFUSALS)
def test_what_cannot_be_read_is_one_message_and_leaves_nothing(
    tmp_path: Path, refusal: Refusal, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    file, change, message = REFUSALS[case]
    write_stl(tmp_path / "outside.stl")
    (tmp_path / "other.xml").write_text("<mujoco><worldbody/></mujoco>")
    folder = tmp_path / "sources"
    folder.mkdir()
    change(folder)
    monkeypatch.chdir(folder)
    assert re.search(message, refusal("new-task", "robot", "--from", file))


def test_a_flag_names_the_robot_that_is_meant(tmp_path: Path, refusal: Refusal) -> None:
    third = '<body name="third"><joint name="third"/><geom size="1"/></body></worldbody>'
    motor = '<actuator><motor joint="third"/></actuator>'
    three = TWO.replace("</worldbody>", third + motor)
    Path("robot.xml").write_text(three)
    message = refusal("new-task", "hand", "--from", "robot.xml", "--robot", "hand")
    assert "--robot is 'hand'; it must be one of body, palm, third" in message
    Path("cube.xml").write_text('<mujoco><worldbody><geom size="1"/></worldbody></mujoco>')
    none = refusal("new-task", "hand", "--from", "cube.xml", "--robot", "hand")
    assert "no body has a joint other than a free one" in none
    assert "--robot chooses a robot of a file" in refusal("new-task", "hand", "--robot", "palm")
    assert run_here("new-task", "hand", "--from", "robot.xml", "--robot", "palm") == 0
    model = model_of(tmp_path / "tasks/hand")
    assert model.nu == model.nq == 10
    assert "Is the robot `third` needed?" in (tmp_path / "tasks/hand/README.md").read_text()


def test_a_folder_that_cannot_hold_all_files_is_removed(tmp_path: Path, refusal: Refusal) -> None:
    mesh = f"{'m' * 240}.obj"
    write_obj(tmp_path / mesh)
    Path("robot.urdf").write_text(urdf_arm(mesh))
    root = "/".join(["d" * 240] * 16)  # With the mesh, longer than a path can be.
    Path(root).mkdir(parents=True)
    message = refusal("new-task", "arm", "--from", "robot.urdf", "--tasks-dir", root)
    assert "cannot be made: [Errno 36] File name too long" in message


def test_a_folder_that_exists_is_refused(tmp_path: Path, refusal: Refusal) -> None:
    file = write_robots(tmp_path / "sources")["arm"]
    (tmp_path / "tasks/arm").mkdir(parents=True)
    message = refusal("new-task", "arm", "--from", str(file))
    assert "tasks/arm cannot be made: File exists" in message
