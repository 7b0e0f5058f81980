"""Robots of the tests' own, as files that `mjfleet new-task --from` reads."""

import struct
from pathlib import Path

CORNERS = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]
FACES = [(0, 2, 1), (0, 1, 3), (0, 3, 2), (1, 2, 3)]


def write_stl(path: Path, size: float = 0.05) -> None:
    """Write a tetrahedron."""
    data = bytes(80) + struct.pack("<I", len(FACES))
    for face in FACES:
        points = [size * number for i in face for number in CORNERS[i]]
        data += struct.pack("<12fH", 0, 0, 0, *points, 0)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def write_obj(path: Path, size: float = 0.05) -> None:
    """Write the same as text."""
    lines = [f"v {size * x} {size * y} {size * z}" for x, y, z in CORNERS]
    lines += [f"f {a + 1} {b + 1} {c + 1}" for a, b, c in FACES]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines))


def leg(name: str, x: float, y: float) -> str:
    """An MJCF leg of three hinges with a foot that has no name."""
    side = 1 if y > 0 else -1
    return f"""
    <body name="{name}_hip" pos="{x} {y} 0">
      <joint name="{name}_roll" axis="1 0 0" range="-40 40"/>
      <geom type="sphere" size="0.03" mass="0.3"/>
      <body name="{name}_thigh" pos="0 {0.05 * side} 0">
        <joint name="{name}_pitch" axis="0 1 0" range="-60 120"/>
        <geom type="capsule" size="0.015" fromto="0 0 0 0 0 -0.15" mass="0.3"/>
        <body name="{name}_calf" pos="0 0 -0.15">
          <joint name="{name}_knee" axis="0 1 0" range="-150 -20"/>
          <geom type="capsule" size="0.01" fromto="0 0 0 0 0 -0.13" mass="0.1"/>
          <geom type="sphere" size="0.02" pos="0 0 -0.15" mass="0.05"/>
        </body>
      </body>
    </body>"""


LEGS = leg("FR", 0.15, -0.06) + leg("FL", 0.15, 0.06) + leg("RR", -0.15, -0.06)
LEGS += leg("RL", -0.15, 0.06)
QUADRUPED = f"""<mujoco model="own quadruped">
  <worldbody>
    <body name="body" pos="0 0 0.4">
      <geom type="box" size="0.15 0.06 0.04" mass="4"/>{LEGS}
    </body>
  </worldbody>
</mujoco>
"""
"""Without free joint, actuators, ground, light, keyframe."""


def urdf_link(name: str, mass: float, shape: str, at: str = "0 0 0") -> str:
    inertia = 0.002 * mass
    return f"""
  <link name="{name}">
    <inertial><origin xyz="{at}"/><mass value="{mass}"/>
      <inertia ixx="{inertia}" iyy="{inertia}" izz="{inertia}" ixy="0" ixz="0" iyz="0"/></inertial>
    <visual><origin xyz="{at}"/><geometry>{shape}</geometry></visual>
    <collision><origin xyz="{at}"/><geometry>{shape}</geometry></collision>
  </link>"""


def urdf_joint(
    name: str, parent: str, child: str, xyz: str, axis: str = "", limit: str = "", extra: str = ""
) -> str:
    kind = ("revolute" if limit else "continuous") if axis else "fixed"
    about = f'<axis xyz="{axis}"/>' if axis else ""
    return f"""
  <joint name="{name}" type="{kind}"><origin xyz="{xyz}"/>
    <parent link="{parent}"/><child link="{child}"/>{about}{limit}{extra}</joint>"""


LIMIT = '<limit lower="{}" upper="{}" effort="{}" velocity="10"/>'


