"""Finds out what a compiled model's robot is made of: limbs, feet, wheels, a tool."""

import re
from dataclasses import dataclass

import mujoco
import numpy as np
from mujoco import mjtGeom, mjtJoint

from mjfleet.errors import UserError

FREE, BALL = int(mjtJoint.mjJNT_FREE), int(mjtJoint.mjJNT_BALL)
HINGE = int(mjtJoint.mjJNT_HINGE)
OF_HANDS = re.compile("finger|thumb|palm|hand|grip|index|middle|ring|pinky|little", re.IGNORECASE)
"""Names of limbs that carry nothing, however low they end."""
TOOLS = re.compile("tcp|tool|ee|end|grasp|pinch|attach|grip|tip", re.IGNORECASE)
LOW = 0.15
"""Feet end within this share of the robot's height above its lowest point."""


MOST_OF_WHEELS = 2
"""Joints of a wheel: it turns, and may be steered."""


@dataclass
class Limb:
    """A chain of joints from the base, or from the world, to an end that carries no more joints."""

    end: int
    """The last body with a joint."""
    joints: list[int]
    own: list[int]
    """Those of its joints that carry no other limb."""
    low: float
    """Its lowest point, m."""
    place: np.ndarray
    """Where that is, in the axes of the base and from it, m."""


