"""`mjfleet inspect FILE`: which number of which world went bad first, and most likely why.

Runs in the process that the user started. Importing this file imports nothing heavy.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import tyro

from mjfleet.cli.flags import parse_flags

if TYPE_CHECKING:
    import mujoco

    from mjfleet.nan_dump.dump_file import BadNumber, NanDump

SHOWN_STEPS = 6
"""Steps before a bad number whose largest values are shown."""


@dataclass(frozen=True, kw_only=True)
class InspectArguments:
    """Show which number of which world went bad first, in the dump of a run that diverged."""

    file: tyro.conf.Positional[str]
    """The dump: failures/nan_rank<r>.npz in the run directory."""


def inspect(arguments: Sequence[str]) -> int:
    """Print what a dump shows about each of its worlds, the one that went bad first at the top."""
    parsed = parse_flags(InspectArguments, arguments, "mjfleet inspect")
    from mjfleet.nan_dump.dump_file import first_bad_number, load

    dump = load(parsed.file)
    bad = {world: first_bad_number(dump.arrays, i) for i, world in enumerate(dump.worlds)}
    worlds = sorted(bad, key=bad.__getitem__)
    first = bad[worlds[0]]
    # What a step starts with is the result of the step before.
    is_start = first.name.startswith(("start/", "observation/"))
    task, iteration, count = (dump.arrays[n].item() for n in ("task", "iteration", "num_envs"))
    print(f"{task}, iteration {iteration}: {len(worlds)} of {count} worlds, {dump.num_steps} steps")
    for world in worlds:
        _print_world(dump, world, bad[world])
    print("\nIn Python, from where the physics of a step started:")
    print("  from mjfleet.nan_dump.dump_file import load")
    print(f"  dump = load({parsed.file!r})")
    print(f"  data = dump.replay(world={worlds[0]}, step={max(0, first.step - is_start)})")
    return 0


def _print_world(dump: "NanDump", world: int, bad: "BadNumber") -> None:
    """Print a world's first bad number, the values that led to it, and the cause."""
    import numpy as np

    from mjfleet.nan_dump.dump_file import checked_arrays, label

    index = dump.worlds.index(world)

    def values(name: str) -> np.ndarray:
        return dump.arrays[name][:, index].reshape(len(dump.arrays[name]), -1)

    bad_values = values(bad.name)[:, bad.component]
    was = f", {bad_values[bad.step - 1]:.6g} a step before" if bad.step else ""
    what = f"{label(bad.name)}[{bad.component}]{_owner(dump.model, bad)}"
    print(f"\nworld {world}: {what} is {bad_values[bad.step]} {_when(dump, bad)}{was}")
    steps = range(max(0, bad.step - SHOWN_STEPS + 1), bad.step + 1)
    rows = [("largest |value| at step", [str(step) for step in steps])]
    usual = ("action", "start/ctrl", "start/qpos", "start/qvel", "end/qvel", bad.name)
    for name in checked_arrays(dump.arrays):
        if name in usual:
            largest = np.abs(values(name)).max(axis=1)
            rows.append((name, [f"{largest[s]:.4g}" if s < len(largest) else "" for s in steps]))
    for name, cells in rows:
        print(f"  {name:<24}" + "".join(f"{cell:>12}" for cell in cells))
    print(f"  {_cause(dump, world, bad)}")


def _when(dump: "NanDump", bad: "BadNumber") -> str:
    if bad.step == dump.num_steps:
        return f"after step {bad.step - 1}, the last"
    return {
        "observation": f"before step {bad.step}",
        "action": f"at step {bad.step}",
        "start": f"where the physics of step {bad.step} starts",
        "end": f"where the physics of step {bad.step} ends",
    }.get(bad.name.partition("/")[0], f"after the physics of step {bad.step}")


def _cause(dump: "NanDump", world: int, bad: "BadNumber") -> str:
    """Return what computed the bad number: everything that was computed before it is finite."""
    kind, _, field = bad.name.partition("/")
    if kind == "end":
        return _compare_replay(dump.replay(world, bad.step), bad)
    if kind == "start" and field in ("ctrl", "qfrc_applied", "xfrc_applied"):
        return "The action was finite: the task wrote it, in `apply` most likely."
    if kind == "start" and bad.step:
        if dump.arrays["done"][bad.step - 1, dump.worlds.index(world)]:
            return "Its episode had just begun: the task wrote it."
        replayed = dump.replay(world, bad.step - 1)
        if not _is_finite(replayed):
            return _compare_replay(replayed, bad)
        return f"In MuJoCo, step {bad.step - 1} ends finite: the task wrote it afterwards."
    return {
        "start": "The task wrote it.",
        "observation": "States, actions and rewards before it were finite: `observe` made it.",
        "action": "The observation was finite: the policy made it.",
        "term": "The state was finite: `rewards` made it.",
        "reward": "Its terms were finite: the critic's value at a time-out or an intrinsic reward.",
    }[kind]


def _compare_replay(data: "mujoco.MjData", bad: "BadNumber") -> str:
    """Return what MuJoCo's replay of the step says about the cause."""
    import numpy as np

    if _is_finite(data):
        return (
            f"Replayed in MuJoCo, in double precision, step {bad.step} ends finite, with |qvel| up "
            f"to {np.abs(data.qvel).max(initial=0):.4g}: on the verge of instability, or a fault "
            "of MuJoCo-Warp."
        )
    return (
        "Replayed in MuJoCo it goes bad too: the simulation is unstable there. A smaller timestep, "
        "softer contacts or smaller gains may help."
    )


def _is_finite(data: "mujoco.MjData") -> bool:
    """Return whether the state is finite and MuJoCo has not reported it as unstable."""
    import mujoco
    import numpy as np

    kinds = mujoco.mjtWarning
    unstable = (kinds.mjWARN_BADQPOS, kinds.mjWARN_BADQVEL, kinds.mjWARN_BADQACC)
    if any(data.warning[kind].number for kind in unstable):
        return False
    return bool(np.isfinite([*data.qpos, *data.qvel, *data.act]).all())


def _owner(model: "mujoco.MjModel", bad: "BadNumber") -> str:
    """Return the joint or actuator that a component belongs to, in parentheses."""
    import numpy as np

    i = bad.component
    owners: dict[str, tuple[Any, Any]] = {
        "qpos": (model.joint, np.searchsorted(model.jnt_qposadr, i, side="right") - 1),
        "qvel": (model.joint, model.dof_jntid[i] if i < model.nv else 0),
        "ctrl": (model.actuator, i),
        "act": (model.actuator, np.searchsorted(model.actuator_actadr, i, side="right") - 1),
    }
    field = bad.name.partition("/")[2]
    if not bad.name.startswith(("start/", "end/")) or field not in owners:
        return ""
    find, index = owners[field]
    kind = "joint" if field in ("qpos", "qvel") else "actuator"
    return f" ({kind} {find(int(index)).name or index})"
