"""Makes the models of the environments differ: `vary`, in a task's `setup`. Runs in a worker."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal, NamedTuple, get_args

import mujoco
import numpy as np
import torch

from mjfleet.env import Env
from mjfleet.errors import UserError
from mjfleet.quaternions import from_rotation_vector, multiply
from mjfleet.sim.actuators import position_actuators
from mjfleet.utils.name_pattern import name_pattern

Mode = Literal["scale", "add", "set"]
When = Literal["start", "reset"]
Shape = Literal["uniform", "log", "normal"]
STDS = 3.0
"""Standard deviations of a normal distribution from the middle of its range to the ends."""
SIZED = [
    int(getattr(mujoco.mjtGeom, f"mjGEOM_{kind}"))
    for kind in ("SPHERE", "CAPSULE", "ELLIPSOID", "CYLINDER", "BOX")
]
"""Geoms with sizes of their own, which mujoco calls primitive."""


@dataclass(frozen=True)
class Field:
    """What can be varied: a field of the model, or columns of some."""

    kind: str  # Whose names choose the rows; empty if it has none.
    sets_const: bool = False  # Whether MuJoCo computes other fields from it.
    least: Literal["any", "0", "above 0"] = "0"  # Which numbers it can have.
    is_scaled: bool = False  # Whether it can only be scaled.
    most: float = math.inf
    is_turned: bool = False  # Whether it is a quaternion, which angles (rad) are added to.
    places: tuple[tuple[str, tuple[int, ...], int], ...] = ()  # Fields, columns, signs; or itself.


GAIN, BIAS = "actuator_gainprm", "actuator_biasprm"
VARIED_FIELDS = {
    "body_mass": Field("body", sets_const=True, least="above 0"),
    "body_inertia": Field("body", sets_const=True, least="above 0", is_scaled=True),
    "density": Field(
        "body",
        sets_const=True,
        least="above 0",
        is_scaled=True,
        places=(("body_mass", (0,), 1), ("body_inertia", (0, 1, 2), 1)),
    ),
    "body_ipos": Field("body", sets_const=True, least="any"),
    "geom_friction": Field("geom"),
    "geom_size": Field("geom", sets_const=True, least="above 0"),
    "dof_armature": Field("joint", sets_const=True),
    "dof_damping": Field("joint"),
    "dof_frictionloss": Field("joint"),
    "kp": Field("actuator", places=((GAIN, (0,), 1), (BIAS, (1,), -1))),
    "kd": Field("actuator", places=((BIAS, (2,), -1),)),
    "gains": Field("actuator", is_scaled=True, places=((GAIN, (0,), 1), (BIAS, (1, 2), -1))),
    "actuator_gear": Field("actuator", sets_const=True, least="any", is_scaled=True),
    "actuator_armature": Field("actuator", sets_const=True),
    "actuator_forcerange": Field("actuator", is_scaled=True),
    "opt.gravity": Field("", least="any"),
    "cam_pos": Field("camera", least="any"),
    "cam_quat": Field("camera", least="any", is_turned=True),
    "cam_fovy": Field("camera", least="above 0", most=179.0),
    "geom_rgba": Field("geom", most=1.0),
    "mat_rgba": Field("material", most=1.0),
    "light_pos": Field("light", least="any"),
    "light_diffuse": Field("light", most=1.0),
    "light_ambient": Field("light", most=1.0),
}


class Place(NamedTuple):
    """Numbers of a field of the model."""

    name: str
    field: torch.Tensor  # All of its numbers, `(num_envs, size)`.
    at: torch.Tensor  # Which of them vary, `(rows * columns,)`.
    own: torch.Tensor  # Those of the model, `(rows, columns)`.
    sign: int


@dataclass(frozen=True)
class Variation:
    """What a call of `vary` varies."""

    env: Env[Any]
    field: str
    names: tuple[str, ...]
    mode: Mode
    low: float
    high: float
    shape: Shape  # Shape of the distribution between these.
    when: When
    shared: bool
    together: bool
    places: list[Place]

    def __str__(self) -> str:
        names = ", ".join(self.names)
        return f"{type(self.env).__name__}: vary({self.field!r}, {names!r})"

    @property
    def range(self) -> str:
        """What the numbers lie between, and how they are distributed if that is not uniform."""
        return f"{self.low:g} to {self.high:g}" + f", {self.shape}" * (self.shape != "uniform")

    def draw(self, mask: torch.Tensor) -> None:
        """Write new numbers where `mask` `(num_envs,)` is true."""
        env, (rows, columns) = self.env, self.places[0].own.shape
        is_turned = VARIED_FIELDS[self.field].is_turned
        columns = 3 if is_turned else columns
        size = 1 if self.together else rows, 1 if self.mode == "scale" else columns
        if self.shared:
            share = torch.rand(1, math.prod(size), generator=env.generator, device=env.device)
        else:
            share = env.uniform(math.prod(size), 0.0, 1.0)
        numbers = self._quantiles(share).view(-1, *size)
        for place in self.places:
            new = numbers.to(place.field)
            new = place.own * new if self.mode == "scale" else place.sign * new
            if is_turned:
                new = multiply(place.own.unsqueeze(0), from_rotation_vector(new))
            else:
                new = place.own + new if self.mode == "add" else new
            new = new.expand(env.num_envs, *place.own.shape).flatten(1)
            old = place.field.index_select(1, place.at)
            place.field.index_copy_(1, place.at, torch.where(mask.unsqueeze(1), new, old))
        self._set_const()

    def undo(self) -> None:
        """Write the model's own numbers everywhere."""
        for place in self.places:
            own = place.own.flatten().expand(self.env.num_envs, -1)
            place.field.index_copy_(1, place.at, own)
        self._set_const()

    def _quantiles(self, share: torch.Tensor) -> torch.Tensor:
        """Return the numbers below which these shares of all are."""
        if self.shape == "log":
            return self.low * (self.high / self.low) ** share
        if self.shape == "normal":
            inside = math.erf(STDS / math.sqrt(2))
            share = 0.5 + torch.erfinv(inside * (2 * share - 1)) / (STDS * math.sqrt(2))
        return self.low + share * (self.high - self.low)

    def _set_const(self) -> None:
        if VARIED_FIELDS[self.field].sets_const:
            self.env.sim.set_const()