class Robot:
    """The robot of a compiled model, in a pose.

    Raises:
        UserError: the model has no robot, or more than one.
    """

    def __init__(self, model: mujoco.MjModel, qpos: np.ndarray | None = None) -> None:
        self.model, self.data = model, mujoco.MjData(model)
        if qpos is not None:
            self.data.qpos = qpos
        mujoco.mj_forward(model, self.data)
        self.root = self._find_root()
        """The body on the world that holds all of it."""
        self.bodies = np.flatnonzero(model.body_rootid == self.root).tolist()
        joints = np.flatnonzero(model.body_rootid[model.jnt_bodyid] == self.root)
        self.is_free = FREE in model.jnt_type[joints]
        self.joints = [int(joint) for joint in joints if model.jnt_type[joint] != FREE]
        """All but a free joint."""
        self.is_closed = bool(self._closing().size)
        """Whether constraints close loops of bodies."""
        self.limbs = self._find_limbs()
        self.height = float(self.data.xpos[self.root, 2]) - self.lowest()
        """Of the base's frame above the lowest point, m."""
        ends = [limb for limb in self.limbs if limb.low < self.lowest() + LOW * self.height]
        base = self._low(int(model.body_weldid[self.root]))
        if base[2] < self.lowest() + LOW * self.height:
            ends = []  # It lies on its base.
        turning = [limb for limb in ends if not model.jnt_limited[limb.joints[-1]]]
        turning = [limb for limb in turning if len(limb.own) <= MOST_OF_WHEELS]
        self.wheels = turning if len(turning) > 1 and not self.is_closed else []
        standing = [limb for limb in ends if len(limb.own) > 1]
        self.feet = standing if len(standing) > 1 and not self.wheels else []
        if any(OF_HANDS.search(model.body(limb.end).name) for limb in self.feet):
            self.feet = []

    def _find_root(self) -> int:
        """Return the one tree of bodies that has actuators or, without any, joints."""
        model = self.model
        kinds = {int(kind) for kind in model.actuator_trntype}
        driven = {
            int(model.body_rootid[model.jnt_bodyid[model.actuator_trnid[i, 0]]])
            for i in range(model.nu)
            if model.actuator_trntype[i] <= int(mujoco.mjtTrn.mjTRN_JOINTINPARENT)
        }
        moving = {
            int(model.body_rootid[model.jnt_bodyid[joint]])
            for joint in range(model.njnt)
            if model.jnt_type[joint] != FREE or kinds
        }
        roots = sorted(driven or moving)
        if not roots:
            raise UserError("no body has a joint, so that there is nothing to move.")
        if len(roots) > 1:
            names = ", ".join(repr(model.body(root).name) for root in roots)
            raise UserError(
                f"there are {len(roots)} robots, the bodies {names}: each has joints. Name a file "
                "with one of them."
            )
        return roots[0]

    def _closing(self) -> np.ndarray:
        kinds = (int(mujoco.mjtEq.mjEQ_CONNECT), int(mujoco.mjtEq.mjEQ_WELD))
        return np.flatnonzero(np.isin(self.model.eq_type, kinds) & self.model.eq_active0)

    def _find_limbs(self) -> list[Limb]:
        model, found = self.model, list[Limb]()
        moving = [int(body) for body in dict.fromkeys(model.jnt_bodyid[self.joints])]
        for end in moving:
            if any(end in self.path(other)[1:] for other in moving if other != end):
                continue
            joints = [joint for body in reversed(self.path(end)) for joint in self.of_body(body)]
            height = float(self._low(end)[2])
            points = [bottom(model, self.data, geom) for geom in self.low_geoms(end)]
            middle = np.mean(points, axis=0) if points else self.data.xpos[end]
            place = self.data.xmat[self.root].reshape(3, 3).T @ (middle - self.data.xpos[self.root])
            found.append(Limb(end, joints, [], height, place))
        for limb in found:
            shared = {joint for other in found if other is not limb for joint in other.joints}
            limb.own = [joint for joint in limb.joints if joint not in shared]
        return found

    def path(self, body: int) -> list[int]:
        """Return the bodies with joints from `body` up to the base, which is not among them."""
        model, found = self.model, list[int]()
        while body:
            if self.of_body(body):
                found.append(body)
            body = int(model.body_parentid[body])
        return found

    def of_body(self, body: int) -> list[int]:
        """Return a body's joints, without a free joint."""
        first, count = int(self.model.body_jntadr[body]), int(self.model.body_jntnum[body])
        return [i for i in range(first, first + count) if self.model.jnt_type[i] != FREE]

    def fixed_to(self, body: int) -> list[int]:
        """Return a body and those that are fixed to it."""
        weld = self.model.body_weldid[body]
        return [other for other in self.bodies if self.model.body_weldid[other] == weld]

    def solid(self, bodies: list[int]) -> list[int]:
        """Return the geoms of bodies that collide or, without any, all."""
        model = self.model
        geoms = [geom for geom in range(model.ngeom) if model.geom_bodyid[geom] in bodies]
        collide = [
            geom for geom in geoms if model.geom_contype[geom] | model.geom_conaffinity[geom]
        ]
        return collide or geoms

    def low_geoms(self, body: int) -> list[int]:
        """Return the solid geoms of a body, and of those fixed to it, on which it would stand."""
        lows = {
            geom: bottom(self.model, self.data, geom)[2] for geom in self.solid(self.fixed_to(body))
        }
        near = 0.005 * float(self.model.stat.extent)
        return [geom for geom, low in lows.items() if low < min(lows.values()) + near]

    def lowest(self) -> float:
        """Return the height of the robot's lowest point, m."""
        geoms = self.solid(self.bodies)
        return min((bottom(self.model, self.data, geom)[2] for geom in geoms), default=0.0)

    def _low(self, body: int) -> np.ndarray:
        """Return the lowest point of a body and those fixed to it."""
        bodies = self.fixed_to(body) if body else [self.root, *self.fixed_to(self.root)]
        bodies = [other for other in bodies if other in self.bodies]
        points = [bottom(self.model, self.data, geom) for geom in self.solid(bodies)]
        points = points or [self.data.xpos[other] for other in bodies]
        return min(points, key=lambda point: point[2])

    def stands(self) -> bool:
        """Return whether feet or wheels, mirror images of each other, carry the base."""
        ends = self.feet or self.wheels
        places = np.array([limb.place for limb in ends])
        near = 0.05 * max(self.height, 1e-6)
        images = places * (1, -1, 1)
        off = np.abs(images[:, None, :] - places[None, :, :]).max(axis=2).min(axis=1)
        return bool((off < near).all() and (np.abs(places[:, 1]) > near).all())

    def foot_names(self) -> list[str]:
        """Return the feet: bodies that are feet as a whole, or geoms at the ends of others."""
        model, found = self.model, list[str]()
        for limb in self.feet:
            low = self.low_geoms(limb.end)
            owner = int(model.geom_bodyid[low[0]])
            is_end = len(low) == 1 and len(self.solid([owner])) > 1
            found.append((model.geom(low[0]) if is_end else model.body(owner)).name)
        return found

    def arm(self) -> list[int]:
        """Return the joints of an arm, from its base to its hand; none if it is no arm."""
        chains, model = [limb.joints for limb in self.limbs], self.model
        shared = [j for j in chains[0] if all(j in chain for chain in chains)]
        is_chain = len(shared) > (1 if len(chains) == 1 and not self.is_closed else 2)
        is_driven = not model.nu or set(shared) <= self.driven_joints()
        fits = all(model.jnt_limited[j] or model.jnt_type[j] == HINGE for j in shared)
        return shared if is_chain and is_driven and fits and not self.is_free else []

    def driven_joints(self) -> set[int]:
        """Return the joints with actuators of their own."""
        model = self.model
        on_joint = model.actuator_trntype <= int(mujoco.mjtTrn.mjTRN_JOINTINPARENT)
        return {int(joint) for joint in model.actuator_trnid[on_joint, 0]}

    def _drifts(self, joint: int) -> bool:
        """Return whether a joint is of a body that slides without limits, as the base of a robot in
        a plane does."""
        model = self.model
        of_body = self.of_body(int(model.jnt_bodyid[joint]))
        return any(model.jnt_type[j] != HINGE and not model.jnt_limited[j] for j in of_body)

    def independent_joints(self) -> list[int]:
        """Return the joints that determine the others where loops are closed: the nearest to the
        base of those that do, and all where nothing ties joints to each other."""
        model, data = self.model, self.data
        columns = np.zeros((model.nv, data.nefc))
        for column, unit in zip(columns, np.eye(model.nv), strict=True):
            mujoco.mj_mulJacVec(model, data, column, unit)
        of_equality = data.efc_type[: data.nefc] == int(mujoco.mjtConstraint.mjCNSTR_EQUALITY)
        rows = columns.T[of_equality]
        if self.is_free:  # How the base moves determines no joint.
            first = model.jnt_dofadr[model.body_jntadr[self.root]]
            rows[:, first : first + 6] = 0.0
        kinds = model.eq_type == int(mujoco.mjtEq.mjEQ_JOINT)
        followers = set(model.eq_obj1id[kinds & (model.eq_active0 > 0)].tolist())
        chosen, rank = list[int](), _rank(rows)
        depth = {joint: len(self.path(int(model.jnt_bodyid[joint]))) for joint in self.joints}
        for joint in sorted(self.joints, key=lambda joint: (depth[joint], joint)):
            if joint in followers or model.jnt_type[joint] == BALL or self._drifts(joint):
                continue
            more = np.vstack((rows, np.eye(model.nv)[model.jnt_dofadr[joint]]))
            if _rank(more) > rank:
                rows, rank = more, rank + 1
                chosen.append(joint)
        return sorted(chosen)