def biped_leg(side: str, y: float) -> str:
    parts, above = "", "pelvis"
    for name, xyz, axis, low, high, shape, at in (
        ("hip_yaw", f"0 {y} -0.05", "0 0 1", -0.5, 0.5, '<sphere radius="0.03"/>', "0 0 0"),
        ("hip_roll", "0 0 0", "1 0 0", -0.4, 0.4, '<sphere radius="0.03"/>', "0 0 0"),
        ("hip_pitch", "0 0 0", "0 1 0", -1.5, 1.0, '<cylinder radius="0.04" length="0.2"/>',
         "0 0 -0.15"),
        ("knee", "0 0 -0.3", "0 1 0", 0.0, 2.0, '<mesh filename="package://own_biped/meshes/'
         'shin.stl"/>', "0 0 -0.15"),
        ("ankle", "0 0 -0.3", "0 1 0", -0.8, 0.8, '<sphere radius="0.02"/>', "0 0 0"),
    ):  # fmt: skip
        child = f"{side}_{name}"
        parts += urdf_link(child, 1.0, shape, at)
        limit = LIMIT.format(low, high, 40)
        parts += urdf_joint(f"{child}_joint", above, child, xyz, axis, limit)
        above = child
    parts += urdf_link(f"{side}_foot", 0.3, '<box size="0.2 0.08 0.03"/>', "0.03 0 0")
    return parts + urdf_joint(f"{side}_sole", above, f"{side}_foot", "0 0 -0.04")


PELVIS = urdf_link("pelvis", 8, '<box size="0.15 0.25 0.15"/>', "0 0 0.05")
BIPED = f"""<?xml version="1.0"?>
<robot name="own_biped">{PELVIS}{biped_leg("left", 0.1)}{biped_leg("right", -0.1)}
  <link name="imu"/>{urdf_joint("imu_mount", "pelvis", "imu", "0 0 0.1")}
</robot>
"""
"""URDF with `package://`, two feet that are links of their own, a mesh."""


def urdf_arm(mesh: str = "meshes/link.obj", world: bool = False) -> str:
    """A URDF arm of four joints, one without limits, with a gripper's frame."""
    parts = urdf_link("base", 2, '<cylinder radius="0.06" length="0.1"/>', "0 0 0.05")
    above, height = "base", 0.1
    for i, axis in enumerate(("0 0 1", "0 1 0", "0 1 0", "1 0 0")):
        mesh_here = f'<mesh filename="{mesh}"/>' if i == 1 else '<sphere radius="0.04"/>'
        parts += urdf_link(f"link{i}", 0.8, mesh_here, "0 0 0.1")
        limit = LIMIT.format(-2, 2, 30 if i else 0) if i < 3 else ""
        parts += urdf_joint(f"joint{i}", above, f"link{i}", f"0 0 {height}", axis, limit)
        above, height = f"link{i}", 0.2
    parts += '\n  <link name="tool0"/>' + urdf_joint("flange", above, "tool0", "0 0 0.1")
    if world:
        parts += '\n  <link name="world"/>' + urdf_joint("mount", "world", "base", "0 0 0")
    return f'<?xml version="1.0"?>\n<robot name="own_arm">{parts}\n</robot>\n'


def finger(name: str, x: float, y: float) -> str:
    return f"""
      <body name="{name}_1" pos="{x} {y} -0.02">
        <joint name="{name}_1" axis="0 1 0" range="-10 80" armature="0.0002" damping="0.01"/>
        <geom type="capsule" size="0.008" fromto="0 0 0 0 0 -0.04" mass="0.02"/>
        <body name="{name}_2" pos="0 0 -0.04">
          <joint name="{name}_2" axis="0 1 0" range="0 90" armature="0.0002" damping="0.01"/>
          <geom type="capsule" size="0.007" fromto="0 0 0 0 0 -0.03" mass="0.01"/>
        </body>
      </body>"""


