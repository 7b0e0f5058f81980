"""What touches what, and since when: contact sensors by name. Runs in a worker."""

from collections.abc import Sequence
from typing import Any

import mujoco
import torch
from mujoco import mjtConDataField, mjtObj, mjtSensor

from mjfleet.env import Env
from mjfleet.errors import UserError
from mjfleet.utils.name_pattern import name_pattern

CONTACT_KINDS = {
    "geom": mjtObj.mjOBJ_GEOM, "body": mjtObj.mjOBJ_BODY, "subtree": mjtObj.mjOBJ_XBODY,
}  # fmt: skip
FOUND = 1 << mjtConDataField.mjCONDATA_FOUND.value
FORCE = 1 << mjtConDataField.mjCONDATA_FORCE.value
NET_FORCE = 3  # MuJoCo's reduction `netforce`: the sum of all forces, in the world frame.
NEVER = 1e9  # Age of samples that do not count.


def add_contacts(
    spec: mujoco.MjSpec,
    names: str | Sequence[str],
    against: str | None = None,
    *,
    samples: int,
    force: bool = False,
    label: str = "contacts",
) -> None:
    """Add a contact sensor to a model for each geom or body that `names` match.

    Args:
        spec: the model, before it is compiled.
        names: regular expressions that match whole names of geoms and of bodies. A name that a geom
            and a body share is the geom's. `geom:`, `body:` or `subtree:` before an expression says
            what it matches; a subtree is a body with all below it.
        against: the geom, body or subtree, written likewise, whose contacts count; None: any.
        samples: number of physics steps whose contacts MuJoCo keeps: `cfg.decimation`, so that no
            touch between two steps of the environment is missed; 0 keeps only the newest.
        force: whether contact forces are measured, too. What is found is then a physics step old.
        label: begins the sensors' names, `contacts/FR_foot`, so that a model may have several sets.

    Raises:
        UserError: an expression matches nothing, two match the same name, `against` is not in the
            model, or the model has such sensors already.
    """
    what, found = f"add_contacts({label!r})", dict[str, tuple[mjtObj, str]]()
    if not isinstance(names, (str, Sequence)) or not names:
        raise UserError(f"{what}: names is {names!r}; it must be one or more expressions.")
    if not isinstance(samples, int) or samples < 0:
        raise UserError(f"{what}: samples is {samples!r}; it must be cfg.decimation or 0.")
    for pattern in [names] if isinstance(names, str) else names:
        for name, kind in _matches(spec, pattern, what).items():
            if name in found:
                raise UserError(f"{what}: {found[name][1]!r} and {pattern!r} both match {name!r}.")
            found[name] = kind, pattern
    other: dict[str, Any] = {}
    if against is not None:
        ((name, of_kind),) = _matches(spec, against, what, is_name=True).items()
        other = {"objtype": of_kind, "objname": name}
    if any(sensor.name.startswith(f"{label}/") for sensor in spec.sensors):
        raise UserError(f"{what}: the model has such sensors already; give these another label.")
    for name, (kind, _) in found.items():
        # The force is that which acts on the second object, which MuJoCo calls the reference.
        sensor = {"type": mjtSensor.mjSENS_CONTACT, "reftype": kind, "refname": name, **other}
        data = [FOUND | FORCE * force, NET_FORCE * force, 1]
        spec.add_sensor(name=f"{label}/{name}", intprm=data, nsample=samples, **sensor)