def vary(
    env: Env[Any],
    field: str,
    names: str | Sequence[str] | None,
    mode: Mode,
    distribution: tuple[float, float] | tuple[float, float, Shape],
    when: When = "start",
    shared: bool = False,
    *,
    together: bool = False,
    columns: Sequence[int] | None = None,
) -> None:
    """Draw a field of the model for each world. Call it in `setup`, with a range of `env.cfg`.

    Each draw starts from the model's own value, never from the one before. The environments of a
    GRPO group draw the same numbers.

    Args:
        field: `body_mass` (kg), `body_inertia` (kg m2), `density` for both, `body_ipos` (centre of
            mass, m); `geom_friction`, `geom_size` (of primitives, m; masses do not follow);
            `dof_armature` (kg m2), `dof_damping`, `dof_frictionloss`; of position actuators `kp`,
            `kd`, or `gains` for both; `actuator_gear` (torque of motors), `actuator_armature`,
            `actuator_forcerange`; `opt.gravity` (m/s2); `cam_pos` (m), `cam_quat` (angles that turn
            it about its axes, rad), `cam_fovy` (degrees); `geom_rgba`, `mat_rgba`, `light_pos` (m),
            `light_diffuse` or `light_ambient` (colours, 0 to 1).
        names: regular expressions for whole names of bodies, of geoms or the bodies that have them,
            of joints, actuators, cameras, materials or lights. None for gravity. The name of an
            actuator without any is its number.
        mode: "scale" draws one factor for a row; "add" and "set" a number for each of its columns.
        distribution: (low, high); (low, high, "log") has uniform logarithms; the ends of (low,
            high, "normal") are three standard deviations from the mean, and nothing is beyond them.
        when: "start", once, or "reset", where an episode begins. Masses, inertias, centres of mass,
            armatures and sizes are drawn at the start, and what MuJoCo computes from them follows.
        shared: whether all worlds of a worker have the same numbers.
        together: whether all rows of a world have the same numbers.
        columns: those that vary, such as (2,) for z. None: all; of friction, the sliding one.

    Raises:
        UserError: an argument is not as above, a pattern matches nothing, two match one name, a
            number could be one that the field cannot have, or an engine cannot vary the field.
    """
    patterns = (names,) if isinstance(names, str) else tuple(names or ())
    is_range = isinstance(distribution, (tuple, list)) and len(distribution) in (2, 3)
    if not (is_range and all(isinstance(end, Real) for end in distribution[:2])):
        raise UserError(
            f"{type(env).__name__}: vary({field!r}, {names!r}): {distribution!r} must be "
            '(low, high), or (low, high, "log") or (low, high, "normal").'
        )
    low, high, shape = distribution if len(distribution) == 3 else (*distribution, "uniform")
    one = Variation(env, field, patterns, mode, low, high, shape, when, shared, together, [])
    if (facts := VARIED_FIELDS.get(field)) is None:
        fields = ", ".join(VARIED_FIELDS)
        raise UserError(
            f"{one}: what each world can have of its own, on both engines, is {fields}."
        )
    for value, kind in ((mode, Mode), (when, When), (shape, Shape)):
        if value not in get_args(kind):
            raise UserError(f"{one}: {value!r} must be one of: {', '.join(get_args(kind))}.")
    is_range = -math.inf < low <= high < math.inf
    is_late = facts.sets_const and when == "reset"
    wrong = {
        "it is called outside `setup`": env._is_set_up,
        f"{(low, high)} must be two finite numbers, the lower one first": not is_range,
        f"{(low, high)} must be above 0 for logarithms": shape == "log" and low <= 0,
        f"{field} can only be scaled": facts.is_scaled and mode != "scale",
        f'{field} turns about three axes: use "add" without `columns`': facts.is_turned
        and (mode != "add" or columns is not None),
        'MuJoCo computes other fields from it, so that it cannot vary at a "reset"': is_late,
        "worlds are reset at different times, and share no number": shared and when == "reset",
    }
    for text in (text for text, is_wrong in wrong.items() if is_wrong):
        raise UserError(f"{one}: {text}.")
    rows, labels = _rows(one)
    for name, own_columns, sign in facts.places or ((field, (), 1),):
        array = env.sim.of_model(name)
        array = array.reshape(len(array) if facts.kind else 1, -1)
        known = own_columns or tuple(range(array.shape[1]))
        usual = known[:1] if field == "geom_friction" else known
        chosen = usual if columns is None else columns
        if not isinstance(chosen, Sequence) or not set() < {*chosen} <= {*known}:
            raise UserError(f"{one}: `columns` is {columns}; it must be some of {known}.")
        own = array[rows[:, None], list(chosen)]
        _check(one, sign * own, rows, labels)
        expanded = env.sim.expand(name).view(env.num_envs, -1)
        at = (rows[:, None] * array.shape[1] + np.array(chosen)).ravel()
        at, own = torch.tensor(at, device=env.device), torch.tensor(own).to(expanded)
        for other in env.variations:
            if any(o.name == name and torch.isin(o.at, at).any() for o in other.places):
                raise UserError(f"{one}: some of these numbers vary by {other}.")
        one.places.append(Place(name, expanded, at, own, sign))
    env.variations.append(one)
    if when == "reset":
        env.each_reset(one.draw)
    else:
        one.draw(torch.ones(env.num_envs, dtype=torch.bool, device=env.device))


