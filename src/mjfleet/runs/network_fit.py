"""Compares networks by what a checkpoint tells of them. Imports no torch.

In the launcher that is a check before workers start. In workers shapes are compared as well.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mjfleet.config import AgentConfig, to_dict
from mjfleet.config.validation import SHOWN
from mjfleet.runs.checkpoint_archive import about

SETTINGS = ("class_name", "hidden_dims", "activation", "obs_normalization", "cnn_cfg")
"""What decides, besides sizes, what a network computes from its weights."""
Networks = dict[str, dict[str, Any]]


def describe_networks(
    agent: AgentConfig, sizes: Mapping[str, int | Sequence[int]], num_actions: int | None
) -> Networks:
    """Return what `about` tells of the policy and of the critic, if it learns.

    `sizes` are those of observation groups; of an image, channels, height and width.
    """
    values, outputs = to_dict(agent), {"actor": num_actions, "critic": 1}
    if agent.distils or not agent.algorithm.learns_values:
        del outputs["critic"]
    shapes = {group: [n] if isinstance(n, int) else [*n] for group, n in sizes.items()}
    return {
        name: {setting: values[name][setting] for setting in SETTINGS}
        | {"observes": {group: shapes.get(group) for group in values["obs_groups"][name]}}
        | {"outputs": number}
        for name, number in outputs.items()
    }


def told_networks(checkpoint: Path) -> Networks:
    """Return what `describe_networks` returned for a checkpoint; empty if it does not tell."""
    told = about(checkpoint).get("networks")
    told = told if isinstance(told, dict) else {}
    return {name: entry for name, entry in told.items() if isinstance(entry, dict)}


def misfit(name: str, theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
    """Return in words why a network cannot take the other's weights; empty: nothing is known."""
    words = []
    then, now = (_sizes(entry.get("observes")) for entry in (theirs, ours))
    if then and now and sum(map(math.prod, then.values())) != sum(map(math.prod, now.values())):
        words.append(f"it observes {_listed(then)} there, {_listed(now)} here")
    then, now = theirs.get("outputs"), ours.get("outputs")
    if None not in (then, now) and then != now:
        words.append(f"it has {_word(then)} outputs there, {_word(now)} here")
    for setting in SETTINGS:
        if setting in theirs and theirs[setting] != ours[setting]:
            flag = f"--agent.{name}.{setting.replace('_', '-')}"
            words.append(f"{flag} is {_word(theirs[setting])} there, {_word(ours[setting])} here")
    return "; ".join(words)


def _sizes(observes: Any) -> dict[str, list[int]]:
    """Return the shape of each group; empty if one is unknown, or a file holds something else."""
    groups = observes if isinstance(observes, dict) else {}
    known = all(
        isinstance(shape, list) and all(type(n) is int for n in shape) for shape in groups.values()
    )
    return groups if known else {}


def _listed(groups: Mapping[str, Sequence[int]]) -> str:
    return " and ".join(f"{name} ({'x'.join(map(str, shape))})" for name, shape in groups.items())


def _word(value: Any) -> str:
    """Return a value as it is typed, not at any length."""
    typed = " ".join(map(str, value)) if isinstance(value, list) else str(value)
    return typed[:SHOWN]