class Contacts:
    """Reads the sensors of `add_contacts`. Make it in `setup`.

    The columns of its tensors are in the order of `names`. Times are counted in physics steps, or
    without samples in environment steps. They begin anew with an episode: what touches where one
    begins has not just landed.
    """

    names: tuple[str, ...]
    """Names of the geoms and bodies, in the order in which they were added."""
    touched: torch.Tensor
    """What touched in any physics step of the newest step, `(num_envs, names)`, bool."""
    first_contact: torch.Tensor
    """What began to touch in the newest step, `(num_envs, names)`, bool."""

    def __init__(self, env: Env[Any], label: str = "contacts") -> None:
        """Read the sensors whose names begin with `label` and a slash.

        Raises:
            UserError: there are none, or their sizes differ from what `add_contacts` makes.
        """
        sim, model, steps = env.sim, env.sim.model, env.cfg.decimation
        names = [model.sensor(i).name for i in range(model.nsensor)]
        ids = [i for i, name in enumerate(names) if name.startswith(f"{label}/")]
        if not ids:
            raise UserError(
                f"Contacts({label!r}): call add_contacts in make_model, with this label; the "
                f"sensors are: {', '.join(names) or 'none'}."
            )
        count, samples = len(ids), int(model.sensor_history[ids[0], 0])
        data = int(model.sensor_intprm[ids[0], 0])
        size = 4 if data & FORCE else 1
        wanted = mjtSensor.mjSENS_CONTACT, FOUND | data & FORCE, size, samples
        columns = model.sensor_type, model.sensor_intprm[:, 0], model.sensor_dim
        for place, i in enumerate(ids, start=ids[0]):
            found = *(int(column[i]) for column in columns), int(model.sensor_history[i, 0])
            if found != wanted or i != place or samples not in (0, steps):
                raise UserError(
                    f"Contacts({label!r}): the sensor {names[i]} has {found[2]} numbers and keeps "
                    f"{found[3]} samples; let add_contacts make all these sensors, with "
                    f"samples=cfg.decimation, {steps}, or 0."
                )
        self.names = tuple(names[i].removeprefix(f"{label}/") for i in ids)
        self._count = samples or 1
        self._seconds = env.step_dt / self._count
        # The newest sample of a force is a physics step older than the new state.
        self._newest = 1 if size == 4 and samples else 0
        self._time, start = sim.time.view(-1, 1, 1), model.sensor_adr[ids[0]]
        self._now = sim.sensordata[:, start : start + count * size].unflatten(1, (count, 1, size))
        self._cursor, self._times = self._now[:, :, :1, 0], self._now[:, :, :0, 0]
        self._samples = self._now[:, :, :0]
        self._places = torch.arange(samples, device=env.device)
        # As in mujoco.MjData.history: a number that is not used here, the place of the newest
        # sample, from which older ones go backwards in a ring, the samples' times, their values.
        if samples:
            start, length = model.sensor_historyadr[ids[0]], 2 + samples * (1 + size)
            kept = sim.history[:, start : start + count * length].unflatten(1, (count, length))
            self._cursor, self._times = kept[:, :, 1:2], kept[:, :, 2 : 2 + samples]
            self._samples = kept[:, :, 2 + samples :].unflatten(2, (samples, size))
        self._air, self._contact, self._last_air = (
            env.add_state(f"contacts.{name}", count) for name in ("air", "contact", "last_air")
        )
        self.touched, self.first_contact = (
            env.add_state(f"contacts.{name}", count, dtype=torch.bool, persistent=False)
            for name in ("touched", "first_contact")
        )
        env.each_step(self._update, after_physics=True)

    @property
    def found(self) -> torch.Tensor:
        """What touches now, `(num_envs, names)`, bool: in the new state, also where an episode
        begins. With forces, in the newest physics step; false where an episode begins."""
        return self._now[:, :, 0, 0] > 0

    @property
    def air_time(self) -> torch.Tensor:
        """Seconds since each touched last or the episode began; 0 if it touches now."""
        return self._air * self._seconds

    @property
    def contact_time(self) -> torch.Tensor:
        """Seconds since each began to touch; 0 if it does not touch now."""
        return self._contact * self._seconds

    @property
    def last_air_time(self) -> torch.Tensor:
        """Seconds that each was in the air before it landed last; 0 before the first landing."""
        return self._last_air * self._seconds

    @property
    def force(self) -> torch.Tensor:
        """Net force on each from what it touches, in the newest physics step, `(num_envs, names,
        3)`, N, in the world frame; zero where an episode begins."""
        return self._forces()[:, :, -1]

    @property
    def largest_force(self) -> torch.Tensor:
        """Largest size of the net force in a physics step of the newest step, N."""
        sizes = self._forces().norm(dim=3)
        return sizes.masked_fill(self._ages() == NEVER, 0.0).amax(dim=2)

    def _forces(self) -> torch.Tensor:
        if self._now.shape[3] == 1:
            raise UserError("No forces are measured; write add_contacts(..., force=True).")
        return torch.cat((self._samples, self._now), dim=2)[:, :, :, 1:]

    def _ages(self) -> torch.Tensor:
        """Return how many physics steps older than the newest one each sample is, and the current
        value, `(num_envs, names, samples + 1)`; NEVER if it belongs to an earlier step.

        MuJoCo keeps what sensors measured before it integrates, and MuJoCo-Warp also what they
        measure afterwards, which is then there twice. Late in an episode, times are too coarse in
        float32 to be counted in physics steps; places are not.
        """
        ages = (self._cursor - self._places) % self._count
        is_older = (self._times < self._time).all(dim=2, keepdim=True)  # Also the newest sample.
        ages = ages + is_older - self._newest
        is_earlier = (ages < 0) | (ages >= self._count) | (self._times > self._time)
        ages.masked_fill_(is_earlier, NEVER)
        return torch.nn.functional.pad(ages, (0, 1))

    def _update(self) -> None:
        """Count the samples of the newest step, in whatever order MuJoCo keeps them."""
        found = torch.cat((self._samples, self._now), dim=2)[:, :, :, 0] > 0
        ages = self._ages()
        touching, free = ages.masked_fill(~found, NEVER), ages.masked_fill(found, NEVER)
        touch = touching.amin(dim=2)  # The newest touch.
        # When it was free before that: in this step, or at the end of the last one.
        was_free = torch.where(self._air > 0, self._count, NEVER)
        before = free.masked_fill(free < touch.unsqueeze(2), NEVER).amin(dim=2).minimum(was_free)
        left = touching.masked_fill(touching < before.unsqueeze(2), NEVER).amin(dim=2)
        torch.lt(touch, NEVER, out=self.touched)
        torch.logical_and(self.touched, before < NEVER, out=self.first_contact)
        flight = self._since(left, self._air) - before
        self._last_air.copy_(torch.where(self.first_contact, flight, self._last_air))
        self._air.copy_(self._since(touch, self._air))
        self._contact.copy_(self._since(free.amin(dim=2), self._contact))

    def _since(self, age: torch.Tensor, counted: torch.Tensor) -> torch.Tensor:
        """Return an age, or if that was before this step, what had been counted, and this step."""
        return torch.where(age < NEVER, age, counted + self._count)


def _matches(
    spec: mujoco.MjSpec, pattern: str, what: str, is_name: bool = False
) -> dict[str, mjtObj]:
    """Return the kinds of the geoms and bodies that a pattern, or a name, matches, by name."""
    kind, _, expression = pattern.partition(":")
    if kind not in CONTACT_KINDS:
        kind, expression = "", pattern
    names = {"geom": [geom.name for geom in spec.geoms if geom.name]}
    names["body"] = names["subtree"] = [body.name for body in spec.bodies]
    fits = expression.__eq__ if is_name else name_pattern(expression, what).fullmatch
    kinds = [kind] if kind else ["body", "geom"]  # If both have the name, the geom counts.
    if found := {name: CONTACT_KINDS[one] for one in kinds for name in names[one] if fits(name)}:
        return found
    listed = "; ".join(f"{one}: {', '.join(names[one]) or 'none'}" for one in kinds)
    raise UserError(f"{what}: {pattern!r} matches nothing; there are {listed}.")