def _rows(one: Variation) -> tuple[np.ndarray, list[str]]:
    """Return the rows of the field that patterns choose, and whose each is."""
    model, field = one.env.sim.model, one.field
    if not (kind := VARIED_FIELDS[field].kind):
        if one.names:
            raise UserError(f"{one}: {field} has no names; give None.")
        return np.zeros(1, int), [field]
    counts = {
        "body": model.nbody, "geom": model.ngeom, "joint": model.njnt, "camera": model.ncam,
        "material": model.nmat, "light": model.nlight,
    }  # fmt: skip
    names = [[getattr(model, kind)(i).name] for i in range(counts.get(kind, model.nactuator))]
    if kind == "actuator":
        names = [[own or str(i)] for i, (own,) in enumerate(names)]
    if kind == "geom":
        for own, body in zip(names, model.geom_bodyid, strict=True):
            own.append(model.body(body).name)
    names = [[name for name in own if name] for own in names]
    matched = dict[int, str]()
    for pattern in one.names or ("",):
        whole = name_pattern(pattern, str(one)).fullmatch
        if not (found := [i for i, own in enumerate(names) if any(map(whole, own))]):
            available = (
                ", ".join(sorted({name for own in names for name in own})) or "none has a name"
            )
            raise UserError(f"{one}: {pattern!r} matches no {kind} of: {available}.")
        for i in found:
            if i in matched:
                both = f"{matched[i]!r} and {pattern!r} both match {' of '.join(names[i])!r}"
                raise UserError(f"{one}: {both}.")
            matched[i] = pattern
    rows = [(i, names[i][0]) for i in sorted(matched)]
    if field.startswith("dof_"):
        rows = [(dof, n) for i, n in rows for dof in np.flatnonzero(model.dof_jntid == i).tolist()]
    return np.array([row for row, _ in rows]), [name for _, name in rows]