FINGERS = "".join(finger(f"finger{i}", 0.03, y) for i, y in enumerate((-0.03, -0.01, 0.01, 0.03)))
HAND = f"""<mujoco model="own hand">
  <worldbody>
    <body name="palm" pos="0 0 0.3">
      <geom type="box" size="0.04 0.04 0.015" mass="0.3"/>{FINGERS}{finger("thumb", -0.03, 0.0)}
    </body>
  </worldbody>
</mujoco>
"""
"""It hangs above the ground, as a robot with legs does."""


def wheel(name: str, x: float, y: float) -> str:
    link = urdf_link(name, 0.5, '<sphere radius="0.1"/>')
    return link + urdf_joint(f"{name}_joint", "chassis", name, f"{x} {y} -0.05", "0 1 0")


WHEELS = "".join(wheel(f"wheel{i}", x, y) for i, (x, y) in
                 enumerate(((0.2, 0.2), (0.2, -0.2), (-0.2, 0.2), (-0.2, -0.2))))  # fmt: skip
CHASSIS = urdf_link("chassis", 6, '<box size="0.5 0.3 0.1"/>')
CART = f'<robot name="own_cart">{CHASSIS}{WHEELS}</robot>'
"""Four wheels, which turn without limits."""


def crank(name: str, side: int, y: float) -> str:
    """The beginning of a body, in front (1) or behind (-1), whose hinge has a motor."""
    return f"""<body name="{name}" pos="{0.05 * side} {y} 0">
        <joint name="{name}" axis="0 1 0" range="-60 60"/>
        <geom type="capsule" size="0.012" fromto="0 0 0 {0.1 * side} 0 -0.15" mass="0.2"/>"""


def closed_leg(name: str, y: float) -> str:
    """A leg that a five-bar linkage of four hinges moves."""
    return f"""
      {crank(f"{name}_front", 1, y)}
        <body name="{name}_shin" pos="0.1 0 -0.15">
          <joint name="{name}_shin" axis="0 1 0"/>
          <geom type="capsule" size="0.012" fromto="0 0 0 -0.15 0 -0.2" mass="0.2"/>
          <geom type="box" size="0.1 0.05 0.01" pos="-0.15 0 -0.21" mass="0.1"/>
        </body>
      </body>
      {crank(f"{name}_back", -1, y)}
        <body name="{name}_link" pos="-0.1 0 -0.15">
          <joint name="{name}_link" axis="0 1 0"/>
          <geom type="capsule" size="0.012" fromto="0 0 0 0.05 0 -0.2" mass="0.2"/>
        </body>
      </body>"""


CLOSED = f"""<mujoco model="own biped with closed loops">
  <worldbody>
    <body name="torso" pos="0 0 0.38">
      <freejoint/>
      <geom type="box" size="0.08 0.12 0.06" mass="4"/>
      {closed_leg("left", 0.1)}{closed_leg("right", -0.1)}
    </body>
  </worldbody>
  <equality>
    <connect body1="left_shin" body2="left_link" anchor="-0.15 0 -0.2"/>
    <connect body1="right_shin" body2="right_link" anchor="-0.15 0 -0.2"/>
  </equality>
</mujoco>
"""


def write_robots(folder: Path) -> dict[str, Path]:
    """Write all robots, each into a folder of its own; return their files by name."""
    texts = {
        "quadruped": ("robot.xml", QUADRUPED), "biped": ("robot.urdf", BIPED),
        "arm": ("robot.urdf", urdf_arm()), "fixed": ("robot.urdf", urdf_arm(world=True)),
        "hand": ("robot.xml", HAND), "cart": ("robot.urdf", CART), "closed": ("robot.xml", CLOSED),
    }  # fmt: skip
    files = {name: folder / f"own_{name}" / file for name, (file, _) in texts.items()}
    for name, (_, text) in texts.items():
        files[name].parent.mkdir(parents=True, exist_ok=True)
        files[name].write_text(text)
    write_stl(folder / "own_biped/meshes/shin.stl")
    for name in ("arm", "fixed"):
        write_obj(folder / f"own_{name}/meshes/link.obj")
    return files
