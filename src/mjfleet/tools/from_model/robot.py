"""What is known of a robot's model while it is completed."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import mujoco
import numpy as np

from mjfleet.errors import UserError
from mjfleet.legged.scene import FLOOR

FREE, BALL = int(mujoco.mjtJoint.mjJNT_FREE), int(mujoco.mjtJoint.mjJNT_BALL)
FAR = 1000.0
"""A distance greater than any in a model, m."""
LOW = 0.15
"""Feet end within this share of the robot's height above its lowest point."""
POSES = 200


@dataclass
class Limb:
    """A chain of joints from the base to a body that carries no more joints."""

    end: int
    joints: list[int]
    low: list[int]
    """The lowest geoms of its end."""


@dataclass
class Robot:
    """A model that is being completed: its spec, what it is made of, what its user must know."""

    spec: mujoco.MjSpec
    questions: list[str]
    is_fixed: bool
    """Whether the file fixes the robot to the world, as a URDF does by a link of that name."""
    added: list[str] = field(default_factory=list)
    feet: list[str] = field(default_factory=list)
    """Geoms or bodies on which legs stand."""
    tool: str = ""
    """The site that an arm brings to a target."""

    def keep_only(self, chosen: str) -> None:
        """Leave out all robots but the body `chosen`, with the actuators and sensors on them.

        Raises:
            UserError: there is no such robot.
        """
        names = list(_roots(self.spec.compile()))
        if chosen not in names:
            raise UserError(f"--robot is {chosen!r}; it must be one of {', '.join(names)}.")
        for name in names:
            if name != chosen:
                self.spec.delete(self.spec.body(name))
                self.questions.append(f"Is the robot `{name}` needed? It is left out.")

    def look(self) -> None:
        """Compile the spec, which has ground, and look at its robot in the pose of its keyframe or,
        without any, in that where all joints are at 0.

        Raises:
            UserError: there is no robot, or more than one.
            ValueError: the spec does not compile.
        """
        model = self.model = self.spec.compile()
        self.data = mujoco.MjData(model)
        if model.nkey:
            mujoco.mj_resetDataKeyframe(model, self.data, 0)
        mujoco.mj_forward(model, self.data)
        roots = _roots(model)
        if len(roots) > 1:
            names = ", ".join(map(repr, roots))
            raise UserError(
                f"there are {len(roots)} robots with joints, the bodies {names}; --robot names "
                "one. If they are parts of one robot, put them into one body, such as <body "
                'name="base">.'
            )
        ((self.base, self.root),) = roots.items()
        """The body on the world that holds all of the robot: its name and its number."""
        joints = np.flatnonzero(model.body_rootid[model.jnt_bodyid] == self.root)
        self.is_free = FREE in model.jnt_type[joints]
        self.joints: list[int] = joints[model.jnt_type[joints] != FREE].tolist()
        kinds = (mujoco.mjtEq.mjEQ_CONNECT, mujoco.mjtEq.mjEQ_WELD)
        self.is_closed = bool((np.isin(model.eq_type, kinds) & model.eq_active0).any())
        """Whether constraints close loops of bodies."""
        self._look_at_bodies()

    def _look_at_bodies(self) -> None:
        """Find limbs, and which of them the robot stands on."""
        model, data, floor = self.model, self.data, self.model.geom(FLOOR).id
        chains, carrying = {0: list[int]()}, set[int]()
        heights: dict[int, dict[int, float]] = {}
        """Heights of geoms above the ground, m, by the body that moves them."""
        for body in np.flatnonzero(model.body_rootid == self.root).tolist():
            parent = int(model.body_parentid[body])
            own = [joint for joint in self.joints if model.jnt_bodyid[joint] == body]
            chains[body] = chains[parent] + own
            if own:
                carrying.add(int(model.body_weldid[parent]))
            moved = heights.setdefault(int(model.body_weldid[body]), {})
            for geom in np.flatnonzero(model.geom_bodyid == body).tolist():
                if model.geom_contype[geom] | model.geom_conaffinity[geom]:
                    moved[geom] = mujoco.mj_geomDistance(model, data, floor, geom, FAR, None)
        lows = {body: min(moved.values(), default=FAR) for body, moved in heights.items()}
        self.lowest = min(lows.values())
        """Height of the robot's lowest point above the ground, m."""
        size = np.ptp(data.xpos[list(heights)], axis=0).max()  # Without ground of the file's own.
        near, self.limbs = 0.005 * float(size), list[Limb]()
        for end in (body for body in heights if chains[body] and body not in carrying):
            low = [geom for geom, height in heights[end].items() if height < lows[end] + near]
            self.limbs.append(Limb(end, chains[end], low))
        self.above = [body for body in heights if body in carrying - {0}]
        self.above = [body for body in self.above if lows[body] < self.lowest + 4 * near]
        """Bodies that are as low as feet and carry more joints, as those of toes."""
        high = self.lowest + LOW * (data.xpos[self.root, 2] - self.lowest)
        stands = [limb for limb in self.limbs if lows[limb.end] < high]
        lies = lows[int(model.body_weldid[self.root])] < high
        self.stands = stands if stands and not lies and self._are_mirrored(stands) else []
        """The limbs that carry the base."""
        has_ranges = all(model.jnt_limited[limb.joints[-1]] for limb in stands)
        self.has_legs = bool(self.stands) and (has_ranges or self.is_closed)
        self.has_wheels = bool(self.stands) and not self.has_legs
        """Which of the two the limbs are: what turns without limits is a wheel."""

    def _are_mirrored(self, limbs: list[Limb]) -> bool:
        """Return whether each limb has a mirror image on the other side."""
        centres = [self.data.geom_xpos[limb.low].mean(axis=0) for limb in limbs]
        axes = self.data.xmat[self.root].reshape(3, 3)
        places = ((np.array(centres) - self.data.xpos[self.root]) @ axes)[:, :2]
        off = np.abs((places * (1, -1))[:, None] - places).max(axis=2).min(axis=1)
        near = 0.05 * np.abs(places).max()
        return bool((off < near).all() and (np.abs(places[:, 1]) > near).all())

    def arm(self) -> list[int]:
        """Return the joints from a fixed base to a hand; none if the robot is no arm."""
        if self.is_free or not self.limbs:
            return []
        chains = [limb.joints for limb in self.limbs]
        shared = [joint for joint in chains[0] if all(joint in chain for chain in chains)]
        return shared if len(shared) > 1 else []

    def random_poses(self) -> Iterator[mujoco.MjData]:
        """Yield positions and inertias in random poses within the joints' ranges, ends included."""
        model, rng = self.model, np.random.default_rng(0)
        data, joints = mujoco.MjData(model), np.flatnonzero(model.jnt_type > BALL).tolist()
        low, high = np.array([reach(model, joint) for joint in joints]).reshape(-1, 2).T
        for _ in range(POSES):
            mujoco.mj_resetDataKeyframe(model, data, 0)
            beyond = 0.25 * (high - low)
            pose = rng.uniform(low - beyond, high + beyond).clip(low, high)
            data.qpos[model.jnt_qposadr[joints]] = pose
            mujoco.mj_fwdPosition(model, data)
            yield data


def reach(model: mujoco.MjModel, joint: int) -> tuple[float, float]:
    """Return the range of a hinge or slide, rad or m; where it has none, a turn, or the model's
    size."""
    if model.jnt_limited[joint]:
        return tuple(model.jnt_range[joint].tolist())
    is_slide = model.jnt_type[joint] == mujoco.mjtJoint.mjJNT_SLIDE
    half = 0.5 * float(model.stat.extent) if is_slide else np.pi
    return (-half, half)


def unused(name: str, elements: Iterable[Any]) -> str:
    """Return a name that none of the elements has: this one, or with underscores behind it."""
    taken = {element.name for element in elements}
    while name in taken:
        name += "_"
    return name


def _roots(model: mujoco.MjModel) -> dict[str, int]:
    """Return the bodies on the world with joints, other than a free one, in what they hold.

    UserError if there are none.
    """
    bodies = model.jnt_bodyid[model.jnt_type != FREE]
    if not len(bodies):
        raise UserError("no body has a joint other than a free one; there is nothing to move.")
    return {model.body(root).name: root for root in np.unique(model.body_rootid[bodies]).tolist()}
