"""Begins with networks of another run, see `--init-from`. Runs in a worker."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mjfleet.config import AgentConfig, to_dict
from mjfleet.config.unused_fields import unused_fields
from mjfleet.config.validation import SHOWN_CHARS
from mjfleet.env import Env
from mjfleet.errors import UserError
from mjfleet.rl.checkpoints.files import NAMED_DIFFERENCES, OWN, misfit_of
from mjfleet.rl.runner import Runner
from mjfleet.runs.checkpoints import about

SETTINGS = ("class_name", "hidden_dims", "activation", "obs_normalization", "cnn_cfg")
"""What decides, besides sizes, what a network computes from its weights."""
LABELS = {"observes": "what it observes", "outputs": "the number of outputs"}


def describe_networks(env: Env[Any], agent: AgentConfig) -> dict[str, dict[str, Any]]:
    """Return what a checkpoint says about its policy, and about its critic if that learns."""
    values, observed = to_dict(agent), env.get_observations().items()
    fields = {
        (name, key): f"agent.{name}.{key}" for name in ("actor", "critic") for key in SETTINGS
    }
    unused = {field.name for field in unused_fields(agent, fields.values())}
    shapes = {group: list(rows.shape[1:]) for group, rows in observed}
    outputs = {"actor": env.num_actions, "critic": 1}
    if agent.distils or not agent.algorithm.learns_values:
        del outputs["critic"]
    return {
        name: {key: values[name][key] for key in SETTINGS if fields[name, key] not in unused}
        | {"observes": {group: shapes[group] for group in values["obs_groups"][name]}}
        | {"outputs": number}
        for name, number in outputs.items()
    }


def take_networks(runner: Runner, path: Path, state: dict[str, Any], name: str) -> list[str]:
    """Load each network of a checkpoint that fits as a whole; return a line about each.

    All ranks call this, with the same `state`: what `read_checkpoint` has returned for the file.
    Messages call the file `name`.

    Raises:
        UserError: the policy does not fit, or its weights are not tied where they have to be.
    """
    known = about(path)
    theirs, ours = known.get("networks"), describe_networks(runner.env, runner.agent)
    learner, its_learner = runner.agent.algorithm.name, known.get("algorithm")
    built = runner.alg.save()
    theirs = theirs if isinstance(theirs, dict) else {}  # Files of rsl_rl have none.
    own, taken, notes = state.get(OWN) or {}, list[str](), list[str]()
    if (theirs and "critic" not in theirs) or own.get("teacher"):
        state = {key: value for key, value in state.items() if key != "critic_state_dict"}
    for part in runner.alg.networks():
        key = f"{part}_state_dict"
        if part == "critic" and part not in ours:
            continue
        why = _misfit(part, theirs.get(part), ours.get(part, {}), state.get(key), built[key])
        if why and part == "actor":
            if isinstance(its_learner, str) and its_learner != learner:
                why = f"{its_learner:.{SHOWN_CHARS}} and {learner} have different policies: {why}"
            raise UserError(f"--init-from {name}: its actor does not fit: {why}.")
        taken += [part] * (not why)
        kept = ", with its normaliser" * any("normalizer" in x for x in built[key])
        notes.append(f"{part}: begins anew, since {why}" if why else f"{part}: taken{kept}")
    runner.alg.restore(state, taken)
    return [*notes, "optimiser, learning rate, counters and environments: begin anew"]


def _misfit(
    part: str,
    theirs: Any,
    ours: Mapping[str, Any],
    saved: Mapping[str, Any] | None,
    built: Mapping[str, Any],
) -> str:
    """Return why a network cannot take saved weights; empty if it can.

    Args:
        part: the network's name.
        theirs, ours: `describe_networks` of both; theirs may be of any type.
        saved, built: the state of both. Groups of other names may have the same shapes.
    """
    if saved is None:
        return "that run has none"
    misfit, why = misfit_of(saved, built), []
    for name, value in ours.items() if isinstance(theirs, dict) else ():
        other = theirs.get(name, value)
        if other != value and (name in SETTINGS or misfit):
            label = LABELS.get(name, f"--agent.{part}.{name.replace('_', '-')}")
            why.append(f"{label} is {other!s:.{SHOWN_CHARS}} there, {value!s:.{SHOWN_CHARS}} here")
    return "; ".join(why[:NAMED_DIFFERENCES]) or misfit