def _check(one: Variation, own: np.ndarray, rows: np.ndarray, names: list[str]) -> None:
    """Raise UserError if a row cannot be varied, or could get a number that it cannot have.

    `own` are the model's numbers, `(rows, columns)`.
    """
    field, sim, row = one.field, one.env.sim, rows[:, None]
    facts, model = VARIED_FIELDS[field], sim.model
    factor = np.abs(own) if one.mode == "scale" else np.ones_like(own)
    low, high = (factor * end + own * (one.mode == "add") for end in (one.low, one.high))
    never = np.zeros_like(own, bool)
    is_zero = (low == 0) & ((own != 0) | (one.mode != "scale"))
    rules = {"must not be negative": (low < 0) & (facts.least != "any")}
    if facts.least == "above 0":
        rules = {"must be above 0": (low < 0) | is_zero}
    rules[f"must not be above {facts.most:g}"] = (high > facts.most) & (facts.most < math.inf)
    if field == "geom_size":
        rules["is of no primitive geom"] = never | ~np.isin(model.geom_type[row], SIZED)
    elif facts.places and facts.kind == "actuator":
        rules["is of no position actuator"] = never | ~position_actuators(model)[row]
    elif field == "body_ipos":
        # MuJoCo's own engine would refuse it, MuJoCo-Warp compute wrong accelerations.
        is_moved = (low != own) | (high != own)
        rules['needs simple="false" in its <body>'] = is_moved & (model.body_simple[row] != 0)
    elif field == "actuator_armature" and sim.engine == "warp":
        crosses = (own == 0) & (high > 0) | (own > 0) & (low == 0)
        rules["cannot vary from or to 0 on MuJoCo-Warp"] = crosses
    for must, broken in rules.items():
        for at in map(tuple, np.argwhere(broken)):
            raise UserError(
                f"{one}: {field} of {names[at[0]]!r} {must}; it is {own[at]:.3g} in the model, and "
                f"could be {low[at]:.3g} to {high[at]:.3g}."
            )