def _rank(rows: np.ndarray) -> int:
    return int(np.linalg.matrix_rank(rows, tol=1e-6)) if rows.size else 0


def bottom(model: mujoco.MjModel, data: mujoco.MjData, geom: int) -> np.ndarray:
    """Return the lowest point of a geom, of a plane or a height field its centre, m."""
    size, kind = model.geom_size[geom], mjtGeom(model.geom_type[geom])
    rotation, centre = data.geom_xmat[geom].reshape(3, 3), data.geom_xpos[geom]
    down = np.where(np.abs(rotation[2]) > 1e-4, -rotation[2], 0.0)  # In the geom's own axes.
    flat = down * (1, 1, 0) / max(np.hypot(*down[:2]), 1e-9)
    end = np.sign(down[2]) * np.array((0, 0, size[1]))
    match kind:
        case mjtGeom.mjGEOM_SPHERE:
            point = size[0] * down
        case mjtGeom.mjGEOM_CAPSULE:
            point = size[0] * down + end
        case mjtGeom.mjGEOM_CYLINDER:
            point = size[0] * flat + end
        case mjtGeom.mjGEOM_ELLIPSOID:
            point = size**2 * down / max(np.linalg.norm(size * down), 1e-9)
        case mjtGeom.mjGEOM_BOX:
            point = np.sign(down) * size
        case mjtGeom.mjGEOM_MESH:
            mesh = model.geom_dataid[geom]
            first, count = model.mesh_vertadr[mesh], model.mesh_vertnum[mesh]
            vertices = model.mesh_vert[first : first + count]
            depths = vertices @ down
            near = 0.02 * np.ptp(depths)
            point = vertices[depths >= depths.max() - near].mean(axis=0)
            point = point + down * (depths.max() - point @ down)
        case _:
            point = np.zeros(3)
    return centre + rotation @ point
