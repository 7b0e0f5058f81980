"""Begins with networks of another run, see `--init-from`. Runs in a worker."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

from mjfleet.config import to_dict
from mjfleet.config.validation import SHOWN
from mjfleet.errors import UserError
from mjfleet.rl.checkpoint_files import OWN, shapes
from mjfleet.rl.runner import Runner
from mjfleet.runs.checkpoint_archive import about

SETTINGS = ("class_name", "hidden_dims", "activation", "obs_normalization", "cnn_cfg")
"""What decides, besides sizes, what a network computes from its weights."""
NAMED = 3  # How many tensors of another shape a line names.


def describe_networks(runner: Runner) -> dict[str, dict[str, Any]]:
    """Return what a checkpoint tells of its policy, and of its critic, if it learns."""
    agent, values = runner.agent, to_dict(runner.agent)
    observed = runner.env.get_observations().items()
    shapes = {group: list(rows.shape[1:]) for group, rows in observed}
    outputs = {"actor": runner.env.num_actions, "critic": 1}
    if agent.distils or not agent.algorithm.learns_values:
        del outputs["critic"]
    return {
        name: {setting: values[name][setting] for setting in SETTINGS}
        | {"observes": {group: shapes[group] for group in values["obs_groups"][name]}}
        | {"outputs": number}
        for name, number in outputs.items()
    }


def take_networks(runner: Runner, path: Path, state: dict[str, Any], name: str) -> list[str]:
    """Load each network of a checkpoint that fits as a whole; return what became of each, in words.

    All ranks call this, with the same `state`: what `read_checkpoint` has returned for the file.
    Messages call the file `name`.

    Raises:
        UserError: the policy does not fit, or its weights are not tied where they have to be.
    """
    told, ours, built = about(path).get("networks"), describe_networks(runner), runner.alg.save()
    told = told if isinstance(told, dict) else {}  # Files of rsl_rl do not tell.
    own, taken, said = state.get(OWN) or {}, {}, []
    if (told and "critic" not in told) or own.get("teacher"):
        state = {key: value for key, value in state.items() if key != "critic_state_dict"}
    for part in ("actor", "critic", "rnd"):
        key = f"{part}_state_dict"
        if key not in built or (part == "critic" and part not in ours):
            continue
        why = _other_settings(part, told.get(part), ours.get(part, {}))
        why = why or _other_shapes(state.get(key), built[key])
        if why and part == "actor":
            raise UserError(f"--init-from {name}: its actor does not fit: {why}.")
        taken[part] = not why
        kept = ", with its normaliser" * any("normalizer" in x for x in built[key])
        said.append(f"{part}: begins anew, since {why}" if why else f"{part}: taken{kept}")
    runner.alg.load(state, {**taken, "optimizer": False, "rnd": False}, strict=True)
    runner.alg.check_weights()
    if taken.get("rnd"):  # rsl_rl would load its optimiser too.
        rnd: Any = runner.alg.rnd
        rnd.load_state_dict(state["rnd_state_dict"])
    return [*said, "optimiser, learning rate, counters and worlds: begin anew"]


def _other_settings(part: str, theirs: Any, ours: Mapping[str, Any]) -> str:
    """Return in words why a network cannot take the other's weights; empty: nothing is known."""
    if not isinstance(theirs, dict):
        return ""
    words = []
    then, now = theirs.get("observes"), ours.get("observes", {})
    if _are_shapes(then) and _size(then) != _size(now):
        words.append(f"it observes {_listed(then)} there, {_listed(now)} here")
    for name in ("outputs", *SETTINGS):
        if name in theirs and theirs[name] != ours[name]:
            flag = f"--agent.{part}.{name.replace('_', '-')}"
            what = "the number of outputs" if name == "outputs" else flag
            words.append(f"{what} is {_word(theirs[name])} there, {_word(ours[name])} here")
    return "; ".join(words)


def _are_shapes(observes: Any) -> TypeGuard[dict[str, list[int]]]:
    """Return whether a file tells the shape of each observation group."""
    return isinstance(observes, dict) and all(
        isinstance(shape, list) and all(type(n) is int for n in shape)
        for shape in observes.values()
    )


def _size(shapes: Mapping[str, list[int]]) -> int:
    return sum(map(math.prod, shapes.values()))


def _listed(groups: Mapping[str, list[int]]) -> str:
    named = (f"{name} ({'x'.join(map(str, shape))})" for name, shape in groups.items())
    return " and ".join(named)[: 2 * SHOWN]


def _word(value: Any) -> str:
    """Return a value as it is typed, not at any length."""
    typed = " ".join(map(str, value)) if isinstance(value, list) else str(value)
    return typed[:SHOWN]


def _other_shapes(theirs: Mapping[str, Any] | None, ours: Mapping[str, Any]) -> str:
    """Return in words where the tensors of two networks differ; empty if they do not."""
    if theirs is None:
        return "that run has none"
    then, now = (shapes(state) for state in (theirs, ours))
    different = [key for key in then | now if then.get(key) != now.get(key)]
    words = [f"{key[:SHOWN]} is {then.get(key)} there, {now.get(key)} here" for key in different]
    return "; ".join(words[:NAMED] + [f"{len(words) - NAMED} more differ"] * (len(words) > NAMED))
