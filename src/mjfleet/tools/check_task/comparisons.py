"""Compares environments that were built in different ways: numbers, seeds, constants, engines."""

from collections.abc import Callable, Iterator
from functools import partial

import mujoco
import torch

from mjfleet.env.return_checks import observation_sizes
from mjfleet.sim.simulation import CONSTANTS, Simulation
from mjfleet.tools.check_task.signals import SIGNALS, engine_warnings, not_finite
from mjfleet.tools.check_task.subject import Finding, Outcome, Subject, columns, differs, roll

Build = Callable[..., Subject]
"""Builds the environment of a `rank` on MuJoCo's own engine, in GRPO groups of TWINS."""
TWINS = 2
COMPARED_STEPS = 8
ENGINE_STEPS = 100
LEAK_ROUNDS = 10
EDGES = 0.02  # Share of an image's pixels that may see another geom on another engine.
SEED = (
    "differs between two environments with the same seed and actions; draw with self.uniform and "
    "self.normal, and use no clock and no order of a set"
)
AGAIN = (
    "differs if the same steps are taken from the same state again: the task remembers something "
    "in an object, a function or a module; declare it by self.add_state in setup()"
)
OTHERS = (
    "of an environment depends on the others: it differs when only these are in another state; "
    "sum, average, sort and ask any() or all() within a row (dim=1)"
)
TWIN = (
    "differs between environments in the same state, with the same actions and random numbers; "
    "let it follow from the state, self.env_ids, self.uniform and self.normal alone"
)


def seeds(subject: Subject, build: Build) -> Iterator[Finding]:
    """Find what differs with equal seeds or between twins, and what is equal on all ranks."""
    actions = subject.actions(COMPARED_STEPS, seed=9)[:, ::TWINS].repeat_interleave(TWINS, dim=1)
    one, again, other = (roll(build(rank=rank).env, actions) for rank in (0, 0, 1))
    if found := _first_difference(one, again, SEED):
        yield from found
        return
    start = one["sim.qpos"][0]
    if differs(start, start[:1]).any() and not _first_difference(one, other):
        yield Finding(
            "workers with different ranks have the same environments; draw with self.uniform and "
            "self.normal, whose numbers follow from the seed"
        )
    first, second = ({k: v[:, i::TWINS] for k, v in one.items()} for i in range(TWINS))
    yield from _first_difference(first, second, TWIN)


def leaks_between(subject: Subject) -> Iterator[Finding]:
    """Find what changes in half of the environments if only the other half is in another state, or
    if nothing is changed. In every second round, the other half times out, too."""
    env, generator = subject.env, torch.Generator().manual_seed(13)
    half = slice(env.num_envs // 2)

    def change(number: int) -> None:
        subject.write_random_states(generator, half)
        if number % 2:
            env.episode_length_buf[half] = env.max_episode_length - 1

    for number in range(LEAK_ROUNDS):
        actions = subject.actions(2, seed=14 + number)
        one, again, other = (
            {name: values[:, half.stop :] for name, values in subject.future(actions, do).items()}
            for do in (None, None, partial(change, number))
        )
        if found := _first_difference(one, again, AGAIN) or _first_difference(one, other, OTHERS):
            yield from found
            return


def _first_difference(one: Outcome, other: Outcome, text: str = "differs") -> list[Finding]:
    """Return a finding about what differs first, if anything does."""
    unequal = {k: differs(v[1:], other[k][1:]).any(dim=2).any(dim=1) for k, v in one.items()}
    steps = {name: int(where.nonzero()[0]) for name, where in unequal.items() if where.any()}
    return [Finding(f"{min(steps, key=steps.__getitem__)} {text}")] if steps else []


def stale_constants(sim: Simulation) -> Iterator[Finding]:
    """Find masses that were changed without the constants that MuJoCo computes from them."""
    fields = {name: sim.expand(name) for name in CONSTANTS if getattr(sim.model, name).size}
    before = {name: field.clone() for name, field in fields.items()}
    sim.expand("body_mass")  # Without fields of its own, no world computes anything.
    sim.set_const()
    for name, old in before.items():
        if (fields[name] - old).abs().max() > 1e-3 * old.abs().max() + 1e-9:  # Less is rounding.
            yield Finding(
                f"make_model() or setup() changes masses: {name} and the like belong to those "
                "before. In make_model(), change a mujoco.MjSpec, or call mujoco.mj_setConst(model,"
                " mujoco.MjData(model)) after a change; in setup(), call self.sim.set_const()"
            )
            return


def disagreements(one: Subject, other: Subject) -> Iterator[Finding]:
    """Find where two new environments with the same seed differ, on two engines.

    Each step begins in the state of the first one, since contacts would soon make them diverge.
    Medians over environments agree within a share of the spread, but for EDGES of an image."""
    rows = list[Outcome](), list[Outcome]()
    for step, action in enumerate(one.actions(ENGINE_STEPS, seed=10)):
        if step:
            state, names = one.env.sim.state(), other.env.sim.state().keys()
            other.env.sim.restore({name: state[name] for name in names & state.keys()})
            other.env.load_state_dict(one.env.state_dict())
        for subject, outcomes in zip((one, other), rows, strict=True):
            row = roll(subject.env, action.unsqueeze(0)).items()
            outcomes.append({name: values[min(step, 1) :] for name, values in row})
    expected, outcome = ({k: torch.cat([row[k] for row in part]) for k in part[0]} for part in rows)
    bad_numbers = not_finite(outcome, "steps with random actions")
    for finding in (*engine_warnings(other.env), *bad_numbers):
        yield Finding(f"{finding.text} (on warp)")
    if bad_numbers:
        return
    found: dict[tuple[int, bool, str], torch.Tensor] = {}
    images = [name for name, size in observation_sizes(one.env).items() if isinstance(size, tuple)]
    allowed = dict.fromkeys((f"observe()[{name!r}]" for name in images), EDGES)
    for name, values in filter(lambda item: item[1].numel(), expected.items()):
        difference = (values - outcome[name]).abs().median(dim=1).values
        limit = 0.05 * values.std(dim=(0, 1)) + 1e-4 * values.abs().amax(dim=(0, 1)) + 1e-6
        bad = difference.masked_fill(difference <= limit, 0.0)
        if (bad > 0).float().mean(dim=1).max() > allowed.get(name, 0.0):
            found[int(bad.any(dim=1).nonzero()[0]), name.startswith(SIGNALS), name] = bad
    if any(is_signal for _, is_signal, _ in found):
        step, _, name = first = min(found)  # Others may follow from that.
        when = f"after {step} steps" if step else "at the start"
        model = one.env.sim.model
        collide = model.geom_contype | model.geom_conaffinity
        has_heights = bool(collide[model.geom_type == mujoco.mjtGeom.mjGEOM_HFIELD].any())
        heights = (
            "on a height field, MuJoCo-Warp keeps four contacts of a geom and MuJoCo all, so that "
            "flat feet differ: play with the engine that trained. Otherwise "
        )
        yield Finding(
            f"{name}{columns((found[first] > 0).any(dim=0))}: differs between the engines {when}, "
            f"by up to {float(found[first].max()):.2g}; {heights * has_heights}draw random numbers "
            "with self.uniform and self.normal, and let no number depend on a dtype or a device",
            is_sure=not has_heights,
        )
