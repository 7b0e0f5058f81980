"""Ten mechanisms of the tests' own, small, of all that motors move by: MJCF and URDF."""

from .own_robots import urdf_link


def made(bodies: str, rest: str = "") -> str:
    """Return an MJCF of bodies on a frame that is fixed to the world."""
    return f"""<mujoco><worldbody><body name="frame" pos="0 0 0.5">
      <geom type="box" size="0.2 0.05 0.02" mass="2" contype="0" conaffinity="0"/>{bodies}
    </body></worldbody>{rest}</mujoco>"""


def rod(name: str, at: str, end: str, inner: str = "", about: str = 'axis="0 1 0"') -> str:
    """Return a rod of 0.2 kg from its joint at `at` to `end`, that touches nothing."""
    return f"""<body name="{name}" pos="{at}"><joint name="{name}" {about}/>
      <geom type="capsule" size="0.01" fromto="0 0 0 {end}" mass="0.2" contype="0"
       conaffinity="0"/>{inner}</body>"""


def urdf(name: str, links: str, joints: str) -> str:
    return f'<robot name="{name}">{links}{joints}</robot>'


def joint(
    name: str, kind: str, parent: str, at: str, axis: str, limit: str = "", more: str = ""
) -> str:
    """Return a URDF joint that carries the link of the same name."""
    return f"""<joint name="{name}" type="{kind}"><origin xyz="{at}"/><parent link="{parent}"/>
      <child link="{name}"/><axis xyz="{axis}"/><limit {limit} velocity="5"/>{more}</joint>"""


BOX, BALL = '<box size="0.1 0.1 0.02"/>', '<sphere radius="0.02"/>'
GRIPPER = urdf(
    "gripper",
    urdf_link("palm", 0.5, BOX) + urdf_link("drive", 0.1, BALL, "0 0 0.05")
    + urdf_link("follow", 0.1, BALL, "0 0 0.05"),
    joint("drive", "revolute", "palm", "0 0.03 0", "1 0 0", 'lower="0.2" upper="0.8" effort="2"')
    + joint("follow", "revolute", "palm", "0 -0.03 0", "1 0 0",
            'lower="-0.8" upper="0" effort="2"', '<mimic joint="drive" multiplier="-1"/>'),
)  # fmt: skip
"""Its fingers at 0 or a limit are at 0.2 and 0, which the coupling does not allow."""

POST = '<cylinder radius="0.03" length="0.2"/>'
SPINNING_ARM = urdf(
    "spinning_arm",
    urdf_link("base", 3, POST) + urdf_link("yaw", 1, POST, "0 0 0.15")
    + urdf_link("pitch", 0.8, POST, "0 0 0.15"),
    joint("yaw", "continuous", "base", "0 0 0.06", "0 0 1", 'effort="20"')
    + joint("pitch", "continuous", "yaw", "0 0 0.3", "0 1 0", 'effort="15"'),
)  # fmt: skip

CORNERS = {"fl": "0.2 0.2", "fr": "0.2 -0.2", "rl": "-0.2 0.2", "rr": "-0.2 -0.2"}
ROVER = urdf(
    "rover",
    urdf_link("chassis", 6, '<box size="0.5 0.3 0.1"/>')
    + "".join(urdf_link(name, 0.5, '<sphere radius="0.1"/>') for name in CORNERS),
    "".join(joint(name, "continuous", "chassis", f"{at} -0.05", "0 1 0", 'effort="0"')
            for name, at in CORNERS.items()),
)  # fmt: skip

BARS = rod("crank", "-0.2 0 0", "0 0 0.1", rod("coupler", "0 0 0.1", "0.4 0 0.1"))
BARS += rod("rocker", "0.2 0 0", "0 0 0.2", about='axis="0 1 0" range="-80 80"')
LOOP = '<equality><connect body1="coupler" body2="rocker" anchor="0.4 0 0.1"/></equality>'
FOUR_BAR = made(BARS, LOOP)
"""One motor moves three joints."""

SLIDER_CRANK = made(
    rod("crank", "0 0 0", "0.1 0 0", rod("rod", "0.1 0 0", "0.3 0 0"))
    + rod("slider", "0.4 0 0", "0.05 0 0", about='type="slide" axis="1 0 0" range="-0.25 0.05"'),
    """<equality><connect body1="rod" body2="slider" anchor="0.3 0 0"/></equality>
    <actuator><motor name="slider" joint="slider" gear="30" ctrlrange="-1 1"/></actuator>""",
)
"""A motor on its slider turns the crank."""

TENDON_FINGER = made(
    rod("base_joint", "0 0 0", "0 0 -0.1",
        rod("tip_joint", "0 0 -0.1", "0 0 -0.1", about='axis="0 1 0" range="0 90" stiffness="1" '
            'damping="0.02"'),
        about='axis="0 1 0" range="0 80" stiffness="1" damping="0.02"'),
    """<tendon><fixed name="cable"><joint joint="base_joint" coef="0.02"/>
      <joint joint="tip_joint" coef="0.015"/></fixed></tendon>
    <actuator><position name="cable" tendon="cable" kp="5000" kv="50"/></actuator>""",
)  # fmt: skip
"""One motor without a range pulls two joints."""

ARM_WITHOUT_RANGES = made(
    rod("lift", "0 0 0", "0 0 0.2", rod("elbow", "0 0 0.2", "0.2 0 0"),
        about='type="slide" axis="0 0 1"')
)  # fmt: skip

SERVO_ARM = made(
    rod("turn", "0 0 0", "0 0 0.2",
        rod("bend", "0 0 0.2", "0 0 0.2", about='axis="0 1 0" range="35 150"'),
        about='axis="0 0 1" range="-170 170"'),
    """<actuator><position joint="turn" kp="20" kv="1"/><position joint="bend" kp="20" kv="1"/>
    </actuator>""",
)  # fmt: skip
"""Its actuators have no ctrlrange."""

TORQUE_ARM = made(
    rod("shoulder", "0 0 0", "0 0 -0.2",
        rod("hand", "0 0 -0.2", "0 0 -0.1", about='axis="0 1 0" range="-90 90" damping="0.02"'),
        about='axis="0 1 0" damping="0.02"'),
    """<actuator><motor joint="shoulder" forcerange="-2 2"/><motor joint="hand" gear="5"
    ctrlrange="-0.2 0.2"/></actuator>""",
)  # fmt: skip
"""Its shoulder has no limits, and its motor no ctrlrange."""

CRANE = made(
    rod("boom", "0 0 0", "0.3 0 0", rod("load", "0.3 0 0", "0 0 -0.2"),
        about='axis="0 0 1" range="-90 90"'),
    '<actuator><velocity joint="boom" kv="5" ctrlrange="-1 1"/></actuator>',
)  # fmt: skip
"""A load swings below its boom, whose speed is controlled."""

MECHANISMS = {
    "gripper": GRIPPER, "spinning_arm": SPINNING_ARM, "rover": ROVER, "four_bar": FOUR_BAR,
    "slider_crank": SLIDER_CRANK, "tendon_finger": TENDON_FINGER,
    "arm_without_ranges": ARM_WITHOUT_RANGES, "servo_arm": SERVO_ARM, "torque_arm": TORQUE_ARM,
    "crane": CRANE,
}  # fmt: skip
